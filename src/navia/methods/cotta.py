"""CoTTA: learn from an averaged teacher, restore some weights at random (Wang et al., 2022; arXiv 2203.13591)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.methods.augment import augment
from navia.methods.base import METHODS, Learned, Look, Method, Sgd
from navia.methods.losses import symmetric_cross_entropy
from navia.methods.parameters import private_copy, weights_and_biases
from navia.models.base import ViT
from navia.models.forward import run


@dataclass(frozen=True)
class CottaOptions(Sgd):
    """average: of the teacher. restore: probability that a weight returns to the source after a step.
    unsure: below this mean confidence of the source model the teacher averages over `augmentations` views."""

    lr: float = 5e-3
    average: float = 0.999
    restore: float = 0.001
    unsure: float = 0.1
    augmentations: int = 32


@METHODS.register("cotta")
class Cotta(Method):
    name = "cotta"
    Options = CottaOptions
    effort = 20  # 6 where the source is sure of every picture, 36 where of none

    @classmethod
    def tuned(cls, vit: ViT, options: CottaOptions) -> list[str]:
        return weights_and_biases(vit)

    @classmethod
    def forwards(cls, vit: ViT, options: CottaOptions) -> int:
        return 3  # student, source and teacher; the teacher makes more of them where the source is unsure

    def start(self) -> None:
        self.anchor = private_copy(self.vit, self.parameters)  # weights of its own: it must not follow the student
        self.teacher = private_copy(self.vit, self.parameters)
        anchor = dict(self.anchor.model.named_parameters())
        self.source_weights = {name: anchor[name].detach() for name in self.parameters}
        device = self.vit.cls_token.device
        # as many numbers as the model has weights, every step: drawn where the weights are
        self.device_generator = None if device.type == "cpu" else torch.Generator(device).manual_seed(self.seed)

    @property
    def answering(self) -> ViT:
        return self.teacher

    def look(self, images: Tensor) -> Look:
        look = self.look_with_gradient(images)
        look.logits = self._teach(images)
        return look

    def learn(self, look: Look) -> Learned:
        assert look.outcome is not None
        loss = symmetric_cross_entropy(look.outcome.logits, look.logits).mean()
        self.descend(loss)
        self._average_teacher()
        self._restore_some()
        return Learned(len(look.images), loss.item())

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return run(self.teacher, images, self.reduce, classes=self.classes, breathe=self.breathe).logits

    @torch.no_grad()
    def _teach(self, images: Tensor) -> Tensor:
        confidence = (
            run(self.anchor, images, self.reduce, classes=self.classes, breathe=self.breathe)
            .logits.softmax(dim=1)
            .amax(dim=1)
            .mean()
        )
        if confidence >= self.options.unsure or self.options.augmentations == 0:
            return self.predict(images)
        total = torch.zeros((), device=images.device)
        for _ in range(self.options.augmentations):
            total = total + self.predict(augment(images, self.vit.preprocessing, self.generator, self.device_generator))
        return total / self.options.augmentations

    @torch.no_grad()
    def _average_teacher(self) -> None:
        teacher = dict(self.teacher.model.named_parameters())
        pairs = [(teacher[name], student) for name, student in self.parameters.items()]
        torch._foreach_mul_([t for t, _ in pairs], self.options.average)
        torch._foreach_add_([t for t, _ in pairs], [s for _, s in pairs], alpha=1 - self.options.average)

    @torch.no_grad()
    def _restore_some(self) -> None:
        """Each scalar of the student goes back to the source with a small probability."""
        if self.options.restore == 0:
            return
        generator = self.device_generator or self.generator
        for name, parameter in self.parameters.items():
            drawn = torch.rand(parameter.shape, generator=generator, device=parameter.device)
            parameter.copy_(torch.where(drawn < self.options.restore, self.source_weights[name], parameter))

    def tensors(self) -> dict[str, Tensor]:
        teacher = dict(self.teacher.model.named_parameters())
        return super().tensors() | {f"teacher.{name}": teacher[name].detach() for name in self.parameters}

    def tensors_in(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        return super().tensors_in(state) | state["teacher"]

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        own = {name: value for name, value in tensors.items() if not name.startswith("teacher.")}
        super().load_tensors(own)
        teacher = dict(self.teacher.model.named_parameters())
        for name in tensors.keys() - own.keys():
            teacher[name.removeprefix("teacher.")].copy_(tensors[name])

    def state(self) -> dict[str, Any]:
        teacher = {name: value.clone() for name, value in self.tensors().items() if name.startswith("teacher.")}
        drawn = None if self.device_generator is None else self.device_generator.get_state()
        return super().state() | {"teacher": teacher, "device_generator": drawn}

    def load_state(self, state: dict[str, Any]) -> None:
        """To the bit on the kind of device that it was taken on; on another the random numbers start anew."""
        super().load_state(state)
        self.load_tensors(state["teacher"])
        if self.device_generator is not None:
            drawn = state.get("device_generator")
            self.device_generator.manual_seed(self.seed)
            if drawn is not None:
                self.device_generator.set_state(drawn)
