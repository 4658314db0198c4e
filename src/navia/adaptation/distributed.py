"""One stream over several processes: sums over all of them, so that each computes the update of the whole batch.

Every process evaluates its share of the loss, sum over processes = loss of the global batch. Sums inside the loss (batch
moments) are differentiable; gradients of the parameters are summed before the step.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class World:
    """The processes that adapt together; one process when `distributed` is off."""

    def __init__(self, distributed: bool = False, device: torch.device | None = None) -> None:
        self.distributed = distributed
        self.device = device or torch.device("cpu")

    @property
    def size(self) -> int:
        return dist.get_world_size() if self.distributed else 1

    def total(self, x: Tensor) -> Tensor:
        """Sum over processes, differentiable."""
        if not self.distributed:
            return x
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(x)

    def total_(self, x: Tensor) -> Tensor:
        """Sum over processes, in place, without gradient."""
        if self.distributed:
            message = x.to(self.device)  # NCCL speaks CUDA only
            dist.all_reduce(message)
            x.copy_(message)
        return x

    def anywhere(self, here: bool) -> bool:
        """Whether it is so on any process."""
        return here if not self.distributed else bool(self.total_(torch.tensor(int(here))) > 0)

    def count(self, n: int) -> int:
        """Images of the global batch of which this process holds n."""
        return n if not self.distributed else int(self.total_(torch.tensor(n)).item())

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over processes: one message for all of them."""
        if not self.distributed:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.total_(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
