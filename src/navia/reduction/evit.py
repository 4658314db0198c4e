"""EViT: keep the tokens that the CLS token attends to, fuse the rest into one (Liang et al., 2022; arXiv 2202.07800)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.reduction.base import REDUCERS, AttentionInfo, Reducer, Tokens
from navia.reduction.matching import gather_rows


def split_by_attention(cls_attention: Tensor, r: int, num_prefix_tokens: int) -> tuple[Tensor, Tensor]:
    """Rows of the image tokens to keep, most attended first [B, n-r], and of the r to drop [B, r]."""
    order = cls_attention[:, num_prefix_tokens:].detach().argsort(dim=1, descending=True, stable=True) + num_prefix_tokens
    return order[:, :-r], order[:, -r:]


@REDUCERS.register("evit")
@dataclass(frozen=True)
class EViT(Reducer):
    """Drop the r image tokens with the least CLS attention.

    Args:
        fuse: Replace the dropped tokens by one, their sum weighted by the CLS attention (not renormalised, differentiable).
            A block then loses r - 1 tokens instead of r.

    Example:
        >>> navia.EViT(8).num_remaining(196, 8), navia.EViT(8, fuse=False).num_remaining(196, 8)
        (189, 188)
    """

    fuse: bool = True
    name = "evit"
    needs_cls_attention = True

    def num_remaining(self, num_image_tokens: int, r: int) -> int:
        r = min(r, num_image_tokens - 1)
        return num_image_tokens - r + (1 if self.fuse and r else 0)

    def apply(self, tokens: Tokens, r: int, info: AttentionInfo, layer: int, depth: int) -> Tokens:
        values, num_prefix_tokens, _, sources = tokens
        r = min(r, tokens.num_image_tokens - 1)
        if r == 0:
            return tokens
        assert info.cls_attention is not None
        keep, drop = split_by_attention(info.cls_attention, r, num_prefix_tokens)
        front = torch.arange(num_prefix_tokens, device=values.device).expand(values.shape[0], num_prefix_tokens)
        kept = torch.cat([front, keep], dim=1)
        if sources is not None:
            where = torch.full(values.shape[:2], kept.shape[1] if self.fuse else -1, device=values.device)
            where.scatter_(1, kept, torch.arange(kept.shape[1], device=values.device).expand_as(kept))
            sources = tokens.update_sources(where)
        if not self.fuse:
            return Tokens(gather_rows(values, kept), num_prefix_tokens, None, sources)
        weight = info.cls_attention.gather(1, drop).unsqueeze(1).to(values.dtype)  # [B, 1, r]
        fused = weight @ gather_rows(values, drop)
        fused = torch.cat([gather_rows(values, kept), fused.to(values.dtype)], dim=1)
        return Tokens(fused, num_prefix_tokens, None, sources)
