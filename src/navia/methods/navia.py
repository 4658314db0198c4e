"""NAVIA: give back the information that merging takes, through the CLS token (arXiv 2508.03388, section 3).

Besides the norms, two augmentations are tuned by the same loss (Eq. 7): delta, added to the CLS embedding, and delta_l,
added to the CLS row inside the shallow blocks after the merge and before the MLP. Both start at zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from navia.errors import SpecError
from navia.methods.align import Align, AlignOptions
from navia.methods.base import METHODS, check_kind
from navia.methods.parameters import choose_layers, single
from navia.models.base import ViT
from navia.models.forward import Touch


@dataclass(frozen=True)
class NaviaOptions(AlignOptions):
    """embedding, biases: switch the two augmentations. eta_delta, eta_delta_l: their learning rates.
    layers, budget: blocks that get a bias: shallow, deep, uniform (so many of them; L_bgt) or a list.
    bias_position: post_merge or block_input. token: what eta_delta tunes: the 'tuned' CLS embedding, a 're-initialised'
    one, or one 'new' token beside it (ablations of the paper)."""

    embedding: bool = True
    biases: bool = True
    eta_delta: float = 1e-3
    eta_delta_l: float = 5e-2
    layers: str | Sequence[int] = "shallow"
    budget: int | None = None
    bias_position: Literal["post_merge", "block_input"] = "post_merge"
    token: Literal["tuned", "re-initialised", "new"] = "tuned"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_position not in ("post_merge", "block_input"):
            raise SpecError(f"bias_position must be post_merge or block_input, got {self.bias_position!r}")
        if self.token not in ("tuned", "re-initialised", "new"):
            raise SpecError(f"token must be tuned, re-initialised or new, got {self.token!r}")
        if self.budget is not None:
            check_kind("budget", self.budget, like=0)
        if not isinstance(self.layers, Sequence):
            raise SpecError(f"layers must be shallow, deep, uniform or a list of blocks, got {self.layers!r}")
        for layer in () if isinstance(self.layers, str) else self.layers:
            check_kind("layers", layer, like=0)


@METHODS.register("navia")
class Navia(Align):
    name = "navia"
    Options = NaviaOptions
    answers_by = (*Align.answers_by, "bias_position", "token")

    @classmethod
    def added(cls, vit: ViT, options: NaviaOptions) -> int:
        biases = choose_layers(vit.depth, options.layers, options.budget) if options.biases else ()
        return (options.embedding + len(biases)) * vit.dim

    @classmethod
    def extra_tokens(cls, options: NaviaOptions) -> int:
        return int(options.embedding and options.token == "new")

    def start(self) -> None:
        o, vit = self.options, self.vit
        self.norms = dict(self.parameters)
        self.embedding: dict[str, nn.Parameter] = {}
        if o.embedding:
            self.embedding["prompt" if o.token == "new" else "delta"] = nn.Parameter(self._first_token())
        layers = choose_layers(vit.depth, o.layers, o.budget) if o.biases else ()
        zeros = torch.zeros_like(single(vit.cls_token[0, 0]))
        self.by_layer = {layer: nn.Parameter(zeros.clone()) for layer in layers}
        self.biases = {f"delta_l.{layer}": bias for layer, bias in self.by_layer.items()}
        self.parameters = {**self.norms, **self.embedding, **self.biases}

    def groups(self) -> list[tuple[dict[str, nn.Parameter], float]]:
        o = self.options
        groups = [(self.norms, o.lr), (self.embedding, o.eta_delta), (self.biases, o.eta_delta_l)]
        return [(parameters, lr) for parameters, lr in groups if parameters]

    def touch(self) -> Touch:
        return Touch(
            cls_shift=self.embedding.get("delta"),
            cls_bias=self.by_layer,
            bias_position=self.options.bias_position,
            prompts=self.embedding.get("prompt"),
        )

    def _first_token(self) -> Tensor:
        cls = single(self.vit.cls_token.detach()[0, 0])
        if self.options.token == "re-initialised":  # CLS ~ N(0, 1e-6) instead of the trained one
            return torch.randn(cls.shape, generator=self.generator).to(cls) * 1e-6 - cls
        if self.options.token == "new":  # one extra token, initialised as visual prompts are
            bound = prompt_bound(self.vit.patch_size, self.vit.dim)
            return (torch.rand(1, len(cls), generator=self.generator).to(cls) * 2 - 1) * bound
        return torch.zeros_like(cls)


def prompt_bound(patch_size: tuple[int, int], dim: int) -> float:
    """Half-width of the uniform distribution that visual prompts start from (Jia et al., 2022)."""
    return math.sqrt(6 / (3 * patch_size[0] * patch_size[1] + dim))
