"""Tent: minimise the entropy of the predictions by tuning the LayerNorms (Wang et al., 2021; arXiv 2006.10726)."""

from torch import Tensor

from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import entropy
from navia.methods.options import SGDOptions


@METHODS.register("tent")
class Tent(Method):
    """L = mean H."""

    name = "tent"
    Options = SGDOptions
    supports_distributed = True

    def forward_step(self, images: Tensor) -> Prediction:
        return self.forward_with_grad(images)

    def update(self, prediction: Prediction) -> UpdateResult:
        count = self.distributed.count(len(prediction.images))
        loss = entropy(prediction.output.logits).sum() / count
        self.optimize(loss)
        return UpdateResult(kept=len(prediction.images), loss=self.distributed.sum_(loss.detach()))
