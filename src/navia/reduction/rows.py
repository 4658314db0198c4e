"""Choosing and merging rows of [B, N, D] tensors, with backward passes that are gathers too.

Autograd's own backward of `gather` is a scatter-add into zeros: slow on CPU and non-deterministic on CUDA. Here every
input row ends up in at most one output row, so that its gradient is a (weighted) copy of that one row.
"""

from typing import Any

import torch
from torch import Tensor


def _flat(index: Tensor, rows: int) -> Tensor:
    """Row indices [B, M] into [B, rows, D] as indices [B*M] into [B*rows, D]."""
    offset = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * rows
    return (index + offset).reshape(-1)


def _select(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, D], index [B, M] -> [B, M, D]."""
    batch, rows, dim = x.shape
    return x.reshape(batch * rows, dim).index_select(0, _flat(index, rows)).view(batch, -1, dim)


def _on_its_own(x: Tensor) -> Tensor:
    """x no longer marked as a view of its flat form, which nobody holds: the forward may write into it."""
    return torch.ops.aten._unsafe_view(x, x.shape)


def add_at(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """x [B, N] with values [B, M] added at index [B, M]; no gradient. On CPU far quicker than scatter_add."""
    return x.reshape(-1).index_add(0, _flat(index, x.shape[1]), values.reshape(-1)).view_as(x)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [B, M] (each row at most once) of x [B, N, D] -> [B, M, D]."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _Take.apply(x, index)
    return _select(x, index)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[1]
        return _on_its_own(_select(x, index))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        (grad,) = grads
        batch, _, dim = grad.shape
        out = grad.new_zeros(batch * ctx.rows, dim)
        out.index_copy_(0, _flat(index, ctx.rows), grad.reshape(-1, dim))
        return out.view(batch, ctx.rows, dim), None


def merge_rows(x: Tensor, kept: Tensor, removed: Tensor, into: Tensor, share: Tensor, rest: Tensor) -> Tensor:
    """Rows `kept` of x, after adding each removed row to its partner.

    x [B, N, D]; kept [B, M] rows in output order; removed [B, R] rows; into [B, R] *output* rows that they join.
    With y = x[kept]:  y[into_j] <- rest_j * y[into_j] + sum over all j' with the same target of share_j' * x[removed_j'].
    share, rest [B, R] carry no gradient; `rest` is equal for removed rows with the same target. -> [B, M, D]
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _MergeRows.apply(x, kept, removed, into, share, rest)
    return _merge_rows(x, kept, removed, into, share, rest)


def _merge_rows(x: Tensor, kept: Tensor, removed: Tensor, into: Tensor, share: Tensor, rest: Tensor) -> Tensor:
    out = _select(x, kept)
    batch, rows, dim = out.shape
    flat, target = out.view(batch * rows, dim), _flat(into, rows)
    partners = flat.index_select(0, target) * rest.reshape(-1, 1)
    flat.index_copy_(0, target, partners)  # equal targets write equal values
    flat.index_add_(0, target, (_select(x, removed) * share.unsqueeze(-1)).reshape(-1, dim))
    return out


class _MergeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, removed: Tensor, into: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        ctx.save_for_backward(kept, removed, into, share, rest)
        ctx.rows = x.shape[1]
        return _on_its_own(_merge_rows(x, kept, removed, into, share, rest))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept, removed, into, share, rest = ctx.saved_tensors
        (grad,) = grads
        batch, _, dim = grad.shape
        out = grad.new_empty(batch * ctx.rows, dim)
        out.index_copy_(0, _flat(kept, ctx.rows), grad.reshape(-1, dim))
        arriving = _select(grad, into)
        partner = _flat(kept.gather(1, into), ctx.rows)
        out.index_copy_(0, partner, (arriving * rest.unsqueeze(-1)).reshape(-1, dim))
        out.index_copy_(0, _flat(removed, ctx.rows), (arriving * share.unsqueeze(-1)).reshape(-1, dim))
        return out.view(batch, ctx.rows, dim), None, None, None, None, None
