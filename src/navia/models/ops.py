"""Small tensor operations of the forward, with backward passes that move less memory than autograd's own.

Autograd's backward of a slice fills a tensor of all rows with zeros and adds it: as much memory traffic as a whole residual
sum, twice per block, for one row in two hundred. The functions for the CLS row below write into tensors that nothing else
reads: the sum that ends a half block, and the gradient of the matrix products that read `normed`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(projected: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values beside each other [B, N, 3*H*d] -> [B, H, N, d] each."""
    if torch.is_grad_enabled() and projected.requires_grad and not torch.compiler.is_compiling():
        return _SplitHeads.apply(projected, num_heads)
    q, k, v = projected.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


class _SplitHeads(torch.autograd.Function):
    """Views; the backward pass writes the three gradients side by side in one go instead of stacking, then turning them."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, num_heads: int) -> tuple[Tensor, ...]:
        return projected.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        batch, num_heads, rows, dim = grads[0].shape
        out = grads[0].new_empty(batch, rows, 3, num_heads, dim)
        for part, grad in enumerate(grads):
            out[:, :, part] = grad.transpose(1, 2)
        return out.flatten(2), None


def attention(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor | None, dropout: float = 0.0) -> Tensor:
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


def add_to_cls_(values: Tensor, shift: Tensor) -> Tensor:
    """`shift` [D] added to row 0 of values [B, N, D] in their dtype, in place: nobody else may read `values` any more."""
    if torch.compiler.is_compiling() or values._is_view():  # a compiler fuses the plain form by itself
        return add_to_cls(values, shift)
    if torch.is_grad_enabled() and (values.requires_grad or shift.requires_grad):
        return _AddToCls.apply(values, shift)
    values[:, 0] += shift.to(values.dtype)
    return values


def add_to_cls(values: Tensor, shift: Tensor) -> Tensor:
    """The same as a new tensor."""
    return torch.cat([values[:, :1] + shift.to(values.dtype), values[:, 1:]], dim=1)


def read_cls(normed: Tensor) -> tuple[Tensor, Tensor]:
    """`normed` [B, N, D] itself, to be read on by matrix products only, and its row 0 [B, D]."""
    if torch.is_grad_enabled() and normed.requires_grad and not torch.compiler.is_compiling():
        return _ReadCls.apply(normed)
    return normed, normed[:, 0]


class _AddToCls(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, shift: Tensor) -> Tensor:
        values[:, 0] += shift.to(values.dtype)
        ctx.mark_dirty(values)
        ctx.dtype = shift.dtype
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        return grad, grad[:, 0].sum(dim=0, dtype=ctx.dtype) if ctx.needs_input_grad[1] else None


class _ReadCls(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        return normed.view_as(normed), normed[:, 0].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad, of_row = grads
        grad[:, 0] += of_row
        return grad
