"""EATA: entropy minimisation on reliable, non-redundant images, with Fisher penalty (Niu et al., 2022; arXiv 2204.02610)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import masked_mean
from navia.methods.options import SGDOptions


@dataclass(frozen=True)
class EataOptions(SGDOptions):
    """Options of eata.

    Args:
        margin: Keep images with entropy below margin * ln C.
        redundancy: Keep images whose prediction has |cosine| below this to the running mean prediction.
        fisher: Weight of the Fisher penalty on the distance to the source parameters; 0 is ETA and needs no source.
    """

    margin: float = 0.4
    redundancy: float = 0.05
    fisher: float = 2000.0


@METHODS.register("eata")
class Eata(Method):
    """L = mean w H + fisher sum F (theta - theta_0)^2 over reliable, non-redundant images."""

    name = "eata"
    Options = EataOptions
    needs_fisher = True
    timing_options: ClassVar[Mapping[str, Any]] = {"margin": 1.1, "redundancy": 1.1}

    def _wants_source(self) -> bool:
        return bool(self.options.fisher > 0)

    def setup(self) -> None:
        self.memory["mean_prediction"] = None  # or zeros: no image was kept yet
        self._source = {name: p.detach().clone() for name, p in self.parameters.items()}

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"mean_prediction": (self.num_classes,)}

    def forward_step(self, images: Tensor) -> Prediction:
        return self.forward_with_grad(images)

    def update(self, prediction: Prediction) -> UpdateResult:
        logits = prediction.output.logits
        h, kept = self.reliable_entropy(logits, self.options.margin)
        p = logits.detach().softmax(dim=1)
        running = self.memory["mean_prediction"]
        running = torch.zeros_like(p[0]) if running is None else running
        first = (running == 0).all()
        kept = kept & (first | (F.cosine_similarity(running.unsqueeze(0), p, dim=1).abs() < self.options.redundancy))
        if self.none_kept(kept):
            return UpdateResult(kept=0)
        mean = masked_mean(p, kept)
        mean = torch.where(first, mean, 0.9 * running + 0.1 * mean)
        self.memory["mean_prediction"] = torch.where(kept.any(), mean, running)
        weight = torch.exp(self.options.margin * self.log_classes - h.detach())
        loss = masked_mean(weight * h, kept) + self._penalty()
        self.optimize(loss, where=kept.any())
        return UpdateResult(kept.sum(), loss)

    def _penalty(self) -> Tensor | float:
        """fisher * sum F (theta - theta_0)^2"""
        if self.options.fisher == 0:
            return 0.0
        assert self.source is not None
        terms = [
            (self.source.fisher[name] * (parameter - self._source[name]).square()).sum()
            for name, parameter in self.parameters.items()
        ]
        return self.options.fisher * torch.stack(terms).sum()
