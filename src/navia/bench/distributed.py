"""One stream over the processes of `torchrun`: each decodes and answers its share of every batch, all take the update of the
whole."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from navia.adaptation.adapter import Adapter
from navia.bench.run import Answered, answer_only
from navia.data.loader import Batch, SampleIndex, Shard


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


class ProcessShard(Shard):
    """The rank-th of as many parts as there are processes: decoding is often slower than the model."""

    def select(self, indices: list[SampleIndex]) -> list[SampleIndex]:
        return [indices[place] for place in np.array_split(range(len(indices)), dist.get_world_size())[dist.get_rank()]]

    def gather(self, reasons: list[str | None]) -> list[str | None]:
        return [reason for share in _from_all(reasons) for reason in share]


def answer_together(adapter: Adapter, batch: Batch) -> Answered:
    """As `answer`, on every process with all answers. Where a process has no image, the batch is answered only."""
    if batch.reset:
        adapter.reset()
    if 0 in _from_all(len(batch.images)):
        whole = replace(batch, images=torch.cat(_from_all(batch.images)))
        return answer_only(adapter, whole, "a process without an image")
    share = adapter(batch.images.to(adapter.source_vit.device)).detach().cpu()
    assert adapter.last is not None
    return Answered(batch, torch.cat(_from_all(share)), adapter.last)


def _from_all(own: Any) -> list[Any]:
    """What every process gives, in the order of ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return gathered
