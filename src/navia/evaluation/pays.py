"""Whether reducing tokens saves time here: choosing and merging them costs a fixed time per block, which a small model at a
small batch does not win back."""

import time
from dataclasses import dataclass

import torch

from navia.evaluation.latency import random_images
from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import NoReduction, Reducer, ReducerLike, parse

SMALL_BATCH = 8  # above it reduction paid on every ViT of 192 channels or more that we measured


@dataclass(frozen=True)
class Pays:
    """Milliseconds per forward of `batch` images, the best of some, with the reducer and without."""

    reduce: str
    batch: int
    with_ms: float
    without_ms: float

    def __bool__(self) -> bool:
        return self.with_ms <= self.without_ms

    def __str__(self) -> str:
        verb = "pays" if self else "does not pay"
        return f"{self.reduce} {verb} at batch {self.batch}: {self.with_ms:.1f} ms with it, {self.without_ms:.1f} ms without"


def pays(vit: ViT, reduce: ReducerLike, batch: int = 1, rounds: int = 9) -> Pays:
    """Time forwards of `batch` random images with `reduce` and without, in turn, after a warm-up round."""
    reducer = parse(reduce)
    images = random_images(vit, batch)
    with_it, without = [], []
    with torch.no_grad():
        for _ in range(rounds + 1):
            with_it.append(_seconds(vit, images, reducer))
            without.append(_seconds(vit, images, NoReduction()))
    return Pays(str(reducer), batch, min(with_it[1:]) * 1000, min(without[1:]) * 1000)


def reducer_that_pays(vit: ViT, reduce: ReducerLike, batch: int) -> tuple[Reducer, Pays | None]:
    """`reduce`, or none where it would cost more time than it saves; and what was measured, if that was in doubt."""
    reducer = parse(reduce)
    in_doubt = batch <= SMALL_BATCH and vit.device.type == "cpu" and any(reducer.tokens_per_block(vit.depth))
    if not in_doubt:
        return reducer, None
    measured = pays(vit, reducer, batch)
    return (reducer if measured else NoReduction()), measured


def _seconds(vit: ViT, images: torch.Tensor, reducer: Reducer) -> float:
    start = time.perf_counter()
    forward(vit, images, reducer).logits.sum().item()  # waits for the result on every device
    return time.perf_counter() - start
