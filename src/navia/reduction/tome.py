"""ToMe: merge the r most similar pairs of tokens into size-weighted means (Bolya et al., 2023; arXiv 2210.09461)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.reduction.base import REDUCERS, Reducer, Seen
from navia.reduction.matching import Matching, destination, match, pairs
from navia.reduction.rows import add_at, merge_rows
from navia.reduction.tokens import Tokens


def merged_sizes(sizes: Tensor | None, matching: Matching) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes after the merge [B, M], and per removed row its share s_a / s_b' and its partner's rest s_b / s_b' [B, r]."""
    kept, removed, into = matching
    if sizes is None:
        sizes = torch.ones(kept.shape[0], kept.shape[1] + removed.shape[1], device=kept.device)
    before = sizes.gather(1, kept)
    joining = sizes.gather(1, removed)
    after = add_at(before, into, joining)
    total = after.gather(1, into)
    return after, joining / total, before.gather(1, into) / total


def merge(tokens: Tokens, matching: Matching) -> Tokens:
    """x_b' = (s_b x_b + sum s_a x_a) / s_b',  s_b' = s_b + sum s_a over all a that chose b."""
    sizes, share, rest = merged_sizes(tokens.sizes, matching)
    dtype = tokens.values.dtype
    values = merge_rows(tokens.values, *matching, share.to(dtype), rest.to(dtype))
    return Tokens(values, tokens.prefix, sizes, tokens.moved(destination(matching)) if tokens.sources is not None else None)


@REDUCERS.register("tome")
@dataclass(frozen=True)
class ToMe(Reducer):
    """proportional: add log(size) to the attention scores of merged tokens (on in the paper)."""

    proportional: bool = True
    name = "tome"
    needs_keys = True

    @property
    def weighs_attention(self) -> bool:
        return self.proportional

    def left(self, image_count: int, r: int) -> int:
        return image_count - pairs(image_count, r)

    def step(self, tokens: Tokens, r: int, seen: Seen, layer: int, depth: int) -> Tokens:
        assert seen.keys is not None
        return merge(tokens, match(seen.keys, r, tokens.prefix))
