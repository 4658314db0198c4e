"""NAVIA: restore through the CLS token the information that merging removes (arXiv 2508.03388, section 3).

Besides the LayerNorms, two augmentations are tuned by the same loss (Eq. 7): delta, added to the CLS embedding, and delta_l,
added to the CLS token in the shallow blocks after the merge and before the MLP. Both start at zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from navia.methods.align import Align, AlignOptions
from navia.methods.base import METHODS
from navia.methods.parameters import choose_layers, to_float32
from navia.models.base import ViT
from navia.models.forward import TokenEdits


@dataclass(frozen=True)
class NaviaOptions(AlignOptions):
    """Options of navia, beside those of align.

    Args:
        embedding: Tune delta.
        biases: Tune delta_l.
        eta_delta: Learning rate of delta.
        eta_delta_l: Learning rate of delta_l.
        layers: Blocks with a bias: the first `budget`, the last, evenly spread ones, or a list.
        budget: Number of blocks with a bias (L_bgt); None: 6, at most half of the blocks.
        bias_position: Where the bias is added.
        token: What eta_delta tunes: the CLS embedding, a re-initialised one, or a new token (ablations of the paper).
    """

    embedding: bool = True
    biases: bool = True
    eta_delta: float = 1e-3
    eta_delta_l: float = 5e-2
    layers: Literal["shallow", "deep", "uniform"] | Sequence[int] = "shallow"
    budget: int | None = None
    bias_position: Literal["post_merge", "block_input"] = "post_merge"
    token: Literal["tuned", "re-initialised", "new"] = "tuned"


@METHODS.register("navia")
class Navia(Align):
    """Align with delta on the CLS embedding and delta_l on the CLS token of the shallow blocks."""

    name = "navia"
    Options = NaviaOptions
    output_options = (*Align.output_options, "bias_position", "token")

    @classmethod
    def num_added_parameters(cls, vit: ViT, options: NaviaOptions) -> int:
        return (options.embedding + len(bias_layers(vit, options))) * vit.embed_dim

    @classmethod
    def num_extra_tokens(cls, options: NaviaOptions) -> int:
        return int(options.embedding and options.token == "new")

    def setup(self) -> None:
        self.norms = dict(self.parameters)
        self.delta: dict[str, nn.Parameter] = {}
        if self.options.embedding:
            self.delta["prompt" if self.options.token == "new" else "delta"] = nn.Parameter(self._initial_delta())
        zeros = torch.zeros_like(to_float32(self.vit.cls_token[0, 0]))
        self.delta_l = {layer: nn.Parameter(zeros.clone()) for layer in bias_layers(self.vit, self.options)}
        self.biases = {f"delta_l.{layer}": bias for layer, bias in self.delta_l.items()}
        self.parameters = {**self.norms, **self.delta, **self.biases}

    def param_groups(self) -> list[tuple[dict[str, nn.Parameter], float]]:
        o = self.options
        groups = [(self.norms, o.lr), (self.delta, o.eta_delta), (self.biases, o.eta_delta_l)]
        return [(parameters, lr) for parameters, lr in groups if parameters]

    def token_edits(self) -> TokenEdits:
        return TokenEdits(
            cls_shift=self.delta.get("delta"),
            cls_bias=self.delta_l,
            bias_position=self.options.bias_position,
            prompts=self.delta.get("prompt"),
        )

    def _initial_delta(self) -> Tensor:
        cls = to_float32(self.vit.cls_token.detach()[0, 0])
        if self.options.token == "re-initialised":  # CLS ~ N(0, 1e-6) instead of the trained one
            return torch.randn(cls.shape, generator=self.generator, device=self.generator.device).to(cls) * 1e-6 - cls
        if self.options.token == "new":  # one extra token, initialised like visual prompts
            bound = prompt_bound(self.vit.patch_size, self.vit.embed_dim)
            drawn = torch.rand(1, len(cls), generator=self.generator, device=self.generator.device)
            return (drawn.to(cls) * 2 - 1) * bound
        return torch.zeros_like(cls)


def bias_layers(vit: ViT, options: NaviaOptions) -> tuple[int, ...]:
    """Blocks that get a CLS bias."""
    return choose_layers(vit.depth, options.layers, options.budget) if options.biases else ()


def prompt_bound(patch_size: tuple[int, int], embed_dim: int) -> float:
    """Half-width of the uniform distribution of initial visual prompts (Jia et al., 2022)."""
    return math.sqrt(6 / (3 * patch_size[0] * patch_size[1] + embed_dim))
