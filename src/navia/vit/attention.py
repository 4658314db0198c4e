"""Attention by the fused kernel, and the two glances at it that reducers ask for."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
