"""Time and peak memory of real steps, and whether token reduction saves time."""

import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import SourceError
from navia.methods.base import METHODS
from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import NoReduction, Reducer, ReducerLike, parse

SMALL_BATCH = 8  # above it, reduction saved time on every measured ViT of 192 channels or more
_WARM_UP_SECONDS = 2.0  # on a GPU: it compiles and chooses kernels, and raises its clock
_FILL_IMAGES = 64  # at most so many before the first update: methods of batch statistics wait until they have enough
_SOURCE_IMAGES = 8  # random ones: the time of a step does not depend on the values of the source statistics

Run = tuple[str, Mapping[str, Any], Reducer]  # method, its options, reducer


@dataclass(frozen=True)
class Timing:
    """Measured time and memory of a step: prediction, backward pass and update; of the prediction for a method that never
    changes anything (none, lame).

    Attributes:
        batch: Images per step.
        rounds: Number of timed steps.
        ms_per_image: Median over the rounds; `low` and `high`: their quartiles.
        peak_mib: Peak memory in MiB above the level before the step: of the process on CPU, of the allocator on CUDA.
        device: Where it was measured.
        of_dense_forward: Time relative to the forward without adaptation and reduction, the median over the rounds.
        of_dense_step: Time relative to the step of the same method without reduction.
        updated: Whether the timed steps made an update.
    """

    batch: int
    rounds: int
    ms_per_image: float
    low: float
    high: float
    peak_mib: float
    device: str
    of_dense_forward: float
    of_dense_step: float
    updated: bool


@dataclass(frozen=True)
class ReductionTiming:
    """Best time of a forward of `batch` images in milliseconds, with the reducer and without."""

    reduce: str
    batch: int
    reduced_ms: float
    dense_ms: float

    @property
    def saves_time(self) -> bool:
        return self.reduced_ms <= self.dense_ms

    def __str__(self) -> str:
        saves = "saves time" if self.saves_time else "does not save time"
        return f"{self.reduce} {saves} at batch {self.batch}: {self.reduced_ms:.1f} ms with it, {self.dense_ms:.1f} without"


def time_reduction(vit: ViT, reduce: ReducerLike, batch_size: int = 1, rounds: int = 9) -> ReductionTiming:
    """Time forwards of random images with and without `reduce`, in turn, after a warm-up round.

    Matching and merging take a fixed time per block, more than a small model saves at a small batch size."""
    images, reducer = random_images(vit, batch_size), parse(reduce)
    with torch.no_grad():
        calls = [lambda used=used: forward(vit, images, used) for used in (reducer, NoReduction())]
        reduced, dense = (min(seconds) * 1000 for seconds in time_in_turn(calls, rounds, vit.device))
    return ReductionTiming(str(reducer), batch_size, reduced, dense)


def time_in_turn(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    device: torch.device | None = None,
    *,
    before: Sequence[Callable[[], object]] = (),
    warm_up: float = 0.0,
) -> list[list[float]]:
    """Seconds of each call in each round until `device` has finished it, one call after the other, after a warm-up round.

    Args:
        calls: What is timed.
        rounds: How often each is timed.
        device: Where they run; None for the CPU.
        before: Called before each of `calls`; not timed.
        warm_up: Repeat the warm-up round until so many seconds have passed.
    """

    def run_round() -> list[float]:
        seconds = []
        for place, call in enumerate(calls):
            if before:
                before[place]()
            wait_for(device)
            start = time.perf_counter()
            call()
            wait_for(device)
            seconds.append(time.perf_counter() - start)
        return seconds

    began = time.perf_counter()
    run_round()
    while time.perf_counter() - began < warm_up:
        run_round()
    return [list(times) for times in zip(*(run_round() for _ in range(rounds)), strict=True)]


def wait_for(device: torch.device | None) -> None:
    """Wait until a device has finished its work: calls of a GPU return before that. The CPU never has work left."""
    if device is not None and device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def faster_reducer(vit: ViT, reduce: ReducerLike, batch_size: int) -> tuple[Reducer, ReductionTiming | None]:
    """Return `reduce`, or no reduction if that is faster; and the timing, made for small batches on CPU only."""
    reducer = parse(reduce)
    if batch_size > SMALL_BATCH or vit.device.type != "cpu" or not any(reducer.tokens_per_block(vit.depth)):
        return reducer, None
    timing = time_reduction(vit, reducer, batch_size)
    return (reducer if timing.saves_time else NoReduction()), timing


def random_images(vit: ViT, count: int, seed: int = 0) -> Tensor:
    """[count, C, H, W] of the model's input size, on its device; equal seeds give equal images."""
    height, width = vit.image_size or vit.preprocessing.size
    drawn = torch.randn(count, vit.in_chans, height, width, generator=torch.Generator().manual_seed(seed), device="cpu")
    return drawn.to(vit.device)


@dataclass
class _TimedStep:
    """A step on one batch, made from the same state every time: many updates on one batch could end in NaN."""

    adapter: Adapter
    images: Tensor
    state: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        (self.adapter.predict if self.adapter.method.is_static else self.adapter)(self.images)

    def first_update(self) -> None:
        """Repeat the step until it makes an update, and keep the state after it."""
        self()
        while (last := self.adapter.last) and not last.updated and self.adapter.steps * last.images < _FILL_IMAGES:
            self()
        self.state = self.adapter.state_dict()

    def restore(self) -> None:
        self.adapter.load_state_dict(self.state)

    @property
    def updated(self) -> bool:
        return self.adapter.last is not None and self.adapter.last.updated


def measure_steps(vit: ViT, runs: Sequence[Run], batch_size: int, rounds: int) -> list[Timing]:
    """Time the whole step of each run on one batch of random images, as `adapter(images)` without the guard.

    All runs, the dense forward without adaptation and the dense steps of the methods are timed in turn, so that their
    ratios are fair on a computer with other work. Options that are not given are those of `Method.timing_options`.

    Args:
        vit: The model; it is not changed.
        runs: Method, its options and reducer of each run.
        batch_size: Images per step.
        rounds: Timed steps of each run.
    """
    dense, wanted = NoReduction(), list[Run]()

    def place(run: Run) -> int:
        if run not in wanted:
            wanted.append(run)
        return wanted.index(run)

    places = [(place(run), place(("none", {}, dense)), place((run[0], run[1], dense))) for run in runs]
    images = random_images(vit, batch_size)
    steps = [_TimedStep(_adapter(vit, *run), images) for run in wanted]
    peaks = [peak_memory(step.first_update, vit.device) for step in steps]
    warm_up = 0.0 if vit.device.type in ("cpu", "meta") else _WARM_UP_SECONDS
    before = [step.restore for step in steps]
    seconds = np.array(time_in_turn(steps, rounds, vit.device, before=before, warm_up=warm_up))
    timings = []
    for own, forward_place, step_place in places:
        low, middle, high = (np.quantile(seconds[own], (0.25, 0.5, 0.75)) * 1000 / batch_size).tolist()
        of_forward, of_step = (float(np.median(seconds[own] / seconds[other])) for other in (forward_place, step_place))
        peak, device, updated = peaks[own], str(vit.device), steps[own].updated
        timings.append(Timing(batch_size, rounds, middle, low, high, peak, device, of_forward, of_step, updated))
    return timings


def _adapter(vit: ViT, method: str, options: Mapping[str, Any], reducer: Reducer) -> Adapter:
    """Without the guard, with source statistics of random images where the method needs them."""
    kind = METHODS.get(method)
    settings = {**kind.timing_options, **options, "guard": False}
    try:
        return adapt(vit, method, reducer, **settings)
    except SourceError:
        images = random_images(vit, _SOURCE_IMAGES, seed=1)
        return adapt(
            vit, method, reducer, SourceStatistics.measure(vit, images, reducer, fisher=kind.needs_fisher), **settings
        )


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """Peak memory of `call` in MiB above the memory in use before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # memory that glibc keeps would hide what the call needs
    try:
        Path("/proc/self/clear_refs").write_text("5")  # starts a new peak count
        before_mib = resident_mib()
    except OSError:
        before_mib = peak_resident_mib()
    call()
    return max(0.0, peak_resident_mib() - before_mib)


def resident_mib(key: str = "VmRSS") -> float:
    """Resident memory of the process; its peak so far where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return float(line.split()[1]) / 1024
    return maxrss_mib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def peak_resident_mib() -> float:
    """Peak since the process started, or since the last call of `peak_memory`."""
    return resident_mib("VmHWM")


def maxrss_mib(maxrss: int, platform: str) -> float:
    """getrusage counts KiB, but bytes on macOS."""
    return maxrss / 2**20 if platform == "darwin" else maxrss / 2**10
