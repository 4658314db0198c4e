"""No adaptation: the model as it is, at most with FOA's activation shift."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.methods.base import METHODS, Learned, Look, Method, Options
from navia.methods.parameters import single
from navia.methods.shift import ActivationShift
from navia.models.base import ViT
from navia.models.forward import head


@dataclass(frozen=True)
class NoneOptions(Options):
    """shift: move the CLS feature by (source mean - running mean) before the classifier; needs source statistics."""

    shift: bool = False


@METHODS.register("none")
class NoAdaptation(Method):
    name = "none"
    Options = NoneOptions
    effort = 1
    answers_by = ("shift",)

    def _wants_source(self) -> bool:
        return bool(self.options.shift)

    @classmethod
    def tuned(cls, vit: ViT, options: Any) -> list[str]:
        return []

    @torch.no_grad()
    def look(self, images: Tensor) -> Look:
        outcome = self.walk(images)
        if not self.options.shift:
            return Look(outcome.logits, images, outcome)
        assert self.source is not None
        shift = ActivationShift(self.source, self.memory)
        return Look(head(self.vit, outcome.pooled, shift.vector(), self.classes), images, outcome)

    def learn(self, look: Look) -> Learned:
        if self.options.shift:
            assert self.source is not None
            assert look.outcome is not None
            ActivationShift(self.source, self.memory).update(single(look.outcome.pooled[:, 0]).mean(dim=0))
        return Learned(kept=0)

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        return {"running_feature": (self.vit.dim,)}

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self.look(images).logits
