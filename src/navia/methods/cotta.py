"""CoTTA: learn from an averaged teacher, restore some weights at random (Wang et al., 2022; arXiv 2203.13591)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from navia.data.preprocessing import Preprocessing
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import symmetric_cross_entropy
from navia.methods.options import SGDOptions
from navia.methods.parameters import private_copy, weights_and_biases
from navia.models.base import ViT


@dataclass(frozen=True)
class CottaOptions(SGDOptions):
    """Options of cotta.

    Args:
        lr: Learning rate.
        ema_decay: Decay of the teacher's moving average.
        restore: Probability that a weight returns to the source after a step.
        confidence_threshold: Below this mean confidence of the source model the teacher averages over augmented views.
        augmentations: Number of these views.
    """

    renamed: ClassVar[Mapping[str, str]] = {"average": "ema_decay", "unsure": "confidence_threshold"}

    lr: float = 5e-3
    ema_decay: float = 0.999
    restore: float = 0.001
    confidence_threshold: float = 0.1
    augmentations: int = 32


@METHODS.register("cotta")
class Cotta(Method):
    """The student learns from a teacher, its moving average, which predicts."""

    name = "cotta"
    Options = CottaOptions
    relative_cost = 20  # between 6 (no augmented views) and 36 (always)
    timing_options: ClassVar[Mapping[str, Any]] = {"confidence_threshold": 0.0}  # no augmented views, as in `num_forwards`

    @classmethod
    def tuned_names(cls, vit: ViT, options: CottaOptions) -> list[str]:
        return weights_and_biases(vit)

    @classmethod
    def num_forwards(cls, vit: ViT, options: CottaOptions) -> int:
        return 3  # student, source and teacher; augmented views are not counted

    def setup(self) -> None:
        self.source_vit = private_copy(self.vit, self.parameters)
        self.teacher = private_copy(self.vit, self.parameters)
        source = dict(self.source_vit.model.named_parameters())
        self.source_weights = {name: source[name].detach() for name in self.parameters}
        device = self.vit.device
        # one random number per weight and step: drawn on the weights' device
        self.device_generator = None if device.type == "cpu" else torch.Generator(device).manual_seed(self.seed)

    @property
    def prediction_vit(self) -> ViT:
        return self.teacher

    def forward_step(self, images: Tensor) -> Prediction:
        prediction = self.forward_with_grad(images)
        prediction.logits = self._teacher_logits(images)
        return prediction

    def update(self, prediction: Prediction) -> UpdateResult:
        loss = symmetric_cross_entropy(prediction.output.logits, prediction.logits).mean()
        self.optimize(loss)
        self._average_teacher()
        self._restore_weights()
        return UpdateResult(len(prediction.images), loss)

    @torch.no_grad()
    def _teacher_logits(self, images: Tensor) -> Tensor:
        confidence = self.forward(images, vit=self.source_vit).logits.softmax(dim=1).amax(dim=1).mean()
        if self.options.augmentations == 0 or confidence >= self.options.confidence_threshold:
            return self.predict(images)
        total = torch.zeros((), device=images.device)
        for _ in range(self.options.augmentations):
            total = total + self.predict(augment(images, self.vit.preprocessing, self.generator, self.device_generator))
        return total / self.options.augmentations

    @torch.no_grad()
    def _average_teacher(self) -> None:
        teacher = dict(self.teacher.model.named_parameters())
        pairs = [(teacher[name], student) for name, student in self.parameters.items()]
        torch._foreach_mul_([t for t, _ in pairs], self.options.ema_decay)
        torch._foreach_add_([t for t, _ in pairs], [s for _, s in pairs], alpha=1 - self.options.ema_decay)

    @torch.no_grad()
    def _restore_weights(self) -> None:
        """Each weight of the student returns to the source with probability `restore`."""
        if self.options.restore == 0:
            return
        generator = self.device_generator or self.generator
        for name, parameter in self.parameters.items():
            drawn = torch.rand(parameter.shape, generator=generator, device=parameter.device)
            parameter.copy_(torch.where(drawn < self.options.restore, self.source_weights[name], parameter))

    def tensors(self) -> dict[str, Tensor]:
        teacher = dict(self.teacher.model.named_parameters())
        return super().tensors() | {f"teacher.{name}": teacher[name].detach() for name in self.parameters}

    def state_tensors(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        return super().state_tensors(state) | state["teacher"]

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
        """Exact on the same kind of device; on another one the random numbers start again from the seed."""
        super().load_state(state)
        self.load_tensors(state["teacher"])
        if self.device_generator is not None:
            drawn = state.get("device_generator")
            self.device_generator.manual_seed(self.seed)
            if drawn is not None:
                self.device_generator.set_state(drawn)


def augment(
    images: Tensor, preprocessing: Preprocessing, generator: torch.Generator, noise: torch.Generator | None = None
) -> Tensor:
    """CoTTA's random view of normalised images [B, C, H, W]: colour jitter, small affine motion, blur, flip, noise.

    One draw for the whole batch. Works on pixels in [0, 1]. noise: generator of the noise on the images' device; None:
    `generator`."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator, device=generator.device).item()

    x = preprocessing.denormalise(images).clamp(0, 1)
    jitters: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.adjust_brightness(x, uniform(0.6, 1.4)),
        lambda x: F.adjust_contrast(x, uniform(0.7, 1.3)),
        lambda x: F.adjust_saturation(x, uniform(0.5, 1.5)),
        lambda x: F.adjust_hue(x, uniform(-0.06, 0.06)),
        lambda x: F.adjust_gamma(x, uniform(0.7, 1.3)),
    ]
    for choice in torch.randperm(len(jitters), generator=generator, device=generator.device).tolist():
        x = jitters[choice](x)
    height, width = x.shape[-2:]
    x = F.pad(x, [width // 2, height // 2], padding_mode="edge")
    across, down = x.shape[-1] / 16, x.shape[-2] / 16
    x = F.affine(
        x,
        angle=uniform(-15, 15),
        translate=[round(uniform(-across, across)), round(uniform(-down, down))],
        scale=uniform(0.9, 1.1),
        shear=[0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    x = F.center_crop(F.gaussian_blur(x, [5, 5], [uniform(0.001, 0.5)] * 2), [height, width])
    if uniform(0, 1) < 0.5:
        x = F.hflip(x)
    noise = noise or generator
    x = x + torch.randn(x.shape, generator=noise, device=noise.device).to(x) * 0.005
    return _normalise(x.clamp(0, 1), preprocessing)


def _normalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    mean, std = images.new_tensor([preprocessing.mean, preprocessing.std])[..., None, None]
    return (images - mean) / std
