"""Where a model runs."""

import ctypes
import functools
import os

import torch

from navia.errors import SpecError


def find_device(name: str = "auto") -> torch.device:
    """auto: a GPU where there is one (under torchrun each process its own), else the CPU. Others as torch names them."""
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpecError(f"no device {name!r} here; there is {', '.join(_present())}") from error
    return device


def use_tf32() -> None:
    """Let GPUs compute float32 matrix products with 10 bits of mantissa, in this process: faster, and less exact."""
    torch.set_float32_matmul_precision("high")


def use_deterministic_algorithms() -> None:
    """Let this process use deterministic algorithms where torch has them, and warn where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def use_threads(count: int) -> None:
    """Compute with `count` CPU threads in the calling thread. torch gives a thread that has not computed yet the number
    that any other thread set last, even over its own: asking makes it take that one up before ours is set."""
    torch.get_num_threads()
    torch.set_num_threads(count)


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees, for the next step to use: by default glibc hands large blocks back to the
    system at once, which clears every page of them anew when they are asked for again: a fifth of a step of 64 images. True
    where it could be done. NAVIA_RETURN_MEMORY=1 forbids it."""
    if os.environ.get("NAVIA_RETURN_MEMORY", "0") not in ("", "0") or not _has_glibc():
        return False
    trim_threshold, mmap_max = -1, -4  # numbers of malloc.h
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(mmap_max, 0)) and bool(libc.mallopt(trim_threshold, -1))


def _has_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError):
        return False


def _present() -> list[str]:
    return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
