"""Time and peak memory of real runs, and whether token reduction saves time."""

import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import NoReduction, Reducer, ReducerLike, parse

SMALL_BATCH = 8  # above it, reduction saved time on every measured ViT of 192 channels or more


@dataclass(frozen=True)
class Timing:
    """Milliseconds per image (median and quartiles over rounds) and peak memory in MiB above the level before.

    On CPU the peak is the resident memory of the process, on CUDA that of the allocator."""

    batch: int
    rounds: int
    ms_per_image: float
    low: float
    high: float
    peak_mib: float
    device: str


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
    calls: Sequence[Callable[[], object]], rounds: int, device: torch.device | None = None
) -> list[list[float]]:
    """Seconds of each call in each round until `device` has finished it, one call after the other, after a warm-up round."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 1):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            wait_for(device)
            times.append(time.perf_counter() - start)
    return [times[1:] for times in seconds]


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


def random_images(vit: ViT, count: int) -> Tensor:
    """[count, C, H, W] of the model's input size, on its device."""
    height, width = vit.image_size or vit.preprocessing.size
    return torch.randn(count, vit.in_chans, height, width, device=vit.device)


def measure_forward(vit: ViT, reducer: Reducer, batch_size: int, rounds: int) -> Timing:
    images = random_images(vit, batch_size)
    return measure(torch.no_grad()(lambda: forward(vit, images, reducer)), batch_size, rounds, images.device)


def measure(call: Callable[[], object], batch_size: int, rounds: int, device: torch.device) -> Timing:
    """Time `call`, which processes `batch_size` images."""
    peak = peak_memory(call, device)  # also the warm-up
    wait_for(device)
    ends = [time.perf_counter()]
    for _ in range(rounds):
        call()
        wait_for(device)
        ends.append(time.perf_counter())
    low, middle, high = (np.quantile(np.diff(ends), (0.25, 0.5, 0.75)) * 1000 / batch_size).tolist()
    return Timing(batch_size, rounds, middle, low, high, peak, str(device))


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
