"""One stream through one adapter, batch by batch: predict, then adapt. In full, for a few batches only, in real time, or
divided over the processes of `torchrun`."""

import copy
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.schedule import Schedule
from navia.adaptation.step import Step
from navia.bench.spec import TsneSpec
from navia.data.loader import Batch, Loader, SampleIndex, Shard, move_images
from navia.data.sources import OpenedData
from navia.data.streams import Segment, Stream
from navia.errors import InputError, SpecError
from navia.evaluation.explain import NEIGHBOURS, check_sklearn, neighbour_accuracy, tsne_points
from navia.evaluation.latency import time_in_turn
from navia.methods.features import entropy
from navia.models.base import ViT
from navia.models.labels import class_names
from navia.models.load import load

FREQUENT = 8  # classes, if the spec names none
MAX_IMAGES = 1000  # more cannot be distinguished in a panel and do not fit into a page


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
    logits = adapter(move_images(batch.images, adapter.device)).detach().cpu()
    assert adapter.last is not None
    return BatchResult(batch, torch.cat(_all_gather(logits)) if distributed else logits, adapter.last)


def predict_only(adapter: Adapter, batch: Batch, note: str) -> BatchResult:
    """Predict a batch without adapting to it. note: why, for the step."""
    start = time.perf_counter()
    logits = adapter.predict(move_images(batch.images, adapter.device)).detach()
    mean_entropy = entropy(logits.float()).mean().item()  # waits for the device, so the time below is that of the prediction
    took = time.perf_counter() - start
    step = Step(
        number=adapter.steps, images=len(batch.images), entropy=mean_entropy, loss=None,
        discrepancy=None, kept=0, guard=None, note=note, seconds_predict=took, seconds_update=0.0,
    )  # fmt: skip
    return BatchResult(batch, logits.cpu(), step)


def adapt_then_score(adapter: Adapter, loader: Loader, count: int) -> Iterator[BatchResult]:
    """Adapt to the first `count` batches, then predict the last third of the stream without adapting."""
    held_out = held_out_from(len(loader))
    if not 0 < count <= held_out:
        raise SpecError(f"{count} batches to adapt to, but only {held_out} come before the last third of the stream")
    for number, batch in enumerate(loader):
        if number < count:
            adapter(move_images(batch.images, adapter.device))
        elif number >= held_out:
            yield predict_only(adapter, batch, "scored only")


def held_out_from(batches: int) -> int:
    """The number of the first batch of the last third."""
    return batches * 2 // 3


# Real time (Alfarra et al., 2023): batches arrive at the speed of the dense model without adaptation. While a method is busy
# with an earlier batch, the next ones are predicted in its last state and not adapted to. The clock is simulated from two
# measured ratios: equal ratios give equal results.


def step_ratios(vit: ViT, adapter: Adapter, images: Tensor, rounds: int = 5) -> tuple[float, float]:
    """Time of the adapter's step with an update, and of one without it (`adapt_every`), over that of the dense float32
    forward without adaptation: interleaved, medians, at least 1. Copies of the adapter are timed; it does not
    change itself."""
    images = move_images(images, vit.device)
    updating, skipping = copy.deepcopy(adapter), copy.deepcopy(adapter)
    updating.schedule, skipping.schedule.wait = Schedule(1), sys.maxsize
    calls = [partial(runner, images) for runner in (adapt(load(vit, precision="float32"), "none"), updating, skipping)]
    dense, *steps = map(statistics.median, time_in_turn(calls, rounds, vit.device))
    update, skip = (max(1.0, round(step / dense, 2)) for step in steps)
    return update, skip


def run_realtime(adapter: Adapter, batches: Iterable[Batch], ratio: float, skip_ratio: float = 1.0) -> Iterator[BatchResult]:
    """As `run_stream`, but a batch that arrives before the last step has ended is predicted only. ratio, skip_ratio: of
    `step_ratios`."""
    free = 0.0
    for arrival, batch in enumerate(batches):
        if batch.reset:
            free = float(arrival)
        if free <= arrival + 1e-9:
            free = max(free, arrival) + (ratio if batch.reset or adapter.schedule.due else skip_ratio)
            yield predict_and_adapt(adapter, batch)
        else:
            yield predict_only(adapter, batch, "missed: still busy")


# The t-SNE of a cell: CLS features of some blocks, for the held-out images of some classes, after adaptation has ended.


def select_images(tsne: TsneSpec, vit: ViT, opened: OpenedData, loader: Loader) -> tuple[Stream, dict[str, Any]]:
    """Choose images of the last third of the stream. What is missing is refused by name, before the cell adapts.

    Returns:
        The images; and for the trace, the classes of the model, their names, and the labels as indices into the classes.
    """
    check_sklearn()
    if beyond := [block for block in tsne.blocks if block >= vit.depth]:
        raise SpecError(f"tsne names {_plural('block', beyond)}, but the model has blocks 0..{vit.depth - 1}")
    indices = [(domain, position) for batch in loader.plan[held_out_from(len(loader)) :] for _, domain, position in batch]
    labels = [loader.stream.domains[domain].label(position) for domain, position in indices]
    if opened.classes:  # data with fewer classes than the model number their own
        labels = [opened.classes[label] if label >= 0 else label for label in labels]
    names = opened.names or class_names(vit) or tuple(f"class {i}" for i in range(vit.num_classes))
    times = Counter(names)  # two classes of ImageNet are called crane
    names = tuple(name if times[name] == 1 else f"{name} ({i})" for i, name in enumerate(names))
    classes = _classes(tsne, labels, names)
    kept = [i for i, label in enumerate(labels) if label in classes][:MAX_IMAGES]
    if len(classes) < 2 or len(kept) <= NEIGHBOURS:
        raise InputError(
            f"t-SNE needs at least 2 classes and {NEIGHBOURS + 1} labelled images in the last third of the stream, there "
            f"are {len(classes)} and {len(kept)}: give more images"
        )
    stream = Stream(loader.stream.domains, (Segment("held out", np.array([indices[i] for i in kept])),))
    shown = {"classes": list(classes), "names": [names[label] for label in classes]}
    groups = {label: group for group, own in (tsne.groups or {}).items() for label in own}
    if groups and all(label in groups for label in classes):  # not where the most frequent classes stand in for others
        shown["groups"] = [groups[label] for label in classes]
    return stream, {**shown, "labels": [classes.index(labels[i]) for i in kept]}


def _classes(tsne: TsneSpec, labels: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    counts = Counter(label for label in labels if label >= 0)
    wanted = tsne.classes or ()
    unknown = [label for label in wanted if label >= len(names)]
    absent = [f"{label} ({names[label]})" for label in wanted if label < len(names) and not counts[label]]
    if tsne.classes is None or (tsne.or_frequent and (unknown or absent)):
        return tuple(sorted(sorted(counts, key=lambda label: (-counts[label], label))[:FREQUENT]))
    if unknown:
        raise SpecError(f"tsne names {_plural('class', unknown)}, but the model has classes 0..{len(names) - 1}")
    if absent:
        raise InputError(f"tsne names {_plural('class', absent)}, but the last third of the stream has no image of it")
    return wanted


def _plural(kind: str, things: Sequence[object]) -> str:
    ending = "" if len(things) == 1 else "es" if kind == "class" else "s"
    return f"{kind}{ending} {', '.join(map(str, things))}"


def tsne_panels(
    adapter: Adapter, blocks: Sequence[int], batches: Iterable[Batch], labels: Sequence[int]
) -> list[dict[str, Any]]:
    """For each block the points, and the accuracy of the nearest neighbours in the space of the features."""
    found = []
    for part in batches:
        features = adapter.features(move_images(part.images, adapter.device)).features
        assert features is not None
        found.append(features[:, list(blocks)].cpu())
    panels = []
    for block, features in zip(blocks, torch.cat(found).unbind(dim=1), strict=True):
        layout, accuracy = tsne_points(features), neighbour_accuracy(features, torch.tensor(labels))
        points = None if layout is None else [[round(x, 2), round(y, 2)] for x, y in layout.tolist()]
        panels.append({"block": block, "neighbours": accuracy, "points": points})
    return panels


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
