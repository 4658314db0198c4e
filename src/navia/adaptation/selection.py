"""`navia.choose`: options without labels, by the lowest loss (Eq. 7) on the first target images (section 4 of the paper)."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from navia.adaptation.adapter import adapt
from navia.adaptation.statistics import Images, SourceStatistics, image_batches
from navia.errors import InputError, SpecError
from navia.models.base import ViT
from navia.reduction import ReducerLike

GRID: dict[str, tuple[Any, ...]] = {
    "budget": (4, 5, 6),
    "eta_delta": (8e-4, 1e-3, 3e-3),
    "eta_delta_l": (1e-2, 5e-2),
}


@dataclass(frozen=True)
class Choice:
    """Result of `navia.choose`.

    Attributes:
        options: Options to pass to `navia.adapt`.
        table: Every setting with its score.
        images: Number of images used.
        steps: Number of adaptation steps.
        seconds: Time it took.

    Example:
        >>> from navia.adaptation.selection import Choice
        >>> choice = Choice({"lr": 0.001}, (({"lr": 0.001}, 1.8), ({"lr": 0.005}, 2.1)), images=128, steps=4, seconds=1.0)
        >>> adapter = navia.adapt("embedded", source="embedded", **choice.options)
    """

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
    batch_size: int = 64,
    classes: Sequence[int] | Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> Choice:
    """Choose options without labels: try every setting of `grid` on the first batches of the target.

    Each setting adapts from the source; its score is the mean loss before the update over the last half of the batches. The
    paper names the criterion but not the number of images; 8 batches of 64 are ours.

    Args:
        vit: The model.
        images: Unlabelled target images, as for `SourceStatistics.measure`.
        source: Source statistics.
        method: A method with a loss.
        reduce: Token reducer.
        grid: Values to try for each option; the paper's by default.
        batches: Number of batches.
        batch_size: Images per batch.
        classes: Class indices, as for `navia.adapt`.
        progress: Called after each setting with the number done and the number of all.
        **fixed: Options that all settings share.

    Returns:
        The best options, and the score of every setting.

    Example:
        >>> vit = navia.load("embedded")
        >>> source = navia.SourceStatistics.measure(vit, "embedded", reduce="tome:8")
        >>> images = torch.randn(64, 1, 28, 28)
        >>> choice = navia.choose(vit, images, source, reduce="tome:8", grid={"lr": [1e-3, 5e-3]}, batches=2, batch_size=32)
        >>> sorted(choice.options)
        ['lr']
    """
    settings = grid or _grid_for(vit)
    if batches < 2:
        raise InputError("choosing needs at least 2 batches")
    stream = list(image_batches(vit, images, batch_size, batches * batch_size))
    if len(stream) < 2:
        raise InputError(f"choosing needs at least 2 batches of target images, got {len(stream)}")
    start = time.perf_counter()
    names = list(settings)
    combinations = [dict(zip(names, values, strict=True)) for values in itertools.product(*settings.values())]
    table = []
    for number, options in enumerate(combinations):
        table.append((options, _score(vit, stream, source, method, reduce, classes, {**fixed, **options})))
        if progress:
            progress(number + 1, len(combinations))
    best, score = min(table, key=lambda row: row[1])
    if math.isinf(score):
        raise InputError(f"no setting of the {len(table)} has a finite loss on these images: lower the learning rates")
    seen = sum(len(chunk) for chunk in stream)
    return Choice({**fixed, **best}, tuple(table), seen, len(table) * len(stream), time.perf_counter() - start)


def _score(
    vit: ViT,
    stream: list[Tensor],
    source: SourceStatistics,
    method: str,
    reduce: ReducerLike,
    classes: Sequence[int] | Tensor | None,
    options: dict[str, Any],
) -> float:
    adapter = adapt(vit, method, reduce, source, classes=classes, guard=False, **options)
    losses = []
    for chunk in stream:
        adapter(chunk)
        assert adapter.last is not None
        if adapter.last.loss is not None:  # a last batch of few images makes no step
            losses.append(adapter.last.loss)
    if not losses:
        why = f": {adapter.last.note}" if adapter.last is not None and adapter.last.note else ""
        raise SpecError(f"method {method!r} has no loss to choose by{why}")
    late = losses[len(losses) // 2 :]
    score = sum(late) / len(late)
    return score if math.isfinite(score) else math.inf


def _grid_for(vit: ViT) -> dict[str, tuple[Any, ...]]:
    """The paper's grid, without budgets that the model is too shallow for."""
    budgets = tuple(b for b in GRID["budget"] if b <= vit.depth) or (vit.depth,)
    return {**GRID, "budget": budgets}
