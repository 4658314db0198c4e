"""Align: tune the LayerNorms by entropy and the distance of the CLS statistics to the source's (Eq. 7 of the NAVIA paper).

This is the framework of the paper's ToMe, EViT and ToFu rows. With FOA's activation shift it is FOA-BP; NAVIA adds its two
augmentations to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import FeatureBuffer, StreamMean, batch_moments, check_buffer, discrepancy, entropy
from navia.methods.options import SGDOptions
from navia.models.forward import head

_TOO_FEW = "too few images for statistics yet"
BUFFER_NAMES = {"weight": "discrepancy_weight", "enough": "min_batch", "recent": "buffer_size"}


@dataclass(frozen=True)
class AlignOptions(SGDOptions):
    """Options of align.

    Args:
        lr: Learning rate of the LayerNorms.
        discrepancy_weight: Weight lambda of the discrepancy to the source.
        shift: Apply FOA's activation shift to the predictions.
        min_batch: Smaller batches borrow features of recent images for their statistics; no update before so many images.
        buffer_size: Number of features kept for that.
        center_skipped: On batches that `adapt_every` leaves out, subtract the running mean of the final CLS feature before
            the classifier, as none does with its option center.
    """

    renamed: ClassVar[Mapping[str, str]] = BUFFER_NAMES

    lr: float = 5e-3
    discrepancy_weight: float = 30.0
    shift: bool = False
    min_batch: int = 8
    buffer_size: int = 32
    center_skipped: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_buffer(self.min_batch, self.buffer_size)
        if self.shift and self.center_skipped:
            raise SpecError("shift and center_skipped both move the final CLS feature: give one of them")


@METHODS.register("align")
class Align(Method):
    """L = mean H + lambda (MSE(std_t, std_S) + MSE(mean_t, mean_S)) over all layers and dimensions."""

    name = "align"
    Options = AlignOptions
    needs_source = True
    supports_distributed = True
    uses_features = True
    output_options: ClassVar[tuple[str, ...]] = ("shift",)

    def forward_step(self, images: Tensor) -> Prediction:
        prediction = self.forward_with_grad(images, features=True)
        prediction.logits = self.shifted_logits(prediction.output)
        return prediction

    def update(self, prediction: Prediction) -> UpdateResult:
        count, distance = self._distance(prediction)
        if distance is None:
            return UpdateResult(kept=0, note=_TOO_FEW)
        mean_entropy = entropy(prediction.output.logits).sum() / count
        weight = self.options.discrepancy_weight
        self.optimize(mean_entropy + weight * distance / self.distributed.size)
        loss = self.distributed.sum_(mean_entropy.detach()) + weight * distance.detach()
        return UpdateResult(len(prediction.images), loss, distance)

    @torch.no_grad()
    def predict_step(self, images: Tensor) -> Prediction:
        prediction = super().predict_step(images)
        if self.options.center_skipped:
            output = prediction.output
            assert output.features is not None
            shift = StreamMean(self.memory).shift(*self._mean_feature(output.features))
            prediction.logits = head(self.vit, output.pooled, shift, self.classes)
        return prediction

    @torch.no_grad()
    def skip_update(self, prediction: Prediction) -> UpdateResult:
        distance = self._distance(prediction)[1]
        return UpdateResult(kept=0, note=_TOO_FEW) if distance is None else UpdateResult(0, discrepancy=distance)

    def _distance(self, prediction: Prediction) -> tuple[int, Tensor | None]:
        """Number of images of the batch, and the discrepancy to the source; None: too few images for statistics. The running
        mean of the activation shift and the buffer of small batches take in the batch."""
        assert prediction.output.features is not None
        assert self.source is not None
        features = prediction.output.features
        count = self.distributed.count(len(features))
        if self.options.shift:
            self.activation_shift.update(self._mean_feature(features)[0])
        if self.options.center_skipped:
            StreamMean(self.memory).update(*self._mean_feature(features))
        buffer = FeatureBuffer(self.memory, self.options.min_batch, self.options.buffer_size)
        buffered = buffer.get(count)
        buffer.add(features, count)
        total = count if buffered is None else self.distributed.count(len(features) + len(buffered))
        if not buffer.is_enough(total):
            return count, None
        mean, std = batch_moments(features, self.distributed, buffered)
        return count, discrepancy(mean, std, self.source.mean, self.source.std)

    def _mean_feature(self, features: Tensor) -> tuple[Tensor, int]:
        """Mean of the final CLS feature over the batch of all processes [D], and its number of images."""
        count = self.distributed.count(len(features))
        return self.distributed.sum_(features[:, -1].detach().sum(dim=0)) / count, count

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        dim = self.vit.embed_dim
        buffers = {"recent": (None, self.vit.depth, dim), "running_feature": (dim,)}
        return buffers | {"stream_mean": (dim,), "stream_count": ()}
