"""The demonstration: what a shift does to a model, what adaptation gives back, and what merging tokens costs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.bench.run import run_stream as run
from navia.data.loader import Batch, Loader
from navia.data.sources import Domain
from navia.data.streams import make_stream
from navia.evaluation.cost import cost
from navia.evaluation.metrics import wilson
from navia.models.base import ViT

PLAIN = (("none", False), ("tent", False), ("align", False), ("align", True), ("navia", True))


@dataclass
class Row:
    """One method with one reducer on every domain: which answers were right, in the order in which they were given."""

    method: str
    reduce: str
    gmacs: float
    right: dict[str, Tensor] = field(default_factory=dict)
    answers: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    images: int = 0
    guard: list[str] = field(default_factory=list)

    def top1(self, domain: str) -> float:
        return self.right[domain].double().mean().item()

    def interval(self, domain: str) -> tuple[float, float]:
        return wilson(int(self.right[domain].sum()), len(self.right[domain]))

    @property
    def mean(self) -> float:
        return float(np.mean([self.top1(domain) for domain in self.right]))

    @property
    def by_image(self) -> Tensor:
        """[N]: in how many of the domains each image was answered right, as a share. All domains show the same images in
        the same order, so that one image under three shifts is one observation and not three."""
        return torch.stack([right.double() for right in self.right.values()]).mean(dim=0)

    @property
    def mean_interval(self) -> tuple[float, float]:
        """95 % of the mean over domains, over the images."""
        half = _half_width(self.by_image)
        return self.mean - half, self.mean + half

    @property
    def ms_per_image(self) -> float:
        return 1000 * self.seconds / max(1, self.images)


@dataclass(frozen=True)
class Difference:
    """How many points one row is above another on the same images, with a 95 % interval over the images."""

    points: float
    low: float
    high: float


def paired(row: Row, other: Row) -> Difference:
    """Both answered the same images, so that only the images on which they differ count."""
    gaps = row.by_image - other.by_image
    mean, half = gaps.mean().item(), _half_width(gaps)
    return Difference(100 * mean, 100 * (mean - half), 100 * (mean + half))


def _half_width(values: Tensor) -> float:
    """Of the normal 95 % interval of their mean."""
    return float(1.96 * values.std().item() / len(values) ** 0.5)


def run_demo(
    vit: ViT,
    source: Tensor,
    domains: Sequence[Domain],
    reduce: str,
    *,
    classes: Sequence[int] | None = None,
    images: int = 512,
    batch: int = 64,
    seed: int = 0,
    on_batch: Callable[[], None] = lambda: None,
) -> Iterator[list[Row]]:
    """Rows so far, after each finished cell; every method answers the same batches, domain after domain."""
    rows = [Row(method, reduce if merged else "none", cost(vit, reduce if merged else "none", method=method).gmacs)
            for method, merged in PLAIN]  # fmt: skip
    statistics = {row.reduce: SourceStatistics.measure(vit, source, row.reduce) for row in rows}
    adapters = [adapt(vit, row.method, row.reduce, statistics[row.reduce], classes=classes, seed=seed) for row in rows]
    for domain in domains:
        batches = list(Loader(make_stream([domain], seed=seed, limit=images), vit.preprocessing, batch))
        for row, adapter in zip(rows, adapters, strict=True):
            _answer(row, adapter, domain.name, batches, on_batch)
            yield rows


def _answer(row: Row, adapter: Adapter, domain: str, batches: Sequence[Batch], on_batch: Callable[[], None]) -> None:
    right, answers = [], []
    for answered in run(adapter, batches):
        answers.append(answered.logits.argmax(dim=1))
        right.append(answers[-1] == answered.batch.labels)
        row.seconds += answered.step.seconds_predict + answered.step.seconds_update
        row.images += len(answers[-1])
        if answered.step.guard:
            row.guard.append(f"{domain}, batch {answered.batch.number}: {answered.step.guard}")
        on_batch()
    row.right[domain], row.answers[domain] = torch.cat(right), torch.cat(answers)
