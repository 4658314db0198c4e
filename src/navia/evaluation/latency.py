"""Time and peak memory of real runs, and whether token reduction saves time."""

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

    Choosing and merging tokens takes a fixed time per block, which a small model at a small batch does not win back."""
    images, reducers = random_images(vit, batch_size), (parse(reduce), NoReduction())
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for _ in range(rounds + 1):
            for reducer, times in zip(reducers, seconds, strict=True):
                start = time.perf_counter()
                forward(vit, images, reducer).logits.sum().item()  # waits for the result on every device
                times.append(time.perf_counter() - start)
    reduced, dense = (min(times[1:]) * 1000 for times in seconds)
    return ReductionTiming(str(reducers[0]), batch_size, reduced, dense)


def faster_reducer(vit: ViT, reduce: ReducerLike, batch_size: int) -> tuple[Reducer, ReductionTiming | None]:
    """Return `reduce`, or no reduction if that is faster; and the timing, which is made for small batches on CPU only."""
    reducer = parse(reduce)
    if batch_size > SMALL_BATCH or vit.device.type != "cpu" or not any(reducer.tokens_per_block(vit.depth)):
        return reducer, None
    measured = time_reduction(vit, reducer, batch_size)
    return (reducer if measured.saves_time else NoReduction()), measured


def random_images(vit: ViT, count: int) -> Tensor:
    """[count, C, H, W] of the model's input size, on its device."""
    height, width = vit.image_size or vit.preprocessing.size
    return torch.randn(count, vit.in_chans, height, width, device=vit.device)


def measure_forward(vit: ViT, reducer: Reducer, batch_size: int, rounds: int) -> Timing:
    """Time forwards of random images under `no_grad`, after one warm-up round."""
    images = random_images(vit, batch_size)
    return measure(torch.no_grad()(lambda: forward(vit, images, reducer).logits), batch_size, rounds, images.device)


def measure(call: Callable[[], object], batch_size: int, rounds: int, device: torch.device) -> Timing:
    """Time `call`, which processes `batch_size` images."""
    peak = peak_memory(call, device)  # also the warm-up
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - start) * 1000 / batch_size)
    low, middle, high = map(float, np.quantile(times, (0.25, 0.5, 0.75)))
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


def resident_mib() -> float:
    """Resident memory of the process; its peak so far where the system does not report it."""
    return _status_mib("VmRSS") or peak_resident_mib()


def peak_resident_mib() -> float:
    """Peak resident memory of the process since it started, or since the last call of `peak_memory`."""
    return _status_mib("VmHWM") or maxrss_mib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def maxrss_mib(maxrss: int, platform: str) -> float:
    """getrusage counts KiB, but bytes on macOS."""
    return maxrss / 2**20 if platform == "darwin" else maxrss / 2**10


def _status_mib(key: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:")), None)
