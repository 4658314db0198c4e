"""No adaptation: the source model, optionally with a shift of the final CLS feature, which needs no gradients."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.options import Options
from navia.methods.parameters import to_float32
from navia.models.base import ViT
from navia.models.forward import ForwardOutput, TokenEdits, head

_HORIZON = 128  # images over which `center` averages: fewer follow the classes of the batch, more lag behind changes


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

    With `center` the classifier reads z - n/(n+1) m instead of the final CLS feature z, where m is the mean of the stream:

        m <- m + B/(n+B) (mean_B z - m),    n <- min(n + B, 128)

    over batches of B images. A batch is part of its own m, so the first one profits too; the weight n/(n+1) keeps a part of
    a first batch of one image. `predict` uses m of the batches so far.
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
        if "stream_mean" not in self.memory:
            return super().prediction_edits()
        return TokenEdits(head_shift=_centering(self.memory["stream_mean"], self.memory["stream_count"]))

    @torch.no_grad()
    def forward_step(self, images: Tensor) -> Prediction:
        output = self.forward(images)
        if not self.options.center:
            return Prediction(self.shifted_logits(output), images, output)
        logits = head(self.vit, output.pooled, _centering(*self._stream_mean(output)), self.classes)
        return Prediction(logits, images, output)

    def update(self, prediction: Prediction) -> UpdateResult:
        if self.options.shift:
            self.activation_shift.update(to_float32(prediction.output.pooled[:, 0]).mean(dim=0))
        if self.options.center:
            self.memory["stream_mean"], self.memory["stream_count"] = self._stream_mean(prediction.output)
        return UpdateResult(kept=0)

    def predict_step(self, images: Tensor) -> Prediction:
        return self.forward_step(images)

    def skip_update(self, prediction: Prediction) -> UpdateResult:
        return self.update(prediction)

    def _stream_mean(self, output: ForwardOutput) -> tuple[Tensor, Tensor]:
        """m [D] and n [], this batch included."""
        features = to_float32(output.pooled[:, 0])
        mean, size = features.mean(dim=0), len(features)
        before, count = self.memory.get("stream_mean", mean), self.memory.get("stream_count", mean.new_zeros(()))
        return before + size / (count + size) * (mean - before), (count + size).clamp(max=_HORIZON)

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"running_feature": (self.vit.embed_dim,), "stream_mean": (self.vit.embed_dim,), "stream_count": ()}


def _centering(mean: Tensor, count: Tensor) -> Tensor:
    """-n/(n+1) m [D]"""
    return -count / (count + 1) * mean
