"""One stream over the processes of `torchrun`: each answers its share of every batch, all take the update of the whole."""

import os
from typing import Any

import torch
import torch.distributed as dist

from navia.adapt.adapter import Adapter
from navia.bench.run import Answered, answer_only
from navia.images.loader import Batch


def join() -> int | None:
    """This process's rank where torchrun started several, after they have met; None: alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank()


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def agree(adapter: Adapter, start: int) -> int:
    """The first process's state and place in the stream, on all of them."""
    message: list[Any] = [(start, adapter.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(message)
    start, state = message[0]
    if dist.get_rank() != 0:
        adapter.load_state_dict(state)
    return int(start)


def answer_together(adapter: Adapter, batch: Batch) -> Answered:
    """As `answer`, on every process with all answers. A batch of fewer images than processes is answered only."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if batch.reset:
        adapter.reset()
    if len(batch.images) < size:
        return answer_only(adapter, batch, "fewer images than processes")
    device = adapter.source_vit.cls_token.device
    share = adapter(batch.images.tensor_split(size)[rank].to(device)).detach().cpu()
    shares: list[Any] = [None] * size
    dist.all_gather_object(shares, share)
    assert adapter.last is not None
    return Answered(batch, torch.cat(shares), adapter.last)
