"""Mean and standard deviation of CLS features: of a batch (differentiable, over processes) and of a stream (one pass)."""

import torch
from torch import Tensor

from navia.adaptation.distributed import World


def batch_moments(features: Tensor, world: World | None = None, recent: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and unbiased std [L, D] of features [B, L, D] over the global batch, joined by `recent` [M, L, D], which
    carries no gradient."""
    world = world or World()
    if not world.distributed and recent is None:
        return features.mean(dim=0), features.std(dim=0)
    rows = features if recent is None else torch.cat([recent, features])
    count = world.count(len(rows))
    mean = world.total(rows.sum(dim=0)) / count
    variance = world.total((rows - mean).square().sum(dim=0)) / (count - 1)
    return mean, variance.clamp(min=1e-12).sqrt()  # at zero, where all rows are equal, a root has no gradient


class StreamMoments:
    """Mean and unbiased std over batches that are seen once, by pairwise merging in float64 (Chan et al., 1979)."""

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
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.squares = self.squares + squares + apart.square() * (self.count * count / total)
        self.count = total

    def result(self) -> tuple[Tensor, Tensor]:
        assert self.mean is not None
        assert self.squares is not None
        return self.mean.float(), (self.squares / (self.count - 1)).sqrt().float()
