"""ToFu: prune in the early blocks, merge with kept norms in the late ones (Kim et al., 2024; arXiv 2312.01026)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.reduction.base import REDUCERS, Reducer, Seen
from navia.reduction.matching import Matching, destination, match, pairs
from navia.reduction.rows import take
from navia.reduction.schedule import format_amount
from navia.reduction.tokens import Tokens
from navia.reduction.tome import merge


def prune(tokens: Tokens, matching: Matching) -> Tokens:
    """Drop the matched A tokens; their partners stay as they are. Nothing has been merged before: there are no sizes yet."""
    sources = tokens.moved(destination(matching, gone=True)) if tokens.sources is not None else None
    return Tokens(take(tokens.values, matching.kept), tokens.prefix, None, sources)


def largest_norms(values: Tensor, matching: Matching) -> Tensor:
    """max over each output row's members of their norm [B, M], no gradient."""
    norms = values.detach().norm(dim=-1)
    return norms.gather(1, matching.kept).scatter_reduce(1, matching.into, norms.gather(1, matching.removed), "amax")


def rescale(values: Tensor, norms: Tensor, rows: Tensor | None) -> Tensor:
    """Give `rows` [B, M] (bool; None: all rows) of values [B, M, D] the norms [B, M] (MLERP)."""
    floor = torch.finfo(values.dtype).eps  # a mean of opposites is zero and stays so
    scale = (norms / values.norm(dim=-1).clamp_min(floor)).unsqueeze(-1)
    return values * (scale if rows is None else torch.where(rows.unsqueeze(-1), scale, 1.0))


@REDUCERS.register("tofu")
@dataclass(frozen=True)
class ToFu(Reducer):
    """split: blocks before it prune, blocks from it on merge; half of the depth by default.
    compat: rescale every row of the merging blocks, not only merged ones. The values are the same, but rows that were
    not merged then lose the gradient along themselves, as in the reference implementation."""

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
    def weighs_attention(self) -> bool:
        return True  # sizes stay None, and so without effect, until the first merging block has run

    @property
    def touches_all_rows(self) -> bool:
        return self.compat

    def left(self, image_count: int, r: int) -> int:
        return image_count - pairs(image_count, r)

    def step(self, tokens: Tokens, r: int, seen: Seen, layer: int, depth: int) -> Tokens:
        assert seen.keys is not None
        matching = match(seen.keys, r, tokens.prefix)
        if not self.merges(layer, depth):
            return prune(tokens, matching)
        merged = merge(tokens, matching)
        norms = largest_norms(tokens.values, matching)
        if self.compat:
            return merged._replace(values=rescale(merged.values, norms, None))
        received = torch.zeros_like(norms, dtype=torch.bool).scatter_(1, matching.into, True)
        return merged._replace(values=rescale(merged.values, norms, received))
