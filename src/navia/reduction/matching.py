"""Bipartite soft matching of tokens by their keys (ToMe, section 3), and merging the matched rows.

Autograd's backward of `gather` is a scatter-add into zeros: slow on CPU and non-deterministic on CUDA. Here every input row
goes to at most one output row, so the backward passes are gathers as well.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Matching(NamedTuple):
    """kept [B, N-r]: kept rows in output order: prefix, unmatched A rows in their order, all B rows.
    removed [B, r]: removed A rows, best match first. into [B, r]: the output row of each one's partner in B."""

    kept: Tensor
    removed: Tensor
    into: Tensor


def num_pairs(num_image_tokens: int, r: int) -> int:
    """Number of pairs that can be merged: at most half of the image tokens."""
    return min(r, num_image_tokens // 2)


@torch.no_grad()
def match(keys: Tensor, r: int, num_prefix_tokens: int) -> Matching:
    """Pair the tokens of keys [B, N, d] and pick the r best pairs (at most half of the image tokens).

    Image tokens at even positions form A, those at odd positions B; each a chooses its most similar b by cosine. Prefix
    tokens are in neither set, but count for the positions, as in ToMe with a class (and distillation) token.
    """
    keys = keys.float()
    batch, count = keys.shape[:2]
    r = num_pairs(count - num_prefix_tokens, r)
    if r == 0:  # a single image token has no partner
        empty = torch.empty(batch, 0, dtype=torch.long, device=keys.device)
        return Matching(torch.arange(count, device=keys.device).expand(batch, count), empty, empty)
    first_a, first_b = num_prefix_tokens + num_prefix_tokens % 2, num_prefix_tokens + 1 - num_prefix_tokens % 2
    metric = F.normalize(keys, dim=-1)
    with torch.autocast(keys.device.type, enabled=False):
        similarity = metric[:, first_a::2] @ metric[:, first_b::2].transpose(1, 2)
    best, partner = similarity.max(dim=-1)  # [B, a]

    a_count, b_count = similarity.shape[1:]
    chosen = best.topk(r, dim=1).indices  # [B, r], among A
    stays = torch.ones_like(best, dtype=torch.int8).scatter_(1, chosen, 0)
    unmatched = stays.argsort(dim=1, descending=True, stable=True)[:, : a_count - r]

    device = keys.device
    kept = torch.cat(
        [
            torch.arange(num_prefix_tokens, device=device).expand(batch, num_prefix_tokens),
            first_a + 2 * unmatched,
            torch.arange(first_b, count, 2, device=device).expand(batch, b_count),
        ],
        dim=1,
    )
    into = num_prefix_tokens + a_count - r + partner.gather(1, chosen)
    return Matching(kept, first_a + 2 * chosen, into)


def destination(matching: Matching, dropped: bool = False) -> Tensor:
    """Output row of every input row [B, N]. Removed rows go to their partner's row, or to -1 if `dropped`."""
    kept, removed, into = matching
    batch, count = kept.shape[0], kept.shape[1] + removed.shape[1]
    where = torch.empty(batch, count, dtype=torch.long, device=kept.device)
    where.scatter_(1, kept, torch.arange(kept.shape[1], device=kept.device).expand_as(kept))
    return where.scatter_(1, removed, torch.full_like(into, -1) if dropped else into)


def _flat(index: Tensor, rows: int) -> Tensor:
    """Row indices [B, M] into [B, rows, D] as indices [B*M] into [B*rows, D]."""
    offset = torch.arange(index.shape[0], device=index.device).unsqueeze(1) * rows
    return (index + offset).reshape(-1)


def _select(x: Tensor, index: Tensor) -> Tensor:
    """x [B, N, D], index [B, M] -> [B, M, D]."""
    batch, rows, dim = x.shape
    return x.reshape(batch * rows, dim).index_select(0, _flat(index, rows)).view(batch, -1, dim)


def _detach_view(x: Tensor) -> Tensor:
    """x no longer marked as a view of its flat form, which empty holds: the forward may write into it."""
    return torch.ops.aten._unsafe_view(x, x.shape)


def add_at_rows(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """x [B, N] with values [B, M] added at index [B, M]; no gradient. On CPU far quicker than scatter_add."""
    return x.reshape(-1).index_add(0, _flat(index, x.shape[1]), values.reshape(-1)).view_as(x)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [B, M] (each row at most once) of x [B, N, D] -> [B, M, D]."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _GatherRows.apply(x, index)
    return _select(x, index)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[1]
        return _detach_view(_select(x, index))

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
        return _detach_view(_merge_rows(x, kept, removed, into, share, rest))

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
