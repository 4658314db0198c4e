"""Does navia compute the same on a GPU as on the CPU, and how fast? About three minutes; nothing is downloaded.

    python benchmarks/gpu_check.py > gpu.md             # paste it into an issue
    python benchmarks/gpu_check.py --device cpu         # the parts that need no GPU

Weights of the timed model are random. A section that fails is reported, and the others go on.
"""

import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from platform import python_version
from statistics import median
from typing import Any

import torch
from torch import Tensor

import navia
from cases import fixed_options, script_parser
from navia.data.sources import open_source
from navia.evaluation.latency import peak_memory, random_images
from navia.evaluation.synchronization import count_synchronizations
from navia.models.forward import forward
from navia.reduction import parse

# so that random numbers, which differ between devices, play no part
OPTIONS: dict[str, dict[str, Any]] = {
    "cotta": {"augmentations": 0, "restore": 0.0},
    "deyo": {"filter_margin": 1.0, "plpd": 0.0},
    "eata": {"margin": 1.0, "redundancy": 1.0},
    "foa": {"population": 4},
    "sar": {"margin": 1.0},
}
REDUCERS = ("none", "tome:8", "evit:8", "tofu:8")
CLOSE = 1e-2  # largest difference of two logits, relative to the largest logit
STEPS, IMAGES = 3, 16
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Lines = Iterable[str]


def table(*rows: tuple[object, ...]) -> Iterator[str]:
    """A Markdown table; the first row is its head."""
    for number, row in enumerate(rows):
        yield "| " + " | ".join(map(str, row)) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)


def embedded(device: torch.device) -> navia.ViT:
    """The embedded model, with its trained weights; on the CPU as if reading values waited there."""
    vit = navia.load("embedded").to(device)
    vit.asynchronous = True
    return vit


@cache
def batches() -> list[Tensor]:
    vit, source = navia.load("embedded"), open_source("embedded", STEPS * IMAGES)
    return [source.tensors(range(i * IMAGES, (i + 1) * IMAGES), vit.preprocessing) for i in range(STEPS)]


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found.cpu() - expected).abs().max() / expected.abs().max())


@cache
def source_statistics() -> navia.SourceStatistics:
    return navia.SourceStatistics.measure(navia.load("embedded"), batches()[0], "tome:8", fisher=True)


def adapters(method: str, device: torch.device) -> tuple[navia.Adapter, ...]:
    """The same adapter on the CPU and on the device."""
    given = {"source": source_statistics(), **OPTIONS.get(method, {})}
    return tuple(navia.adapt(vit, method, "tome:8", **given) for vit in (navia.load("embedded"), embedded(device)))


# ---- sections


def where(device: torch.device) -> Lines:
    yield f"- navia {version('navia')}, torch {torch.__version__}, timm {version('timm')}, Python {python_version()}"
    if device.type != "cuda":
        yield f"- {device}"
        return
    found = torch.cuda.get_device_properties(device)
    yield f"- {found.name}, compute capability {found.major}.{found.minor}, {found.total_memory / 2**30:.1f} GiB"
    yield f"- CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


def logits_parity(device: torch.device) -> Lines:
    x, vit, on_cpu = batches()[0], embedded(device), navia.load("embedded")
    rows: list[tuple[object, ...]] = [("reducer", "difference of logits", "equal predictions", "")]
    for reduce in REDUCERS:
        with torch.no_grad():
            found, expected = vit(x.to(device), reduce).cpu(), on_cpu(x, reduce)
        equal = float((found.argmax(dim=1) == expected.argmax(dim=1)).double().mean())
        apart = difference(found, expected)
        rows.append((reduce, f"{apart:.1e}", f"{equal:.0%}", "ok" if apart < CLOSE else "differs"))
    yield from table(*rows)
    yield ""
    yield "Reducers may choose differently between tokens that are nearly equal; without one nothing should differ."


def steps_parity(device: torch.device) -> Lines:
    rows: list[tuple[object, ...]] = [("method", "difference of logits after each step", "kept, CPU and device", "")]
    for method in navia.list_methods():
        try:
            on_cpu, on_device = adapters(method, device)
            apart = [difference(on_device(x.to(device)), on_cpu(x)) for x in batches()]
            assert on_cpu.last is not None
            assert on_device.last is not None
            kept = f"{on_cpu.last.kept}, {on_device.last.kept}"
            shown = ", ".join(f"{value:.1e}" for value in apart)
            rows.append((method, shown, kept, "ok" if max(apart) < CLOSE else "differs"))
        except Exception as error:  # the other methods may work
            rows.append((method, f"failed: {reason(error)}", "", "failed"))
    return table(*rows)


def waits(device: torch.device) -> Lines:
    rows: list[tuple[object, ...]] = [("method", "waits of a step", "waits of predict")]
    for method in navia.list_methods():
        try:
            _, adapter = adapters(method, device)
            images = [x.to(device) for x in batches()]
            adapter(images[0])
            counts = [waits_of(device, call, images[1]) for call in (adapter, adapter.predict)]
            rows.append((method, *counts))
        except Exception as error:  # the other methods may work
            rows.append((method, f"failed: {reason(error)}", ""))
    return table(*rows)


def waits_of(device: torch.device, call: Callable[[Tensor], object], images: Tensor) -> int:
    if device.type != "cuda":
        with count_synchronizations() as found:
            call(images)
        return sum(found.values())
    torch.cuda.synchronize(device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call(images)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def speed(device: torch.device, model: str, batch: int, rounds: int) -> Lines:
    rows: list[tuple[object, ...]] = [("precision", "dense forward, ms", "tome:8 forward", "navia + tome:8 step")]
    for name, dtype in PRECISIONS.items():
        with section_of_a_table(rows, name):
            calls = timed_calls(device, model, batch, dtype)
            dense, reduced, step = event_times(list(calls.values()), rounds)
            rows.append((name, f"{dense:.2f}", f"{reduced / dense:.2f}", f"{step / dense:.2f}"))
    yield f"{model}, batch {batch}; times relative to the dense forward of the same precision, medians of {rounds} rounds:"
    yield ""
    yield from table(*rows)


def memory(device: torch.device, model: str, batch: int) -> Lines:
    rows: list[tuple[object, ...]] = [("precision", "dense forward, MiB", "tome:8 forward", "navia + tome:8 step")]
    for name, dtype in PRECISIONS.items():
        with section_of_a_table(rows, name):
            calls = timed_calls(device, model, batch, dtype)
            rows.append((name, *(f"{peak_memory(call, device):.0f}" for call in calls.values())))
    return table(*rows)


def timed_calls(device: torch.device, model: str, batch: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    vit = navia.load(f"timm:{model}", pretrained=False).to(device, dtype)
    images = random_images(vit, batch)
    source = navia.SourceStatistics.measure(vit, images[:8], "tome:8")
    adapter = navia.adapt(vit, "navia", "tome:8", source, **fixed_options("navia"))

    def call(reduce: str) -> Callable[[], object]:
        return torch.no_grad()(lambda: forward(vit, images.to(dtype), parse(reduce)))

    return {"dense": call("none"), "reduced": call("tome:8"), "step": lambda: adapter(images)}


def event_times(calls: list[Callable[[], object]], rounds: int, warm_up: int = 3) -> list[float]:
    """Median milliseconds of each call by CUDA events, one after the other in every round."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(warm_up + rounds):
        for call, found in zip(calls, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            if number >= warm_up:
                found.append(start.elapsed_time(end))
    return [median(found) for found in times]


# ---- reports


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


@contextmanager
def section_of_a_table(rows: list[tuple[object, ...]], name: str) -> Iterator[None]:
    """A failure becomes a row, and memory is freed for the next one."""
    try:
        yield
    except Exception as error:
        rows.append((name, f"failed: {reason(error)}", "", ""))
    torch.cuda.empty_cache()


def report(title: str, make: Callable[[], Lines]) -> bool:
    """Print a section; False if it or a part of it failed."""
    print(f"\n## {title}\n", flush=True)
    start = time.perf_counter()
    try:
        lines = list(make())
    except Exception as error:  # the next sections are still of use
        traceback.print_exc()
        lines = [f"failed: {reason(error)}"]
    print("\n".join(lines))
    print(f"\n({time.perf_counter() - start:.0f} s)", flush=True)
    return not any("failed" in line for line in lines)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu: only what needs no GPU")
    parser.add_argument("--model", default="vit_base_patch16_224", help="timm name of the timed model")
    parser.add_argument("--batch", type=int, default=64, help="images per batch of the timed model")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no GPU here; --device cpu runs the parts that need none.")
        sys.exit(1)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # the patch embedding would use it, and be less exact than the CPU
    print("# GPU check")
    sections: dict[str, Callable[[], Lines]] = {
        "Device": lambda: where(device),
        "Logits: device and CPU, float32": lambda: logits_parity(device),
        "Adaptation steps: device and CPU, float32, tome:8": lambda: steps_parity(device),
        "Waits for the device": lambda: waits(device),
    }
    if device.type == "cuda":
        sections["Time"] = lambda: speed(device, options.model, options.batch, options.rounds)
        sections["Peak memory above the level before"] = lambda: memory(device, options.model, options.batch)
    passed = [report(title, make) for title, make in sections.items()]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
