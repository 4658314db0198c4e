"""Forwards and adaptation steps timed against timm's own dense forward.

All calls of a setting run in turn, round after round, so that each ratio compares calls that are close in time. Weights are
random and learning rates zero: every round does the same work. Methods that select images are set to keep all of them.
"""

import argparse
import dataclasses
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import SpecError
from navia.evaluation.cost import cost
from navia.evaluation.latency import random_images
from navia.methods.base import METHODS
from navia.methods.parameters import private_copy
from navia.models.base import ViT
from navia.models.forward import forward
from navia.models.load import load as load_vit
from navia.models.precision import check_precision
from navia.reduction import ToMe, parse
from plain import library_forward, library_step
from roofline import BareGemms, Passes, Work, roofline, work_of

LIBRARY = "timm"
_RATES = ("lr", "eta_delta", "eta_delta_l")
# Predictions of random weights are all uncertain: at their defaults these methods would keep no image for an update.
_KEEP_ALL: dict[str, dict[str, float]] = {
    "sar": {"margin": 2.0, "recover": 0.0},
    "eata": {"margin": 2.0, "redundancy": 2.0},
    "deyo": {"filter_margin": 2.0, "plpd": 0.0},
    "cotta": {"confidence_threshold": 0.0},
}
_WARM_UP_IMAGES = 8  # the feature buffer of smaller batches needs as many before the first update


@dataclass(frozen=True)
class Setting:
    """model: a timm name, or "embedded". options: arguments of its constructor, such as img_size and depth."""

    model: str
    batch: int
    options: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        options = "".join(f", {name.replace('_', ' ')} {value}" for name, value in self.options)
        return f"{self.model}{options}, batch {self.batch}"


@dataclass(frozen=True)
class Case:
    """method: of a step; "timm": what users do without navia, see `plain.py`. precision: of the blocks. updated: false: a
    batch that is predicted and not adapted to, as sparse adaptation does."""

    call: Literal["forward", "step"]
    method: str = "none"
    reduce: str = "none"
    precision: str = "float32"
    updated: bool = True

    def __str__(self) -> str:
        if self.method == LIBRARY:
            parts = [f"{LIBRARY} {self.call}", *([] if self.reduce == "none" else [self.reduce])]
        else:
            parts = ["forward" if self.call == "forward" else self.method, self.reduce]
        parts += ["no update"] * (not self.updated) + [self.precision] * (self.precision != "float32")
        return ", ".join(parts)


DENSE = Case("forward", LIBRARY)
PLAIN_STEP = Case("step", LIBRARY)


@dataclass(frozen=True)
class Row:
    """One case in one setting.

    ratio: median time over that of the dense forward; low, high: quartiles of the ratio per round; best: ratio of the best
    times. macs: forward multiply-accumulates by `navia.cost`, relative to dense. products: matrix products of the whole
    call with its backward passes, relative to the dense forward. gflops, gflops_bare, share: see `roofline`. peak_mib:
    resident memory above the level before; allocated_mib: sum of all allocations; both of one call in its own process, None
    if not measured. kept: images used by the last update.
    """

    model: str
    options: dict[str, int]
    batch: int
    call: str
    method: str
    reduce: str
    precision: str
    name: str
    rounds: int
    ms_per_image: float
    ratio: float
    low: float
    high: float
    best: float
    macs: float
    products: float
    gflops: float
    gflops_bare: float
    share: float
    kept: int | None = None
    guard: str | None = None
    peak_mib: float | None = None
    allocated_mib: float | None = None


# ---- calls


@dataclass
class Runner:
    """A call, and its adapter if it is a step."""

    call: Callable[[Tensor], object]
    adapter: Adapter | None = None

    def __call__(self, images: Tensor) -> object:
        return self.call(images)

    def warm_up(self, images: Tensor) -> None:
        """Call until updates are made: the feature buffer of small batches needs some images first."""
        for _ in range(math.ceil(_WARM_UP_IMAGES / len(images))):
            self.call(images)
            last = None if self.adapter is None else self.adapter.last
            if last is None or last.kept:
                break


def load(setting: Setting) -> ViT:
    torch.manual_seed(0)
    if setting.model == "embedded":
        return load_vit("embedded")
    options: dict[str, Any] = dict(setting.options)
    return load_vit(f"timm:{setting.model}", pretrained=False, **options)


def runner(vit: ViT, case: Case, guard: bool = True) -> Runner:
    if case.method == LIBRARY:
        return Runner(library_step(vit, case) if case.call == "step" else library_forward(vit, case))
    vit = load_vit(vit, precision=case.precision)
    if case.call == "forward":
        return Runner(_forward(vit, case))
    source = SourceStatistics.measure(vit, random_images(vit, 2), case.reduce, fisher=METHODS.get(case.method).needs_fisher)

    every = 1 if case.updated else 10**9
    adapter = adapt(vit, case.method, case.reduce, source, guard=guard, adapt_every=every, **fixed_options(case.method))
    return Runner(adapter, adapter)


def fixed_options(method: str) -> dict[str, Any]:
    """Options with which a method does its full work on every batch and leaves its parameters unchanged."""
    known = {field.name for field in dataclasses.fields(METHODS.get(method).Options)}
    return {rate: 0.0 for rate in _RATES if rate in known} | _KEEP_ALL.get(method, {})


def _forward(vit: ViT, case: Case) -> Callable[[Tensor], object]:
    reducer = parse(case.reduce)
    ready = private_copy(vit, [])  # as adapters have it: converted once

    @torch.no_grad()
    def call(images: Tensor) -> object:
        return forward(ready, images, reducer).logits

    return call


def passes_of(vit: ViT, case: Case) -> Passes:
    """Forward and backward passes of a call with `fixed_options`."""
    if case.method == LIBRARY:
        return Passes(backwards=int(case.call == "step"), full_last_block=True)
    if not case.updated:
        return Passes()
    if case.call == "forward":
        return Passes()
    kind = METHODS.get(case.method)
    options = kind.Options(**fixed_options(case.method))
    tuned = dict(vit.model.named_parameters())
    weights = any(tuned[name].dim() > 1 for name in kind.tuned_names(vit, options))
    prompts = kind.num_extra_tokens(options)
    backwards = kind.num_backwards(vit, options)
    extra_heads = int(getattr(options, "shift", False))  # FOA shifts the features after a first classification
    return Passes(kind.num_forwards(vit, options), backwards, weights, prompts, extra_heads=extra_heads)


# ---- time


def compare(
    setting: Setting,
    cases: Iterable[Case],
    rounds: int,
    guard: bool = True,
    on_round: Callable[[int], None] = lambda _: None,
) -> list[Row]:
    """Rows of the library's dense forward and of all cases, timed in turn."""
    vit = load(setting)
    images = random_images(vit, setting.batch)
    runners = {case: runner(vit, case, guard) for case in dict.fromkeys((DENSE, *cases))}
    works = {case: work_of(vit, parse(case.reduce), setting.batch, passes_of(vit, case)) for case in runners}
    bare = BareGemms((work, case.precision) for case, work in works.items())
    for made in runners.values():
        made.warm_up(images)
    times: dict[Case, list[float]] = {case: [] for case in runners}
    for number in range(rounds):
        for case, made in runners.items():
            times[case].append(seconds_of(made, images))
        bare.round()
        on_round(number + 1)
    return [_row(vit, setting, case, runners[case], works, times, bare) for case in runners]


def seconds_of(call: Callable[[Tensor], object], images: Tensor) -> float:
    start = time.perf_counter()
    call(images)
    return time.perf_counter() - start


def _row(
    vit: ViT,
    setting: Setting,
    case: Case,
    made: Runner,
    works: dict[Case, Work],
    times: dict[Case, list[float]],
    bare: BareGemms,
) -> Row:
    seconds, dense = times[case], times[DENSE]
    ratio, low, high = spread(seconds, dense)
    last = None if made.adapter is None else made.adapter.last
    passes = passes_of(vit, case)
    counted = cost(vit, case.reduce, forwards=passes.forwards, prompts=passes.prompts).gmacs / cost(vit).gmacs
    return Row(
        model=setting.model,
        options=dict(setting.options),
        batch=setting.batch,
        call=case.call,
        method=case.method,
        reduce=case.reduce,
        precision=case.precision,
        name=str(case),
        rounds=len(seconds),
        ms_per_image=1000 * median(seconds) / setting.batch,
        ratio=ratio,
        low=low,
        high=high,
        best=min(seconds) / min(dense),
        macs=counted,
        products=works[case].macs / works[DENSE].macs,
        **roofline(works[case], median(seconds), bare, case.precision)._asdict(),
        kept=None if last is None else last.kept,
        guard=None if last is None else last.guard,
    )


def spread(seconds: Sequence[float], dense: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the medians, and quartiles of the ratios of single rounds."""
    ratios = [own / base for own, base in zip(seconds, dense, strict=True)]
    return median(seconds) / median(dense), *np.quantile(ratios, (0.25, 0.75)).tolist()


def check_case(case: Case) -> None:
    """Raise for an unknown method or reducer before anything is timed."""
    parse(case.reduce)
    if case.method != LIBRARY:
        METHODS.get(case.method)
    elif case.reduce != "none" and not isinstance(parse(case.reduce), ToMe):
        raise SpecError(f"the library's own {case.call} takes tome only, got {case.reduce!r}")
    check_precision(case.precision)


def script_parser(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


# ---- where it was measured


def computer() -> dict[str, Any]:
    """Versions, processor and threads: ratios can be compared between computers, milliseconds cannot."""
    return {
        "versions": {name: version(name) for name in ("navia", "torch", "timm")} | {"python": platform.python_version()},
        "cpu": next(iter(_proc("cpuinfo", "model name")), platform.processor() or platform.machine()),
        "instructions": instruction_sets(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def instruction_sets() -> list[str]:
    """Those that matter for speed: float32 products use AVX2 or AVX-512, int8 VNNI, bfloat16 its own; AMX both."""
    flags = set(next(iter(_proc("cpuinfo", "flags")), "").split())
    names = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
    return [name for name in names if name in flags]


def available_mib() -> float | None:
    """Free memory, where the system reports it."""
    found = _proc("meminfo", "MemAvailable")
    return int(found[0].split()[0]) / 1024 if found else None


def _proc(file: str, key: str) -> list[str]:
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(key)]
