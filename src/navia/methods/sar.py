"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery (Niu et al., 2023; arXiv 2302.12400)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import masked_mean
from navia.methods.options import SGDOptions
from navia.methods.parameters import early_blocks, norm_of, norm_parameters
from navia.models.base import ViT


@dataclass(frozen=True)
class SarOptions(SGDOptions):
    """Options of sar.

    Args:
        margin: Keep images with entropy below margin * ln C.
        rho: Radius of the perturbation.
        recover: Restore the source when the running loss falls below it.
        variant: 'official' filters the first selection again and returns the first forward; 'foa' filters all images anew
            and returns the second, perturbed forward (the paper's rows).
        compat: Recover like the reference code, which keeps momentum and running loss.
    """

    margin: float = 0.4
    rho: float = 0.05
    recover: float = 0.2
    variant: Literal["official", "foa"] = "official"
    compat: bool = False


@METHODS.register("sar")
class Sar(Method):
    """Entropy minimisation at the worst point within rho of the parameters."""

    name = "sar"
    Options = SarOptions
    relative_cost = 4
    timing_options: ClassVar[Mapping[str, Any]] = {"margin": 1.1, "recover": 0.0}

    @classmethod
    def tuned_names(cls, vit: ViT, options: SarOptions) -> list[str]:
        return norm_parameters(vit, early_blocks(vit))

    @classmethod
    def num_forwards(cls, vit: ViT, options: SarOptions) -> int:
        return 2  # at the parameters, and at the perturbed ones

    @classmethod
    def num_backwards(cls, vit: ViT, options: SarOptions) -> int:
        return 2  # for the perturbation, and for the step

    def setup(self) -> None:
        self.memory.update(running_loss=None, recoveries=0)
        self._source = {name: p.detach().clone() for name, p in self.parameters.items()}

    def forward_step(self, images: Tensor) -> Prediction:
        prediction = self.forward_with_grad(images)
        if self.options.variant == "foa":
            prediction.update_result = self._update(prediction)
        return prediction

    def update(self, prediction: Prediction) -> UpdateResult:
        return prediction.update_result or self._update(prediction)

    def _update(self, prediction: Prediction) -> UpdateResult:
        h, reliable = self.reliable_entropy(prediction.output.logits, self.options.margin)
        if self.none_kept(reliable):
            return UpdateResult(kept=0)
        before = self._perturb(masked_mean(h, reliable))
        with torch.enable_grad():
            second = self.forward(prediction.images)
        if self.options.variant == "foa":
            prediction.logits = second.logits.detach()
            reliable = torch.ones_like(reliable)
        h, low = self.reliable_entropy(second.logits, self.options.margin)
        kept = reliable & low
        loss = masked_mean(h, kept)
        self.backward(loss)  # before the parameters are restored: the backward pass reads them
        self._set_parameters(before)
        self.optimizer_step(where=kept.any())
        return UpdateResult(kept.sum(), loss)

    def _perturb(self, loss: Tensor) -> dict[str, Tensor]:
        """theta <- theta + rho g / |g|; returns the parameters before it."""
        before = {name: p.detach().clone() for name, p in self.parameters.items()}
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        scale = self.options.rho / (norm_of(gradients) + 1e-12)
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.data.add_(gradient * scale)
        return before

    def _set_parameters(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.data.copy_(values[name])

    def after_update(self, loss: float | None) -> str | None:
        """Update the running loss; restore the source if it is so low that the model is about to collapse."""
        if loss is None:
            return None
        running = self.memory["running_loss"]
        running = loss if running is None else 0.9 * running + 0.1 * loss
        self.memory["running_loss"] = running
        if running >= self.options.recover:
            return None
        self.memory["recoveries"] += 1
        self._set_parameters(self._source)
        if not self.options.compat:
            self.memory["running_loss"] = None
            assert self.optimizer is not None
            self.optimizer.state.clear()
        return "recovered the source: running loss fell below the threshold"
