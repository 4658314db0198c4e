"""Latency and peak memory of real runs."""

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor

from navia.models.base import ViT
from navia.reduction import Reducer


@dataclass(frozen=True)
class Timing:
    """Milliseconds per image: median and the quartiles over rounds; peak memory in MiB above the level before.

    On CPU the peak is that of the process's resident memory, on CUDA that of the allocator. device: where it ran."""

    batch: int
    rounds: int
    ms_per_image: float
    low: float
    high: float
    peak_mib: float
    device: str


def random_images(vit: ViT, count: int) -> Tensor:
    """[count, C, H, W] of the size that the model sees, where it lies."""
    height, width = vit.image_size or vit.preprocessing.size
    return torch.randn(count, vit.in_chans, height, width, device=vit.device)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper one, both within the values; of a single value itself."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return low, high


def measure_forward(vit: ViT, reducer: Reducer, batch: int, rounds: int) -> Timing:
    """Time forwards of random images under `no_grad`, after one warm-up round."""
    from navia.models.forward import forward

    images = random_images(vit, batch)

    def once() -> Tensor:
        with torch.no_grad():
            return forward(vit, images, reducer).logits

    return measure(once, batch, rounds, images.device)


def measure(call: Callable[[], object], batch: int, rounds: int, device: torch.device) -> Timing:
    """Time `call`, which handles `batch` images."""
    peak = peak_memory(call, device)  # warms up too
    times = []
    for _ in range(rounds):
        _synchronise(device)
        start = time.perf_counter()
        call()
        _synchronise(device)
        times.append((time.perf_counter() - start) * 1000 / batch)
    return Timing(batch, rounds, median(times), *quartiles(times), peak, str(device))


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """MiB that `call` needs at its peak beyond what was in use before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    before_kib = _reset_peak_resident()
    call()
    return max(0.0, peak_resident_mib() - before_kib / 1024)


def resident_mib() -> float:
    """The process's memory now; where the system does not tell, its largest so far."""
    try:
        return _status("VmRSS") / 1024
    except OSError:
        return peak_resident_mib()


def peak_resident_mib() -> float:
    """The process's largest memory since it started, or since `peak_memory` was last called."""
    return _peak_resident() / 1024


def _reset_peak_resident() -> float:
    """Start a new peak count where the system allows it; the resident size now, in KiB."""
    _return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _peak_resident()


def _return_freed_memory() -> None:
    """What the allocator keeps from earlier work would hide what the next work needs. Only glibc can be asked."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _peak_resident() -> float:
    try:
        return _status("VmHWM")
    except OSError:
        return maxrss_kib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def maxrss_kib(maxrss: int, platform: str) -> float:
    """getrusage counts KiB, but bytes on macOS."""
    return maxrss / 1024 if platform == "darwin" else float(maxrss)


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return float(line.split()[1])
    raise OSError(f"no {key} in the process status")


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
