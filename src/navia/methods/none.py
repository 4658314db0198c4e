"""No adaptation: the source model, optionally with FOA's activation shift."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.options import Options
from navia.methods.parameters import to_float32
from navia.models.base import ViT


@dataclass(frozen=True)
class NoneOptions(Options):
    """Options of none.

    Args:
        shift: Move the final CLS feature by (source mean - running mean) before the classifier; needs source statistics.
    """

    shift: bool = False


@METHODS.register("none")
class NoAdaptation(Method):
    """The source model."""

    name = "none"
    Options = NoneOptions
    relative_cost = 1
    output_options = ("shift",)

    def _wants_source(self) -> bool:
        return bool(self.options.shift)

    @classmethod
    def tuned_names(cls, vit: ViT, options: Any) -> list[str]:
        return []

    @torch.no_grad()
    def forward_step(self, images: Tensor) -> Prediction:
        output = self.forward(images)
        return Prediction(self.shifted_logits(output), images, output)

    def update(self, prediction: Prediction) -> UpdateResult:
        if self.options.shift:
            self.activation_shift.update(to_float32(prediction.output.pooled[:, 0]).mean(dim=0))
        return UpdateResult(kept=0)

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"running_feature": (self.vit.embed_dim,)}
