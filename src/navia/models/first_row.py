"""The CLS row of [B, N, D] tokens: adding to it and looking at it, with backward passes that touch that row alone.

Autograd's own backward of a slice fills a tensor of all rows with zeros and adds it up: as much memory traffic as a whole
residual sum, twice per block, for one row in two hundred. Both functions below write into tensors that are theirs alone:
the sum that ends a half block, and the gradient that comes out of the matrix products reading `normed`.
"""

from typing import Any

import torch
from torch import Tensor


def shift_first_row(values: Tensor, shift: Tensor) -> Tensor:
    """`shift` [D] added to row 0 of values [B, N, D] in their dtype, in place: nobody else may read `values` any more."""
    if torch.compiler.is_compiling() or values._is_view():  # a compiler fuses the plain form by itself
        return shifted_first_row(values, shift)
    if torch.is_grad_enabled() and (values.requires_grad or shift.requires_grad):
        return _Shift.apply(values, shift)
    values[:, 0] += shift.to(values.dtype)
    return values


def shifted_first_row(values: Tensor, shift: Tensor) -> Tensor:
    """The same as a new tensor."""
    return torch.cat([values[:, :1] + shift.to(values.dtype), values[:, 1:]], dim=1)


def look_at_first_row(normed: Tensor) -> tuple[Tensor, Tensor]:
    """`normed` [B, N, D] itself, to be read on by matrix products only, and its row 0 [B, D]."""
    if torch.is_grad_enabled() and normed.requires_grad and not torch.compiler.is_compiling():
        return _Look.apply(normed)
    return normed, normed[:, 0]


class _Shift(torch.autograd.Function):
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


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        return normed.view_as(normed), normed[:, 0].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad, of_row = grads
        grad[:, 0] += of_row
        return grad
