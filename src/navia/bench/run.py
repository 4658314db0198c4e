"""One stream through one adapter, batch by batch: predict, then adapt. In full, for a few batches only, in real time, or
divided over the processes of `torchrun`."""

import copy
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from navia.adaptation.adapter import Adapter, Step, adapt
from navia.data.loader import Batch, Loader, SampleIndex, Shard
from navia.errors import SpecError
from navia.methods.features import entropy
from navia.models.base import ViT


@dataclass(frozen=True)
class BatchResult:
    """A batch, its logits [B, C] from before the update, and the step. source: logits of the source model, if computed."""

    batch: Batch
    logits: Tensor
    step: Step
    source: Tensor | None = None


def run_stream(adapter: Adapter, batches: Iterable[Batch]) -> Iterator[BatchResult]:
    """Predict and adapt, batch by batch."""
    for batch in batches:
        yield predict_and_adapt(adapter, batch)


def predict_and_adapt(adapter: Adapter, batch: Batch, distributed: bool = False) -> BatchResult:
    """Predict a batch and adapt to it; reset the adapter before if the stream says so.

    distributed: the batch holds this process's share of the images; every process gets all logits. If a process has no
    image, the batch is predicted only.
    """
    if batch.reset:
        adapter.reset()
    if distributed and 0 in _all_gather(len(batch.images)):
        whole = replace(batch, images=torch.cat(_all_gather(batch.images)))
        return predict_only(adapter, whole, "a process without an image")
    logits = adapter(batch.images.to(adapter.source_vit.cls_token.device)).detach().cpu()
    assert adapter.last is not None
    return BatchResult(batch, torch.cat(_all_gather(logits)) if distributed else logits, adapter.last)


def predict_only(adapter: Adapter, batch: Batch, note: str) -> BatchResult:
    """Predict a batch without adapting to it. note: why, for the step."""
    start = time.perf_counter()
    logits = adapter.predict(batch.images.to(adapter.source_vit.cls_token.device)).detach()
    took = time.perf_counter() - start
    step = Step(
        number=adapter.steps, images=len(batch.images), entropy=entropy(logits.float()).mean().item(), loss=None,
        discrepancy=None, kept=0, guard=None, note=note, seconds_predict=took, seconds_update=0.0,
    )  # fmt: skip
    return BatchResult(batch, logits.cpu(), step)


def adapt_then_score(adapter: Adapter, loader: Loader, count: int) -> Iterator[BatchResult]:
    """Adapt to the first `count` batches, then predict the last third of the stream without adapting."""
    held_out = held_out_from(len(loader))
    if not 0 < count <= held_out:
        raise SpecError(f"{count} batches to adapt to, but only {held_out} come before the last third of the stream")
    device = adapter.source_vit.device
    for number, batch in enumerate(loader):
        if number < count:
            adapter(batch.images.to(device))
        elif number >= held_out:
            yield predict_only(adapter, batch, "scored only")


def held_out_from(batches: int) -> int:
    """The number of the first batch of the last third."""
    return batches * 2 // 3


# Real time (Alfarra et al., 2023): batches arrive at the speed of the dense model without adaptation. While a method is busy
# with an earlier batch, the next ones are predicted in its last state and not adapted to. The clock is simulated from one
# measured ratio: equal ratios give equal results.


def step_ratio(vit: ViT, adapter: Adapter, images: Tensor, rounds: int = 5) -> float:
    """Time of the adapter's step over that of the dense forward without adaptation: interleaved, medians, at least 1.
    A copy of the adapter is timed; the adapter itself does not change."""
    images = images.to(vit.device)
    runners = (adapt(vit, "none"), copy.deepcopy(adapter))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for runner, times in zip(runners, seconds, strict=True):
            start = time.perf_counter()
            runner(images)
            times.append(time.perf_counter() - start)
    dense, step = (statistics.median(times[1:]) for times in seconds)  # the first round warms up
    return max(1.0, round(step / dense, 2))


def run_realtime(adapter: Adapter, batches: Iterable[Batch], ratio: float) -> Iterator[BatchResult]:
    """As `run_stream`, but a batch that arrives before the last update has ended is predicted only."""
    free = 0.0
    for arrival, batch in enumerate(batches):
        if batch.reset:
            free = float(arrival)
        if free <= arrival + 1e-9:
            free = max(free, arrival) + ratio
            yield predict_and_adapt(adapter, batch)
        else:
            yield predict_only(adapter, batch, "missed: still busy")


# Distributed: each process of `torchrun` decodes and predicts its share of every batch, all take the update of the whole.


def init_distributed() -> int | None:
    """Join the process group of `torchrun`; the rank of this process, or None where there is only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank()


def close_distributed() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_state(adapter: Adapter, start: int) -> int:
    """Give all processes the adapter state of the first one; returns its place in the stream."""
    message: list[Any] = [(start, adapter.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(message)
    start, state = message[0]
    if dist.get_rank() != 0:
        adapter.load_state_dict(state)
    return int(start)


class ProcessShard(Shard):
    """The part of each batch that this process decodes: decoding is often slower than the model."""

    def select(self, indices: list[SampleIndex]) -> list[SampleIndex]:
        return [indices[place] for place in np.array_split(range(len(indices)), dist.get_world_size())[dist.get_rank()]]

    def gather(self, reasons: list[str | None]) -> list[str | None]:
        return [reason for share in _all_gather(reasons) for reason in share]


def _all_gather(value: Any) -> list[Any]:
    """The values of all processes, in the order of their ranks."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered
