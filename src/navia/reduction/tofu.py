"""ToFu: prune in the early blocks, merge with kept norms in the late ones (Kim et al., 2024; arXiv 2312.01026)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.reduction.base import REDUCERS, AttentionInfo, Reducer, Tokens, format_amount
from navia.reduction.matching import Matching, destination, gather_rows, match, num_pairs
from navia.reduction.tome import merge


def prune(tokens: Tokens, matching: Matching) -> Tokens:
    """Drop the matched A tokens. Pruning blocks come first, so all sizes are still 1."""
    sources = tokens.update_sources(destination(matching, dropped=True)) if tokens.sources is not None else None
    return Tokens(gather_rows(tokens.values, matching.kept), tokens.num_prefix_tokens, None, sources)


def largest_norms(values: Tensor, matching: Matching) -> Tensor:
    """Largest norm among the tokens merged into each output row [B, M], without gradient."""
    norms = values.detach().norm(dim=-1)
    return norms.gather(1, matching.kept).scatter_reduce(1, matching.into, norms.gather(1, matching.removed), "amax")


def rescale(values: Tensor, norms: Tensor, rows: Tensor | None) -> Tensor:
    """Give `rows` [B, M] (bool; None: all rows) of values [B, M, D] the norms [B, M] (MLERP)."""
    floor = torch.finfo(values.dtype).eps  # the mean of opposite tokens is zero and stays zero
    scale = (norms / values.norm(dim=-1).clamp_min(floor)).unsqueeze(-1)
    return values * (scale if rows is None else torch.where(rows.unsqueeze(-1), scale, 1.0))


@REDUCERS.register("tofu")
@dataclass(frozen=True)
class ToFu(Reducer):
    """Prune in the early blocks, merge in the late ones.

    Args:
        split: Blocks before `split` prune, the others merge. None: half of the depth.
        compat: Rescale every token of the merging blocks, not only merged ones. The values are the same, but tokens that
            were not merged lose the gradient along themselves, as in the reference implementation.

    Example:
        >>> str(navia.ToFu(8, split=6))
        'tofu:8,split=6'
    """

    split: int | None = None
    compat: bool = False
    name = "tofu"
    needs_keys = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split is not None and self.split < 0:
            raise SpecError(f"tofu:{format_amount(self.r)}: split must be a block number >= 0, got {self.split}")

    def merges(self, layer: int, depth: int) -> bool:
        return layer >= (depth // 2 if self.split is None else self.split)

    @property
    def proportional_attention(self) -> bool:
        return True  # no effect before the first merging block: sizes are None

    @property
    def modifies_all_tokens(self) -> bool:
        return self.compat

    def num_remaining(self, num_image_tokens: int, r: int) -> int:
        return num_image_tokens - num_pairs(num_image_tokens, r)

    def apply(self, tokens: Tokens, r: int, info: AttentionInfo, layer: int, depth: int) -> Tokens:
        assert info.keys is not None
        matching = match(info.keys, r, tokens.num_prefix_tokens)
        if not self.merges(layer, depth):
            return prune(tokens, matching)
        merged = merge(tokens, matching)
        norms = largest_norms(tokens.values, matching)
        if self.compat:
            return merged._replace(values=rescale(merged.values, norms, None))
        received = torch.zeros_like(norms, dtype=torch.bool).scatter_(1, matching.into, True)
        return merged._replace(values=rescale(merged.values, norms, received))
