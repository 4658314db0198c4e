"""Which tokens are so alike that one can stand for both: bipartite soft matching on the keys (ToMe, section 3)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Matching(NamedTuple):
    """kept [B, N-r]: rows that stay, in output order: prefix, unmatched A rows in their order, all B rows.
    removed [B, r]: A rows that go, best match first. into [B, r]: the output row of each one's partner in B."""

    kept: Tensor
    removed: Tensor
    into: Tensor


def pairs(image_count: int, r: int) -> int:
    """How many of r tokens a matching removes: at most half of the image tokens have a partner."""
    return min(r, image_count // 2)


@torch.no_grad()
def match(keys: Tensor, r: int, prefix: int) -> Matching:
    """Pair the tokens of keys [B, N, d] and pick the r best pairs (at most half of the image tokens).

    Image tokens at even positions form A, those at odd positions B; each a chooses its most similar b by cosine. The
    prefix takes part in neither set, but counts for the positions, as in ToMe with a class (and distillation) token.
    """
    keys = keys.float()
    batch, count = keys.shape[:2]
    r = pairs(count - prefix, r)
    if r == 0:  # a lone image token has no partner
        nobody = torch.empty(batch, 0, dtype=torch.long, device=keys.device)
        return Matching(torch.arange(count, device=keys.device).expand(batch, count), nobody, nobody)
    first_a, first_b = prefix + prefix % 2, prefix + 1 - prefix % 2
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
            torch.arange(prefix, device=device).expand(batch, prefix),
            first_a + 2 * unmatched,
            torch.arange(first_b, count, 2, device=device).expand(batch, b_count),
        ],
        dim=1,
    )
    into = prefix + a_count - r + partner.gather(1, chosen)
    return Matching(kept, first_a + 2 * chosen, into)


def destination(matching: Matching, gone: bool = False) -> Tensor:
    """For every input row the output row that holds it [B, N]; removed rows follow their partner, or -1 if `gone`."""
    kept, removed, into = matching
    batch, count = kept.shape[0], kept.shape[1] + removed.shape[1]
    where = torch.empty(batch, count, dtype=torch.long, device=kept.device)
    where.scatter_(1, kept, torch.arange(kept.shape[1], device=kept.device).expand_as(kept))
    return where.scatter_(1, removed, torch.full_like(into, -1) if gone else into)
