"""Memory of a call, each measured in a process of its own; and whether a call is worth trying at all."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch

from navia.evaluation.latency import peak_memory, random_images
from navia.evaluation.speed import Case, Setting, load, passes_of, runner
from navia.models.device import keep_freed_memory

_FLOATS_PER_TOKEN = 12  # that a dense step keeps in every block, in widths of the model; measured, rounded up
_MIB = 2**20

T = TypeVar("T")


def measure_memory(setting: Setting, case: Case, threads: int, guard: bool = True) -> tuple[float, float]:
    """Peak above the level before and sum of all allocations of one call, in MiB. For a process of its own: what large
    calls have used before would hide what small ones need."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    vit = load(setting)
    images, few = random_images(vit, setting.batch), random_images(vit, 2)
    made = runner(vit, case, guard)
    made.warm_up(few)  # code and workspaces are there whatever is called
    return peak_memory(lambda: made(images), images.device), allocated(lambda: made(images))


def allocated(call: Callable[[], object]) -> float:
    """MiB that a call asks for in all, however soon it gives them back."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events: Iterable[Any] = profiler.events() or ()
    return sum(max(0, event.self_cpu_memory_usage) for event in events) / _MIB


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T | None:
    """What `function` gives in a process that has done nothing yet but import; None if that was ended from outside, as for
    want of memory."""
    with ProcessPoolExecutor(1, mp_context=_fresh()) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            return None


def _fresh() -> BaseContext:
    """Where the system can: processes forked off one that has only the imports behind it, which take longest."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["navia.evaluation.memory", "navia.models.timm"])
    return context


def needed_mib(setting: Setting, case: Case) -> float:
    """A rough estimate of what a call needs beside the weights, without making any: is it worth trying?"""
    with torch.device("cpu" if setting.model == "embedded" else "meta"):  # the embedded model brings its weights along
        vit = load(setting)
    tokens = setting.batch * (vit.grid[0] * vit.grid[1] + vit.num_prefix_tokens)
    kept = vit.depth if passes_of(vit, case).backwards else 1
    return 4 * tokens * vit.embed_dim * _FLOATS_PER_TOKEN * kept / _MIB
