"""One stream over several processes: sums over all of them, so that each computes the update of the whole batch.

Every process evaluates its share of the loss; the sum over processes is the loss of the global batch. Sums inside the loss
(batch moments) are differentiable; gradients of the parameters are summed before the step.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class Distributed:
    """The processes that adapt together; a single process unless `enabled`."""

    def __init__(self, enabled: bool = False, device: torch.device | None = None) -> None:
        self.enabled = enabled
        self.device = device or torch.device("cpu")

    @property
    def size(self) -> int:
        """Number of processes."""
        return dist.get_world_size() if self.enabled else 1

    def sum(self, x: Tensor) -> Tensor:
        """Sum over processes, differentiable."""
        if not self.enabled:
            return x
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(x)

    def sum_(self, x: Tensor) -> Tensor:
        """Sum over processes, in place, without gradient."""
        if self.enabled:
            message = x.to(self.device)  # NCCL takes CUDA tensors only
            dist.all_reduce(message)
            x.copy_(message)
        return x

    def any(self, here: bool) -> bool:
        """Whether it is true on any process."""
        return here if not self.enabled else bool(self.sum_(torch.tensor(int(here), device=self.device)) > 0)

    def count(self, n: int) -> int:
        """Number of images in the global batch, of which this process has n."""
        return n if not self.enabled else int(self.sum_(torch.tensor(n, device=self.device)).item())

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over processes, in one message."""
        if not self.enabled:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.sum_(torch.cat([g.reshape(-1) for g in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
