"""How far answers may be from the recorded ones: one rule, which holds on any processor.

Processors sum in different orders, so the same program gives numbers that differ by roundings. Two cases:

- Nothing is decided by a rounding. Then a rounding has a small effect, which was recorded: `tolerance`.
- A decision is so close that a rounding turns it (a near tie). Two kinds occur in the recordings:
  - Which tokens are merged or dropped: `min_gap` is the recorded distance of each image to another decision. Images within
    `danger` of one are not compared, but the parameters learn from them, and later answers show it. How much is found
    out by experiment: the stream is adapted to again, and decisions are made on scores with an error of that size, so that
    near ties fall at random and all other decisions stay (`effect_of_near_ties`).
  - After which step LAME stops: when the energy changes by less than 1e-8 of itself, which float32 (6e-8) cannot tell from
    no change. Every step from where the change is below `SAME_ENERGY` on may be the last one: both the answer and the
    recording must be the result of one of them (`assert_lame_stopped`). Its neighbours are no near ties: the k-th and the
    next are at least 3e-5 apart in all recordings.

The second look is taken only where the first one fails, so a stream without near ties has nothing to excuse it.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from navia.reduction import evit, tofu, tome

DANGER = {"tome": 1e-5, "tofu": 1e-5, "evit": 1e-7}  # of cosines; of attention, whose values are near 1/50
SAME_ENERGY = 1e-6  # relative; the energy is a sum of 320 terms, each with an error of 6e-8 or more
TRIES = 5  # streams with errors in the scores


def tolerance(data: dict[str, np.ndarray], stream: str, batch: int) -> float:
    """max(1e-5, 20 x the effect of one rounding of the weights), as the golden data's notes ask for. Where that effect
    was recorded for stream A only, its largest value stands for the other streams."""
    if f"{stream}.ulp_sensitivity" in data:
        return max(1e-5, 20 * float(data[f"{stream}.ulp_sensitivity"][batch]))
    return max(1e-5, 20 * float(data.get("A.ulp_sensitivity", np.zeros(1)).max()))


def clear_images(data: dict[str, np.ndarray], stream: str, reduce: object) -> np.ndarray:
    """[batches, images]: whether all decisions about the image's tokens were further apart than `danger`."""
    danger = DANGER.get(str(reduce).partition(":")[0], 0.0)
    return data.get(f"{stream}.min_gap", np.ones((6, 32))) > danger


def effect_of_near_ties(adapted: Callable[[], list[np.ndarray]]) -> list[float]:
    """Largest change of each array of `adapted()` when scores have an error of the size of `danger`.

    An error of e in each component of two keys of 16 components changes their cosine by about e / 3."""
    plain = adapted()
    most = [0.0] * len(plain)
    for seed in range(TRIES):
        generator = torch.Generator().manual_seed(seed)

        def shaken(scores: Tensor, error: float, generator: torch.Generator = generator) -> Tensor:
            return scores * (1 + error * torch.randn(scores.shape, generator=generator))

        with pytest.MonkeyPatch.context() as patch:
            for module in (tome, tofu):
                match = module.match
                patch.setattr(module, "match", lambda keys, r, prefix, m=match: m(shaken(keys.float(), 3e-5), r, prefix))
            split = evit.split_by_attention
            patch.setattr(evit, "split_by_attention", lambda a, r, prefix, s=split: s(shaken(a, 5e-6), r, prefix))
            most = [max(old, float(np.abs(a - b).max())) for old, a, b in zip(most, plain, adapted(), strict=True)]
    return most


def assert_lame_stopped(answer: np.ndarray, recorded: np.ndarray, probabilities: Tensor, w: Tensor, atol: float) -> None:
    """Both are results of steps after which the energy no longer changes; all in float64."""
    unary, y, energies = -(probabilities.double() + 1e-10).log(), probabilities.double(), [np.inf]
    last: list[Tensor] = []
    for step in range(100):
        pairwise = w.double() @ y
        y = (pairwise - unary).softmax(dim=1)
        energies.append(float((y * (unary - pairwise + y.clamp(min=1e-20).log())).sum()))
        change = abs(energies[-1] - energies[-2])
        if step == 99 or (step > 1 and change <= SAME_ENERGY * abs(energies[-2])):
            last.append(y)
    for found in (answer, recorded):
        assert min(np.abs(found - y.numpy()).max() for y in last) <= atol
