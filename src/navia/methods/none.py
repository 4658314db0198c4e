"""No adaptation: the source model, optionally with a shift of the final CLS feature, which needs no gradients."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import StreamMean
from navia.methods.options import Options
from navia.methods.parameters import to_float32
from navia.models.base import ViT
from navia.models.forward import ForwardOutput, TokenEdits, head


@dataclass(frozen=True)
class NoneOptions(Options):
    """Options of none.

    Args:
        shift: Move the final CLS feature by (source mean - running mean) before the classifier, as FOA does, with the mean
            of earlier batches; needs source statistics.
        center: Subtract the running mean of the final CLS feature, this batch included, before the classifier; needs no
            source statistics.
    """

    shift: bool = False
    center: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift and self.center:
            raise SpecError("shift and center both move the final CLS feature: give one of them")


@METHODS.register("none")
class NoAdaptation(Method):
    """The source model.

    With `center` the classifier reads the final CLS feature minus the mean of the stream (`StreamMean`). A batch is part of
    its own mean, so the first one profits too; `predict` uses the mean of the batches so far.
    """

    name = "none"
    Options = NoneOptions
    relative_cost = 1
    output_options = ("shift", "center")

    def _wants_source(self) -> bool:
        return bool(self.options.shift)

    @classmethod
    def tuned_names(cls, vit: ViT, options: Any) -> list[str]:
        return []

    @property
    def is_static(self) -> bool:
        return not (self.options.shift or self.options.center)

    def prediction_edits(self) -> TokenEdits:
        return TokenEdits(head_shift=StreamMean(self.memory).shift()) if self.options.center else super().prediction_edits()

    @torch.no_grad()
    def forward_step(self, images: Tensor) -> Prediction:
        output = self.forward(images)
        if not self.options.center:
            return Prediction(self.shifted_logits(output), images, output)
        shift = StreamMean(self.memory).shift(_mean_feature(output), len(images))
        return Prediction(head(self.vit, output.pooled, shift, self.classes), images, output)

    def update(self, prediction: Prediction) -> UpdateResult:
        if self.options.shift:
            self.activation_shift.update(_mean_feature(prediction.output))
        if self.options.center:
            StreamMean(self.memory).update(_mean_feature(prediction.output), len(prediction.images))
        return UpdateResult(kept=0)

    def predict_step(self, images: Tensor) -> Prediction:
        return self.forward_step(images)

    def skip_update(self, prediction: Prediction) -> UpdateResult:
        return self.update(prediction)

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"running_feature": (self.vit.embed_dim,), "stream_mean": (self.vit.embed_dim,), "stream_count": ()}


def _mean_feature(output: ForwardOutput) -> Tensor:
    """Mean of the final CLS feature over the batch [D]."""
    return to_float32(output.pooled[:, 0]).mean(dim=0)
