"""EATA: entropy minimisation on reliable, non-redundant samples, anchored by Fisher weights (Niu et al., 2022;
arXiv 2204.02610)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.methods.base import METHODS, Learned, Look, Method, Sgd


@dataclass(frozen=True)
class EataOptions(Sgd):
    """margin: keep samples with entropy below margin * ln C. redundancy: and |cosine| to the running mean prediction
    below this. fisher: weight of the anchor to the source parameters; 0 is ETA and needs no source."""

    margin: float = 0.4
    redundancy: float = 0.05
    fisher: float = 2000.0


@METHODS.register("eata")
class Eata(Method):
    name = "eata"
    Options = EataOptions
    needs_fisher = True

    def _wants_source(self) -> bool:
        return bool(self.options.fisher > 0)

    def start(self) -> None:
        self.memory["mean_prediction"] = None
        self._source = {name: p.detach().clone() for name, p in self.parameters.items()}

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        return {"mean_prediction": (self.num_classes,)}

    def look(self, images: Tensor) -> Look:
        return self.look_with_gradient(images)

    def learn(self, look: Look) -> Learned:
        assert look.outcome is not None
        logits = look.outcome.logits
        h, kept = self.reliable(logits, self.options.margin)
        p = logits.detach().softmax(dim=1)
        running = self.memory["mean_prediction"]
        if running is not None:
            kept = kept & (F.cosine_similarity(running.unsqueeze(0), p, dim=1).abs() < self.options.redundancy)
        if not bool(kept.any()):
            return Learned(kept=0)
        mean = p[kept].mean(dim=0)
        self.memory["mean_prediction"] = mean if running is None else 0.9 * running + 0.1 * mean
        weight = torch.exp(self.options.margin * self.log_classes - h[kept].detach())
        loss = (weight * h[kept]).mean() + self._anchor()
        self.descend(loss)
        return Learned(int(kept.sum()), loss.item())

    def _anchor(self) -> Tensor | float:
        """fisher * sum F (theta - theta_0)^2"""
        if self.options.fisher == 0:
            return 0.0
        assert self.source is not None
        apart = [
            (self.source.fisher[name] * (parameter - self._source[name]).square()).sum()
            for name, parameter in self.parameters.items()
        ]
        return self.options.fisher * torch.stack(apart).sum()
