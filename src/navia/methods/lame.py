"""LAME: keep the model, correct the predictions so that similar images agree (Boudiaf et al., 2022; arXiv 2201.05718)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Method, Prediction
from navia.methods.options import Options
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


def laplacian_optimisation(probabilities: Tensor, w: Tensor, steps: int = 100, reads_synchronize: bool = False) -> Tensor:
    """Fixed point of Y <- softmax(log p + W Y), stopped when the energy no longer changes. [B, C] -> [B, C]

    reads_synchronize: make all steps and keep Y from where it would have stopped: reading the energy waits for a GPU."""
    unary = -torch.log(probabilities + 1e-10)
    y = F.softmax(-unary, dim=1)
    previous, stopped = torch.full_like(y[0, 0], torch.inf), torch.zeros_like(y[0, 0], dtype=torch.bool)
    for step in range(steps):
        pairwise = w @ y
        y = torch.where(stopped, y, F.softmax(-unary + pairwise, dim=1))
        energy = (unary * y - pairwise * y + y * torch.log(y.clamp(min=1e-20))).sum()
        if step > 1:
            stopped = stopped | ((energy - previous).abs() <= 1e-8 * previous.abs())
        if not reads_synchronize and bool(stopped):
            break
        previous = energy
    return y


@dataclass(frozen=True)
class LameOptions(Options):
    """Options of lame.

    Args:
        affinity: How similar two images are.
        neighbours: Number of nearest neighbours k.
        symmetric: Average the affinities of both directions.
    """

    affinity: Literal["knn", "rbf", "linear"] = "knn"
    neighbours: int = 5
    symmetric: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours < 1:
            raise SpecError("neighbours must be at least 1")


@METHODS.register("lame")
class Lame(Method):
    """Corrects the predictions of a batch; returns log-probabilities."""

    name = "lame"
    Options = LameOptions
    relative_cost = 1
    per_image = False
    output_options = ("affinity", "neighbours", "symmetric")

    @classmethod
    def tuned_names(cls, vit: ViT, options: Any) -> list[str]:
        return []

    @property
    def is_static(self) -> bool:
        return True

    @torch.no_grad()
    def forward_step(self, images: Tensor) -> Prediction:
        output = self.forward(images)
        features = F.normalize(output.pooled[:, 0].float(), dim=1)
        o = self.options
        w = affinity(features, o.affinity, o.neighbours, o.symmetric)
        y = laplacian_optimisation(output.logits.float().softmax(dim=1), w, reads_synchronize=self.vit.reads_synchronize)
        return Prediction(y.clamp(min=1e-30).log(), images, output)

    def predict_step(self, images: Tensor) -> Prediction:
        return self.forward_step(images)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.forward_step(images).logits
