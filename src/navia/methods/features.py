"""Losses, moments of CLS features, the feature buffer of small batches, and the activation shift."""

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import SpecError

if TYPE_CHECKING:
    from navia.adaptation.distributed import Distributed
    from navia.adaptation.statistics import SourceStatistics


def entropy(logits: Tensor) -> Tensor:
    """H = -sum_c p_c log p_c of p = softmax(logits) for each row [B, C] -> [B], in nats."""
    log_p = F.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def discrepancy(mean: Tensor, std: Tensor, source_mean: Tensor, source_std: Tensor) -> Tensor:
    """MSE(std, std_S) + MSE(mean, mean_S) of CLS statistics [L, D] over all layers and dimensions (Eq. 7)."""
    return F.mse_loss(std, source_std) + F.mse_loss(mean, source_mean)


def symmetric_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """-1/2 p_t log p_s - 1/2 p_s log p_t of each row of logits [B, C] -> [B] (CoTTA)."""
    log_s, log_t = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    return -0.5 * (log_t.exp() * log_s).sum(dim=1) - 0.5 * (log_s.exp() * log_t).sum(dim=1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the rows of values [B, ...] where mask [B] is true; 0 if there are none. values[mask] would wait for a GPU."""
    mask = mask.reshape(-1, *(1 for _ in values.shape[1:]))
    return torch.where(mask, values, 0.0).sum(dim=0) / mask.sum().clamp(min=1)


def effective_classes(counts: Sequence[float] | np.ndarray) -> float:
    """exp of the entropy of how often each class occurs [C]: 1 if all predictions agree, C if all classes are equally
    frequent."""
    p = np.asarray(counts, dtype=np.float64)
    p = p[p > 0] / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def batch_moments(
    features: Tensor, distributed: "Distributed | None" = None, buffer: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and unbiased std [L, D] of features [B, L, D] over the batch of all processes, differentiable.

    Args:
        features: CLS features of this process's share of the batch.
        distributed: The processes that adapt together.
        buffer: More features [M, L, D], without gradient.
    """
    spread = distributed if distributed is not None and distributed.enabled else None
    if spread is None and buffer is None:
        return features.mean(dim=0), features.std(dim=0)
    rows = features if buffer is None else torch.cat([buffer, features])
    count, total = len(rows), rows.sum(dim=0)
    if spread is not None:
        count, total = spread.count(count), spread.sum(total)
    mean = total / count
    squares = (rows - mean).square().sum(dim=0)
    variance = (squares if spread is None else spread.sum(squares)) / (count - 1)
    return mean, variance.clamp(min=1e-12).sqrt()  # the square root has no gradient at zero, where all rows are equal


class StreamMoments:
    """Mean and unbiased std over batches that are seen once, merged pairwise in float64 (Chan et al., 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None  # sum of squared deviations from the mean

    def add(self, features: Tensor) -> None:
        """features [B, ...]"""
        rows = features.double()
        count, mean = len(rows), rows.mean(dim=0)
        squares = (rows - mean).square().sum(dim=0)
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, difference = self.count + count, mean - self.mean
        self.mean = self.mean + difference * (count / total)
        self.squares = self.squares + squares + difference.square() * (self.count * count / total)
        self.count = total

    def result(self) -> tuple[Tensor, Tensor]:
        """Mean and std in float32."""
        assert self.mean is not None
        assert self.squares is not None
        return self.mean.float(), (self.squares / (self.count - 1)).sqrt().float()


class FeatureBuffer:
    """CLS features of the last small batches, kept in `memory`. A batch is small below `min_batch` images."""

    def __init__(self, memory: MutableMapping[str, Any], min_batch: int, size: int) -> None:
        self.memory = memory
        self.min_batch = min_batch
        self.size = size

    def get(self, count: int) -> Tensor | None:
        """Features [M, L, D] that join a batch of `count` images; None: it is large enough, or the buffer is empty."""
        return self.memory.get("recent") if count < self.min_batch else None

    def is_enough(self, count: int) -> bool:
        """Whether statistics may be computed from `count` images, buffered ones included."""
        return count >= max(2, self.min_batch)

    def add(self, features: Tensor, count: int) -> None:
        """Add this process's features [B, L, D] of a batch of `count` images, if it is a small one."""
        if count < self.min_batch:
            before = self.memory.get("recent", features[:0])
            joined = torch.cat([before, features]).detach()
            self.memory["recent"] = joined[max(0, len(joined) - self.size) :]


def check_buffer(min_batch: int, buffer_size: int) -> None:
    """Raise SpecError if a stream of single images could never reach `min_batch`."""
    if buffer_size + 1 < min_batch:
        raise SpecError(
            f"buffer_size={buffer_size} and one image are fewer than min_batch={min_batch}: small batches would never"
            f" adapt; raise buffer_size to {min_batch - 1} or lower min_batch"
        )


class ActivationShift:
    """FOA's shift of the final CLS feature: d = mu_S - m, with m the running mean (0.9 / 0.1) of the stream's features."""

    def __init__(self, source: "SourceStatistics", memory: MutableMapping[str, Any]) -> None:
        self.target = source.mean[-1]
        self.memory = memory

    def vector(self) -> Tensor | None:
        """d [D]; None before the first batch."""
        running = self.memory.get("running_feature")
        return None if running is None else self.target - running

    def update(self, batch_mean: Tensor) -> None:
        """Add a batch's mean feature [D] to the running mean."""
        running = self.memory.get("running_feature")
        batch_mean = batch_mean.detach()
        self.memory["running_feature"] = batch_mean if running is None else 0.9 * running + 0.1 * batch_mean


class StreamMean:
    """Running mean m of the final CLS feature z over about the last 128 images, kept in `memory`, and z without it:

        m <- m + B/(n+B) (mean_B z - m),    n <- min(n + B, 128),    z <- z - n/(n+1) m

    over batches of B images. The weight n/(n+1) keeps a part of a first batch of one image.
    """

    HORIZON = 128  # images: fewer follow the classes of the batch, more lag behind changes

    def __init__(self, memory: MutableMapping[str, Any]) -> None:
        self.memory = memory

    def shift(self, batch_mean: Tensor | None = None, size: int = 0) -> Tensor | None:
        """-n/(n+1) m [D], with a batch of `size` images and mean feature [D] included; None: nothing seen yet."""
        if batch_mean is None:
            if "stream_mean" not in self.memory:
                return None
            mean, count = self.memory["stream_mean"], self.memory["stream_count"]
        else:
            mean, count = self._including(batch_mean, size)
        return -count / (count + 1) * mean

    def update(self, batch_mean: Tensor, size: int) -> None:
        """Add a batch of `size` images and mean feature [D]."""
        self.memory["stream_mean"], self.memory["stream_count"] = self._including(batch_mean.detach(), size)

    def _including(self, batch_mean: Tensor, size: int) -> tuple[Tensor, Tensor]:
        before, count = self.memory.get("stream_mean", batch_mean), self.memory.get("stream_count", batch_mean.new_zeros(()))
        return before + size / (count + size) * (batch_mean - before), (count + size).clamp(max=self.HORIZON)
