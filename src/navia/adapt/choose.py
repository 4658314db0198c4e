"""Label-free choice of NAVIA's settings: the lowest Eq. 7 on the first images of the target (section 4 of the paper)."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from navia.adapt.adapter import adapt
from navia.adapt.statistics import Images, SourceStatistics, image_batches
from navia.errors import InputError, SpecError
from navia.reduce import ReducerLike
from navia.vit.vit import ViT

GRID: dict[str, tuple[Any, ...]] = {
    "budget": (4, 5, 6),
    "eta_delta": (8e-4, 1e-3, 3e-3),
    "eta_delta_l": (1e-2, 5e-2),
}


@dataclass(frozen=True)
class Choice:
    """options: to pass to `adapt`. table: every setting with its score. images, forwards, seconds: what the choice cost."""

    options: dict[str, Any]
    table: tuple[tuple[dict[str, Any], float], ...]
    images: int
    steps: int
    seconds: float


def choose(
    vit: ViT,
    images: Images,
    source: SourceStatistics,
    method: str = "navia",
    reduce: ReducerLike = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    batches: int = 8,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> Choice:
    """Try every setting of `grid` on the first `batches` batches of unlabelled target images.

    Each runs from the source with updates; its score is the mean loss before the update over the last half of the
    batches. The paper names the criterion but not the number of images; 8 batches of 64 is ours.
    """
    settings = grid or _grid_for(vit)
    if batches < 2:
        raise InputError("a choice needs at least 2 batches")
    stream = list(image_batches(vit, images, batch, batches * batch))
    if len(stream) < 2:
        raise InputError(f"a choice needs at least 2 batches of target images, got {len(stream)}")
    start = time.perf_counter()
    names = list(settings)
    combinations = [dict(zip(names, values, strict=True)) for values in itertools.product(*settings.values())]
    table = []
    for number, options in enumerate(combinations):
        table.append((options, _score(vit, stream, source, method, reduce, {**fixed, **options})))
        if progress:
            progress(number + 1, len(combinations))
    best = min(table, key=lambda row: row[1])[0]
    seen = sum(len(chunk) for chunk in stream)
    return Choice({**fixed, **best}, tuple(table), seen, len(table) * len(stream), time.perf_counter() - start)


def _score(
    vit: ViT, stream: list[Any], source: SourceStatistics, method: str, reduce: ReducerLike, options: dict[str, Any]
) -> float:
    adapter = adapt(vit, method, reduce, source, guard=False, **options)
    losses = []
    for chunk in stream:
        adapter(chunk)
        assert adapter.last is not None
        if adapter.last.loss is None:
            raise SpecError(f"method {method!r} has no loss to choose by")
        losses.append(adapter.last.loss)
    late = losses[len(losses) // 2 :]
    return sum(late) / len(late)


def _grid_for(vit: ViT) -> dict[str, tuple[Any, ...]]:
    """The paper's grid, without budgets that the model is too shallow for."""
    budgets = tuple(b for b in GRID["budget"] if b <= vit.depth) or (vit.depth,)
    return {**GRID, "budget": budgets}
