"""Tent: lower the entropy of the predictions by tuning the norms (Wang et al., 2021; arXiv 2006.10726)."""

from torch import Tensor

from navia.methods.base import METHODS, Learned, Look, Method, Sgd
from navia.methods.losses import entropy


@METHODS.register("tent")
class Tent(Method):
    name = "tent"
    Options = Sgd
    distributable = True

    def look(self, images: Tensor) -> Look:
        return self.look_with_gradient(images)

    def learn(self, look: Look) -> Learned:
        assert look.outcome is not None
        count = self.world.count(len(look.images))
        loss = entropy(look.outcome.logits).sum() / count
        self.descend(loss)
        return Learned(kept=len(look.images), loss=self.world.total_(loss.detach()).item())
