"""Attention by the fused kernel, and the two glances at it that reducers ask for."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(projected: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values beside each other [B, N, 3*H*d] -> [B, H, N, d] each."""
    if torch.is_grad_enabled() and projected.requires_grad and not torch.compiler.is_compiling():
        return _SplitHeads.apply(projected, heads)
    q, k, v = projected.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


class _SplitHeads(torch.autograd.Function):
    """Views; the backward pass writes the three gradients side by side in one go instead of stacking, then turning them."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, heads: int) -> tuple[Tensor, ...]:
        return projected.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        batch, heads, rows, dim = grads[0].shape
        out = grads[0].new_empty(batch, rows, 3, heads, dim)
        for part, grad in enumerate(grads):
            out[:, :, part] = grad.transpose(1, 2)
        return out.flatten(2), None


def attend(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(d) + log s) v for q, k, v [B, H, N, d] -> [B, N, H*d].

    sizes [B, N]: log s is added to the score of every key, so that a merged token weighs as much as its members.
    """
    bias = None if sizes is None else sizes.log().to(q.dtype)[:, None, None, :]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2)


def cls_attention(q: Tensor, k: Tensor) -> Tensor:
    """The CLS query's softmax attention to all tokens, mean over heads [B, N]; one row, never the N x N map."""
    scores = (q[:, :, :1] @ k.transpose(-2, -1)).squeeze(2) * q.shape[-1] ** -0.5
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).mean(dim=1)


@torch.no_grad()
def mean_keys(k: Tensor) -> Tensor:
    """Keys [B, H, N, d] averaged over the heads [B, N, d], without gradient: the metric of the matching."""
    return k.detach().transpose(1, 2).mean(dim=2)  # heads next to features: twice as fast as mean(dim=1)
