"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery (Niu et al., 2023; arXiv 2302.12400)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Learned, Look, Method, Sgd
from navia.methods.parameters import early_blocks, norm_of, norm_parameters
from navia.models.base import ViT


@dataclass(frozen=True)
class SarOptions(Sgd):
    """margin: keep samples with entropy below margin * ln C. rho: radius of the perturbation. recover: restore the source
    when the running loss falls below it. variant: 'official' filters the first choice again and answers the first
    forward; 'foa' filters all samples afresh and answers the second, perturbed forward (the paper's rows).
    compat: recover as the reference code does, keeping momentum and running loss."""

    margin: float = 0.4
    rho: float = 0.05
    recover: float = 0.2
    variant: str = "official"
    compat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in ("official", "foa"):
            raise SpecError(f"variant must be official or foa, got {self.variant!r}")


@METHODS.register("sar")
class Sar(Method):
    name = "sar"
    Options = SarOptions
    effort = 4

    @classmethod
    def tuned(cls, vit: ViT, options: SarOptions) -> list[str]:
        return norm_parameters(vit, early_blocks(vit))

    @classmethod
    def forwards(cls, vit: ViT, options: SarOptions) -> int:
        return 2  # on the way up the hill and on top of it

    @classmethod
    def backwards(cls, vit: ViT, options: SarOptions) -> int:
        return 2  # up the hill, then down

    def start(self) -> None:
        self.memory.update(running_loss=None, recoveries=0)
        self._source = {name: p.detach().clone() for name, p in self.parameters.items()}

    def look(self, images: Tensor) -> Look:
        look = self.look_with_gradient(images)
        if self.options.variant == "foa":
            look.learned = self._learn(look)
        return look

    def learn(self, look: Look) -> Learned:
        return look.learned or self._learn(look)

    def _learn(self, look: Look) -> Learned:
        assert look.outcome is not None
        h, reliable = self.reliable(look.outcome.logits, self.options.margin)
        if not bool(reliable.any()):
            return Learned(kept=0)
        before = self._climb(h[reliable].mean())
        with torch.enable_grad():
            second = self.walk(look.images)
        if self.options.variant == "foa":
            look.logits = second.logits.detach()
            reliable = torch.ones_like(reliable)
        h, low = self.reliable(second.logits, self.options.margin)
        kept = reliable & low
        loss = h[kept].mean() if bool(kept.any()) else None
        if loss is not None:
            self.pull(loss)  # up there: the backward pass reads the parameters too
        self._put(before)
        if loss is None:
            return Learned(kept=0)
        self.advance()
        return Learned(int(kept.sum()), loss.item(), note=self._maybe_recover(loss.item()))

    def _climb(self, loss: Tensor) -> dict[str, Tensor]:
        """theta <- theta + rho g / |g|; the parameters before it, to come back to."""
        before = {name: p.detach().clone() for name, p in self.parameters.items()}
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        scale = self.options.rho / (norm_of(gradients) + 1e-12)
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.data.add_(gradient * scale)
        return before

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.data.copy_(values[name])

    def _maybe_recover(self, loss: float) -> str | None:
        """Track the loss; a very low one announces collapse: back to the source."""
        running = self.memory["running_loss"]
        running = loss if running is None else 0.9 * running + 0.1 * loss
        self.memory["running_loss"] = running
        if running >= self.options.recover:
            return None
        self.memory["recoveries"] += 1
        self._put(self._source)
        if not self.options.compat:
            self.memory["running_loss"] = None
            assert self.optimizer is not None
            self.optimizer.state.clear()
        return "recovered the source: running loss fell below the threshold"
