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
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and k.shape[2] <= _MAX_EXPLICIT and not dropout:
        return _explicit_attention(q, k, v, sizes)
    bias = None if sizes is None else sizes.log().to(q.dtype)[:, None, None, :]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2)


# torch's fused kernel is slow in bfloat16 on a CPU: forward and backward took 3.5 times as long as the products below (three
# heads of 64, 189 tokens). They keep the N x N map, so long sequences take the fused kernel all the same.
_MAX_EXPLICIT = 640


def _explicit_attention(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor | None) -> Tensor:
    batch, heads, _, dim = q.shape
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    bias = q.new_zeros(()) if sizes is None else sizes.log().to(q.dtype).repeat_interleave(heads, dim=0).unsqueeze(1)
    if torch.is_grad_enabled() and q.requires_grad and not torch.compiler.is_compiling():
        out = _ExplicitAttention.apply(q, k, v, bias)
    else:
        out = _attend(q, k, v, bias)[0]
    return out.view(batch, heads, -1, dim).transpose(1, 2).flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Output [BH, M, d] and attention map p [BH, M, N] of q [BH, M, d], k, v [BH, N, d]."""
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    p = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)  # faster than softmax in bfloat16
    return torch.bmm(p, v), p


class _ExplicitAttention(torch.autograd.Function):
    """dv = p^T do;  ds = p (dp - sum_n p dp) with dp = do v^T;  dq = ds k / sqrt(d);  dk = ds^T q / sqrt(d)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out, p = _attend(q, k, v, bias)
        ctx.save_for_backward(q, k, v, p)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, p = ctx.saved_tensors
        (grad,) = grads
        grad_p = torch.bmm(grad, v.transpose(1, 2))
        grad_s = torch._softmax_backward_data(grad_p, p, -1, p.dtype)
        scale = q.shape[-1] ** -0.5
        grad_q = torch.bmm(grad_s, k).mul_(scale)
        grad_k = torch.bmm(grad_s.transpose(1, 2), q).mul_(scale)
        return grad_q, grad_k, torch.bmm(p.transpose(1, 2), grad), None


def cls_attention(q: Tensor, k: Tensor) -> Tensor:
    """The CLS query's softmax attention to all tokens, mean over heads [B, N]; one row, never the N x N map."""
    scores = (q[:, :, :1] @ k.transpose(-2, -1)).squeeze(2) * q.shape[-1] ** -0.5
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).mean(dim=1)


@torch.no_grad()
def mean_keys(k: Tensor) -> Tensor:
    """Keys [B, H, N, d] averaged over the heads [B, N, d], without gradient: the metric of the matching."""
    wide = torch.promote_types(k.dtype, torch.float32)
    return k.detach().transpose(1, 2).mean(dim=2, dtype=wide)  # heads next to features: twice as fast as mean(dim=1)


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
