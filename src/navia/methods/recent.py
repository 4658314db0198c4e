"""CLS features of the last images: what a batch too small for statistics of its own borrows."""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from navia.errors import SpecError


class Recent:
    """The last `keep` features of the stream's small batches, kept in `memory`; a batch is small below `enough` images."""

    def __init__(self, memory: MutableMapping[str, Any], enough: int, keep: int) -> None:
        self.memory = memory
        self.enough = enough
        self.keep = keep

    def lent(self, count: int) -> Tensor | None:
        """Features [M, L, D] for a (global) batch of `count` images; None: it is large enough, or there are none yet."""
        return self.memory.get("recent") if count < self.enough else None

    def suffice(self, seen: int) -> bool:
        """Whether statistics may be made of so many images, borrowed ones included."""
        return seen >= max(2, self.enough)

    def add(self, features: Tensor, count: int) -> None:
        """The features [B, L, D] of this process's share of a batch of `count` images join them, if it is a small one."""
        if count < self.enough:
            before = self.memory.get("recent", features[:0])
            joined = torch.cat([before, features]).detach()
            self.memory["recent"] = joined[max(0, len(joined) - self.keep) :]


def check_recent(enough: int, recent: int) -> None:
    """Raise SpecError where single images would never come to `enough`."""
    if recent + 1 < enough:
        raise SpecError(
            f"recent={recent} and one image are fewer than enough={enough}: small batches would never adapt;"
            f" raise recent to {enough - 1} or lower enough"
        )
