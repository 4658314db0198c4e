"""EViT: keep the tokens that the CLS token attends to, fuse the rest into one (Liang et al., 2022; arXiv 2202.07800)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from navia.reduction.base import REDUCERS, Reducer, Seen
from navia.reduction.rows import take
from navia.reduction.tokens import Tokens


def split_by_attention(cls_attention: Tensor, r: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Rows of the image tokens that stay (most attended first) [B, n-r] and of the r that go [B, r]."""
    order = cls_attention[:, prefix:].detach().argsort(dim=1, descending=True, stable=True) + prefix
    return order[:, :-r], order[:, -r:]


@REDUCERS.register("evit")
@dataclass(frozen=True)
class EViT(Reducer):
    """fuse: the r dropped tokens leave one token behind, the sum of them weighted by the CLS attention (weights not
    renormalised, and differentiable). With it a block loses r - 1 tokens, without it r."""

    fuse: bool = True
    name = "evit"
    needs_cls_attention = True

    def left(self, image_count: int, r: int) -> int:
        r = min(r, image_count - 1)
        return image_count - r + (1 if self.fuse and r else 0)

    def step(self, tokens: Tokens, r: int, seen: Seen, layer: int, depth: int) -> Tokens:
        values, prefix, _, sources = tokens
        r = min(r, tokens.image_count - 1)
        if r == 0:
            return tokens
        assert seen.cls_attention is not None
        stay, go = split_by_attention(seen.cls_attention, r, prefix)
        front = torch.arange(prefix, device=values.device).expand(values.shape[0], prefix)
        kept = torch.cat([front, stay], dim=1)
        if sources is not None:
            where = torch.full(values.shape[:2], kept.shape[1] if self.fuse else -1, device=values.device)
            where.scatter_(1, kept, torch.arange(kept.shape[1], device=values.device).expand_as(kept))
            sources = tokens.moved(where)
        if not self.fuse:
            return Tokens(take(values, kept), prefix, None, sources)
        weight = seen.cls_attention.gather(1, go).unsqueeze(1).to(values.dtype)  # [B, 1, r]
        fused = weight @ take(values, go)
        return Tokens(torch.cat([take(values, kept), fused.to(values.dtype)], dim=1), prefix, None, sources)
