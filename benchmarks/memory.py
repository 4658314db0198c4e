"""Peak memory of a whole process that makes one adaptation step, and the seconds of that step.

python benchmarks/memory.py vit_base_patch16_224 64 align none            as it is
python benchmarks/memory.py vit_base_patch16_224 64 align none --lean     with blocks computed again in the backward pass
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch

import navia
from cases import Case, Setting, load, passes_of, runner, script_parser
from navia.evaluation.latency import peak_memory, peak_resident_mib, random_images
from navia.methods.base import METHODS
from navia.models.device import keep_freed_memory

_FLOATS_PER_TOKEN = 12  # kept by a dense step in every block, in multiples of the width; measured, rounded up
_MIB = 2**20

T = TypeVar("T")


def measure_memory(setting: Setting, case: Case, threads: int, guard: bool = True) -> tuple[float, float]:
    """Peak above the level before and sum of all allocations of one call, in MiB. Run it in a process of its own: memory
    freed by earlier, larger calls would hide what this one needs."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    vit = load(setting)
    images = random_images(vit, setting.batch)
    made = runner(vit, case, guard)
    made.warm_up(random_images(vit, 2))  # loads code and workspaces, which every call needs
    return peak_memory(lambda: made(images), images.device), allocated(lambda: made(images))


def allocated(call: Callable[[], object]) -> float:
    """Sum of all allocations of a call in MiB, freed or not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events: Iterable[Any] = profiler.events() or ()
    return sum(max(0, event.self_cpu_memory_usage) for event in events) / _MIB


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T | None:
    """Result of `function` in a new process; None if the process was killed, for example by the out-of-memory killer."""
    with ProcessPoolExecutor(1, mp_context=_context()) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            return None


def _context() -> BaseContext:
    """Forks from a server process that has already made the imports, where the system can do this."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["memory", "navia.models.timm"])
    return context


def needed_mib(setting: Setting, case: Case) -> float:
    """A rough estimate of the memory of a call beside the weights, without allocating it."""
    with torch.device("cpu" if setting.model == "embedded" else "meta"):  # the embedded model comes with its weights
        vit = load(setting)
    tokens = setting.batch * (vit.grid[0] * vit.grid[1] + vit.num_prefix_tokens)
    kept = vit.depth if passes_of(vit, case).backwards else 1
    return 4 * tokens * vit.embed_dim * _FLOATS_PER_TOKEN * kept / _MIB


def main() -> None:
    keep_freed_memory()
    parser = script_parser(__doc__)
    parser.add_argument("model", help="timm name; its weights are random")
    parser.add_argument("batch", type=int)
    parser.add_argument("method")
    parser.add_argument("reduce")
    parser.add_argument("--lean", action="store_true", help="compute blocks again in the backward pass")
    options = parser.parse_args()
    vit = navia.load(f"timm:{options.model}", pretrained=False, grad_checkpointing=options.lean)
    images = random_images(vit, options.batch)
    fisher = METHODS.get(options.method).needs_fisher
    source = navia.SourceStatistics.measure(vit, images[:2], options.reduce, fisher=fisher)
    adapter = navia.adapt(vit, options.method, options.reduce, source)
    adapter(images[:8])  # warm-up
    start = time.perf_counter()
    adapter(images)
    seconds = time.perf_counter() - start
    print(f"peak of the process {peak_resident_mib() / 1024:.2f} GiB, {seconds:.1f} s for a step of {options.batch} images")


if __name__ == "__main__":
    main()
