"""What a run shows about itself without labels: discrepancy, changed predictions, predicted classes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter
from navia.bench.run import Answered
from navia.data.loader import Batch
from navia.methods.features import effective_classes
from navia.models.forward import forward

FEW = 3  # batches that the first and the last discrepancy are means of


@dataclass
class Observed:
    """Collected batch by batch, so that a run that is stopped and goes on collects the same.

    first, last, batches: discrepancies of the first and the last few batches by domain ("" for all), and of how many batches
    they are known. compared: images that the source model predicted too; changed: how many of them it predicts otherwise;
    predicted, source_predicted: how often each class was predicted on these, by the adapted and by the source model.
    """

    first: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, list[float]] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    changed: int = 0
    predicted: dict[int, int] = field(default_factory=dict)
    source_predicted: dict[int, int] = field(default_factory=dict)

    def add(self, answered: Answered) -> None:
        value, domains = answered.step.discrepancy, set(answered.batch.domains)
        if value is not None and math.isfinite(value):
            for domain in ("", *(domains if len(domains) == 1 else ())):
                self.batches[domain] = self.batches.get(domain, 0) + 1
                self.first[domain] = [*self.first.get(domain, []), value][:FEW]
                self.last[domain] = [*self.last.get(domain, []), value][-FEW:]
        if answered.source is not None:
            ours, theirs = answered.logits.argmax(dim=1), answered.source.argmax(dim=1)
            self.compared += len(ours)
            self.changed += int((ours != theirs).sum())
            self.predicted = dict(Counter(self.predicted) + Counter(ours.tolist()))
            self.source_predicted = dict(Counter(self.source_predicted) + Counter(theirs.tolist()))

    def discrepancy(self, domain: str = "") -> tuple[float, float] | None:
        """Mean of the first and of the last few batches (3, or half of fewer than 6); None: not known of two."""
        few = min(FEW, self.batches.get(domain, 0) // 2)
        return (sum(self.first[domain][:few]) / few, sum(self.last[domain][-few:]) / few) if few else None

    def comparison(self) -> "Comparison | None":
        if not self.compared:
            return None
        share = self.changed / self.compared
        return Comparison(self.compared, share, spread(self.predicted), spread(self.source_predicted))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        pairs = {domain or "all": self.discrepancy(domain) for domain in self.batches}
        compared = self.comparison()
        return {
            "discrepancy": {name: {"first": pair[0], "last": pair[1]} for name, pair in pairs.items() if pair},
            "source_model": compared and asdict(compared),
        }


@dataclass(frozen=True)
class Comparison:
    """images: those that the source model predicted too. changed: share of other predictions. effective_classes and
    source_effective_classes: of the adapted and the source model, on these images."""

    images: int
    changed: float
    effective_classes: float
    source_effective_classes: float


def spread(counts: dict[int, int]) -> float:
    """Effective number of classes: exp of the entropy of how often each was predicted; 1 when all predictions agree."""
    return float(effective_classes(torch.tensor(list(counts.values()), dtype=torch.float64)))


def spread_of(labels: Iterable[int]) -> float | None:
    """As `spread`, of predicted labels; None: there are none."""
    counts = Counter(labels)
    return spread(counts) if counts else None


def source_model(adapter: Adapter, total: int | None, count: int) -> Callable[[Batch], Tensor | None]:
    """Logits of the source model, without reduction, for `count` of the `total` batches of a stream, evenly spread and with
    the last; None for the others. Where nobody knows how many will come, for batches 1, 2, 4, 8, ..."""
    chosen = {(place + 1) * total // count - 1 for place in range(count)} if total is not None and count else set()

    @torch.no_grad()
    def predict(batch: Batch) -> Tensor | None:
        number = batch.number
        if number not in chosen and not (total is None and count and number & (number + 1) == 0):
            return None
        vit = adapter.source_vit
        return forward(vit, batch.images.to(vit.device), classes=adapter.method.classes).logits.float().cpu()

    return predict
