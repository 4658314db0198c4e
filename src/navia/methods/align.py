"""Align: tune the norms by entropy and the distance of the CLS statistics to the source's, Eq. 7 of the NAVIA paper.

This is the framework of the paper's ToMe, EViT and ToFu rows; with FOA's activation shift it is FOA-BP, and NAVIA adds its
two augmentations to it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from navia.methods.base import METHODS, Learned, Look, Method, Sgd
from navia.methods.losses import discrepancy, entropy
from navia.methods.moments import batch_moments
from navia.methods.recent import Recent, check_recent
from navia.methods.shift import ActivationShift
from navia.models.forward import head


@dataclass(frozen=True)
class AlignOptions(Sgd):
    """weight: lambda of the discrepancy. shift: FOA's activation shift on the answers.
    enough: batches with fewer images than this lend recent CLS features for their statistics, and no update is made until
    so many have been seen. recent: how many features are remembered for that."""

    lr: float = 5e-3
    weight: float = 30.0
    shift: bool = False
    enough: int = 8
    recent: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_recent(self.enough, self.recent)


@METHODS.register("align")
class Align(Method):
    name = "align"
    Options = AlignOptions
    needs_source = True
    distributable = True
    answers_by: ClassVar[tuple[str, ...]] = ("shift",)

    def look(self, images: Tensor) -> Look:
        look = self.look_with_gradient(images, features=True)
        look.logits = self._answer(look)
        return look

    def learn(self, look: Look) -> Learned:
        """L = mean H + lambda (MSE(std_t, std_S) + MSE(mean_t, mean_S)) over all layers and dimensions."""
        assert look.outcome is not None
        assert look.outcome.features is not None
        assert self.source is not None
        features = look.outcome.features
        count = self.world.count(len(features))
        if self.options.shift:
            self._shift.update(self.world.total_(features[:, -1].detach().sum(dim=0)) / count)
        buffer = Recent(self.memory, self.options.enough, self.options.recent)
        recent = buffer.lent(count)
        buffer.add(features, count)
        seen = count if recent is None else self.world.count(len(features) + len(recent))  # the same on every process
        if not buffer.suffice(seen):
            return Learned(kept=0, note="too few images for statistics yet")
        mean, std = batch_moments(features, self.world, recent)
        distance = discrepancy(mean, std, self.source.mean, self.source.std)
        surprise = entropy(look.outcome.logits).sum() / count
        self.descend(surprise + self.options.weight * distance / self.world.size)
        total = self.world.total_(surprise.detach()) + self.options.weight * distance.detach()
        return Learned(len(features), total.item(), distance.item())

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        outcome = self.walk(images)
        return self._answer(Look(outcome.logits, images, outcome))

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        return {"recent": (None, self.vit.depth, self.vit.dim), "running_feature": (self.vit.dim,)}

    @property
    def _shift(self) -> ActivationShift:
        assert self.source is not None
        return ActivationShift(self.source, self.memory)

    @torch.no_grad()
    def _answer(self, look: Look) -> Tensor:
        assert look.outcome is not None
        vector = self._shift.vector() if self.options.shift else None
        if vector is None:
            return look.outcome.logits.detach()
        return head(self.vit, look.outcome.pooled.detach(), vector, self.classes)
