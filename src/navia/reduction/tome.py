"""ToMe: merge the r most similar pairs of tokens into size-weighted means (Bolya et al., 2023; arXiv 2210.09461)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.reduction.base import REDUCERS, AttentionInfo, Reducer, Tokens
from navia.reduction.matching import Matching, add_at_rows, destination, match, merge_rows, num_pairs


def merged_sizes(sizes: Tensor | None, matching: Matching) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes after the merge [B, M]; weights s_a / s_b' of removed rows and s_b / s_b' of their partners [B, r]."""
    kept, removed, into = matching
    if sizes is None:
        sizes = torch.ones(kept.shape[0], kept.shape[1] + removed.shape[1], device=kept.device)
    before = sizes.gather(1, kept)
    joining = sizes.gather(1, removed)
    after = add_at_rows(before, into, joining)
    total = after.gather(1, into)
    return after, joining / total, before.gather(1, into) / total


def merge(tokens: Tokens, matching: Matching) -> Tokens:
    """x_b' = (s_b x_b + sum s_a x_a) / s_b',  s_b' = s_b + sum s_a over all a that chose b."""
    sizes, share, rest = merged_sizes(tokens.sizes, matching)
    dtype = tokens.values.dtype
    values = merge_rows(tokens.values, *matching, share.to(dtype), rest.to(dtype))
    sources = None if tokens.sources is None else tokens.update_sources(destination(matching))
    return Tokens(values, tokens.num_prefix_tokens, sizes, sources)


@REDUCERS.register("tome")
@dataclass(frozen=True)
class ToMe(Reducer):
    """Merge the r most similar pairs of tokens.

    Args:
        proportional: Add log(size) to the attention scores, so that a merged token counts for all its patches.

    Example:
        >>> str(navia.ToMe(8))
        'tome:8'
    """

    proportional: bool = True
    name = "tome"
    needs_keys = True

    @property
    def proportional_attention(self) -> bool:
        return self.proportional

    def num_remaining(self, num_image_tokens: int, r: int) -> int:
        return num_image_tokens - num_pairs(num_image_tokens, r)

    def apply(self, tokens: Tokens, r: int, info: AttentionInfo, layer: int, depth: int) -> Tokens:
        assert info.keys is not None
        return merge(tokens, match(info.keys, r, tokens.num_prefix_tokens))
