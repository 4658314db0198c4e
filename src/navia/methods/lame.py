"""LAME: leave the model alone, correct the predictions so that neighbours agree (Boudiaf et al., 2022; arXiv 2201.05718)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Look, Method, Options
from navia.models.base import ViT


def affinity(features: Tensor, kind: str, neighbours: int, symmetric: bool) -> Tensor:
    """W [B, B] of unit features [B, D]: 'knn' 1 for the k nearest others; 'rbf' Gaussian of the distance, its width the
    mean distance to the k-th nearest (self counted); 'linear' inner product."""
    count = len(features)
    distance = torch.cdist(features, features)
    if kind == "linear":
        w = features @ features.T
    elif kind == "rbf":
        width = distance.topk(min(neighbours, count), largest=False).values[:, -1].mean()
        w = torch.exp(-distance.square() / (2 * width.square()).clamp(min=1e-12))
    else:
        nearest = distance.topk(min(neighbours + 1, count), largest=False).indices[:, 1:]  # the first is the image itself
        w = torch.zeros_like(distance).scatter_(1, nearest, 1.0)
    return (w + w.T) / 2 if symmetric else w


def laplacian_optimisation(probabilities: Tensor, w: Tensor, steps: int = 100) -> Tensor:
    """Fixed point of Y <- softmax(log p + W Y), stopped when the energy no longer changes. [B, C] -> [B, C]"""
    unary = -torch.log(probabilities + 1e-10)
    y = F.softmax(-unary, dim=1)
    previous = float("inf")
    for step in range(steps):
        pairwise = w @ y
        y = F.softmax(-unary + pairwise, dim=1)
        energy = (unary * y - pairwise * y + y * torch.log(y.clamp(min=1e-20))).sum().item()
        if step > 1 and abs(energy - previous) <= 1e-8 * abs(previous):
            break
        previous = energy
    return y


@dataclass(frozen=True)
class LameOptions(Options):
    """affinity: knn, rbf or linear; neighbours: k; symmetric: average the affinities of both directions."""

    affinity: str = "knn"
    neighbours: int = 5
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.affinity not in ("knn", "rbf", "linear"):
            raise SpecError(f"affinity must be knn, rbf or linear, got {self.affinity!r}")
        if self.neighbours < 1:
            raise SpecError("neighbours must be at least 1")


@METHODS.register("lame")
class Lame(Method):
    """Answers log-probabilities: their softmax is the corrected assignment."""

    name = "lame"
    Options = LameOptions
    effort = 1
    per_picture = False
    answers_by = ("affinity", "neighbours", "symmetric")

    @classmethod
    def tuned(cls, vit: ViT, options: Any) -> list[str]:
        return []

    @torch.no_grad()
    def look(self, images: Tensor) -> Look:
        outcome = self.walk(images)
        features = F.normalize(outcome.pooled[:, 0].float(), dim=1)
        o = self.options
        w = affinity(features, o.affinity, o.neighbours, o.symmetric)
        y = laplacian_optimisation(outcome.logits.float().softmax(dim=1), w)
        return Look(y.clamp(min=1e-30).log(), images, outcome)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.look(images).logits
