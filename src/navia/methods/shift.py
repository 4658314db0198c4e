"""FOA's activation shift: move the CLS feature that the classifier reads towards where the source's lie."""

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor

from navia.adaptation.statistics import SourceStatistics


class ActivationShift:
    """d = mu_S - m, with m the running mean (0.9 / 0.1) of the stream's final CLS features, kept in `memory`."""

    def __init__(self, source: SourceStatistics, memory: MutableMapping[str, Any]) -> None:
        self.target = source.mean[-1]
        self.memory = memory

    def vector(self) -> Tensor | None:
        """d [D]; None before the first batch."""
        running = self.memory.get("running_feature")
        return None if running is None else self.target - running

    def update(self, batch_mean: Tensor) -> None:
        running = self.memory.get("running_feature")
        batch_mean = batch_mean.detach()
        self.memory["running_feature"] = batch_mean if running is None else 0.9 * running + 0.1 * batch_mean
