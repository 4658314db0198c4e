"""How long forwards and adaptation steps take beside the library's own dense forward, and how much memory they need.

All calls of a setting are made in turn, round after round, so that each ratio compares neighbours in time. Weights are
random and learning rates zero: every round does the same work. Methods that choose among images are told to take them all.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import SpecError
from navia.evaluation.cost import cost
from navia.evaluation.latency import quartiles, random_images
from navia.evaluation.roofline import BareGemms, Passes, Work, roofline, work_of
from navia.methods.base import METHODS
from navia.methods.features import entropy
from navia.methods.parameters import norm_parameters, private_copy
from navia.models.base import ViT
from navia.models.forward import forward
from navia.models.load import load as load_vit
from navia.reduction import parse

LIBRARY = "timm"
_RATES = ("lr", "eta_delta", "eta_delta_l")
# Random weights are sure of nothing: at their defaults these methods would find no image worth an update.
_TAKE_ALL: dict[str, dict[str, float]] = {
    "sar": {"margin": 2.0, "recover": 0.0},
    "eata": {"margin": 2.0, "redundancy": 2.0},
    "deyo": {"filter_margin": 2.0, "plpd": 0.0},
    "cotta": {"unsure": 0.0},
}
_WARM_UP_IMAGES = 8  # the statistics of smaller batches need so many before the first update


@dataclass(frozen=True)
class Setting:
    """model: a name of timm's, or "embedded". options: of its constructor, such as img_size and depth."""

    model: str
    batch: int
    options: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        options = "".join(f", {name.replace('_', ' ')} {value}" for name, value in self.options)
        return f"{self.model}{options}, batch {self.batch}"


@dataclass(frozen=True)
class Case:
    """method: that of a step; "timm": the library's own forward or step, which knows no reducer."""

    call: Literal["forward", "step"]
    method: str = "none"
    reduce: str = "none"

    def __str__(self) -> str:
        if self.method == LIBRARY:
            return f"{LIBRARY} {self.call}"
        return f"forward, {self.reduce}" if self.call == "forward" else f"{self.method}, {self.reduce}"


DENSE = Case("forward", LIBRARY)
PLAIN_STEP = Case("step", LIBRARY)


@dataclass(frozen=True)
class Row:
    """One case in one setting.

    ratio: of median times to the dense forward's; low, high: quartiles of the ratio round by round; best: of best times.
    macs: forward multiply-accumulates by `navia.cost`, relative to dense. products: matrix products of the whole call, those
    of backward passes included, relative to the dense forward's. gflops, gflops_bare, share: see `roofline`. peak_mib:
    resident memory above the level before, allocated_mib: sum of all allocations, both of one call in its own process;
    None where not measured. kept: images that the last update used.
    """

    model: str
    options: dict[str, int]
    batch: int
    call: str
    method: str
    reduce: str
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
    """A call, and the adapter behind it where there is one."""

    call: Callable[[Tensor], object]
    adapter: Adapter | None = None

    def __call__(self, images: Tensor) -> object:
        return self.call(images)

    def warm_up(self, images: Tensor) -> None:
        """Until updates are made: the statistics of small batches need some images first."""
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
    if case == PLAIN_STEP:
        return Runner(_plain_step(vit))
    if case.call == "forward":
        return Runner(_forward(vit, case))
    source = SourceStatistics.measure(vit, random_images(vit, 2), case.reduce, fisher=METHODS.get(case.method).needs_fisher)
    adapter = adapt(vit, case.method, case.reduce, source, guard=guard, **still(case.method))
    return Runner(adapter, adapter)


def still(method: str) -> dict[str, Any]:
    """Options under which a method does its whole work on every batch and ends where it began."""
    known = {field.name for field in dataclasses.fields(METHODS.get(method).Options)}
    return {rate: 0.0 for rate in _RATES if rate in known} | _TAKE_ALL.get(method, {})


def _forward(vit: ViT, case: Case) -> Callable[[Tensor], object]:
    reducer = parse(case.reduce)

    @torch.no_grad()
    def call(images: Tensor) -> object:
        return vit.model(images) if case.method == LIBRARY else forward(vit, images, reducer).logits

    return call


def _plain_step(vit: ViT) -> Callable[[Tensor], object]:
    """What autograd alone makes of the library's model: entropy, and gradients of the norms."""
    model: nn.Module = private_copy(vit, norm_parameters(vit)).model

    def call(images: Tensor) -> object:
        logits: Tensor = model(images)
        entropy(logits).mean().backward()
        model.zero_grad(set_to_none=True)
        return logits

    return call


def passes_of(vit: ViT, case: Case) -> Passes:
    """Forward and backward passes of a call at the options of `still`."""
    if case.method == LIBRARY:
        return Passes(backwards=int(case.call == "step"), whole=True)
    if case.call == "forward":
        return Passes()
    kind = METHODS.get(case.method)
    options = kind.Options(**still(case.method))
    tuned = dict(vit.model.named_parameters())
    weights = any(tuned[name].dim() > 1 for name in kind.tuned_names(vit, options))
    prompts = kind.num_extra_tokens(options)
    backwards = kind.num_backwards(vit, options)
    answers = int(getattr(options, "shift", False))  # FOA's shift is put on features that have been classified already
    return Passes(kind.num_forwards(vit, options), backwards, weights, prompts, answers=answers)


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
    bare = BareGemms(works.values())
    for made in runners.values():
        made.warm_up(images)
    times: dict[Case, list[float]] = {case: [] for case in runners}
    for number in range(rounds):
        for case, made in runners.items():
            times[case].append(_seconds(made, images))
        bare.round()
        on_round(number + 1)
    return [_row(vit, setting, case, runners[case], works, times, bare) for case in runners]


def _seconds(call: Callable[[Tensor], object], images: Tensor) -> float:
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
        name=str(case),
        rounds=len(seconds),
        ms_per_image=1000 * median(seconds) / setting.batch,
        ratio=ratio,
        low=low,
        high=high,
        best=min(seconds) / min(dense),
        macs=counted,
        products=works[case].macs / works[DENSE].macs,
        **roofline(works[case], median(seconds), bare)._asdict(),
        kept=None if last is None else last.kept,
        guard=None if last is None else last.guard,
    )


def spread(seconds: Sequence[float], dense: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the medians, and quartiles of the ratios of single rounds."""
    ratios = [own / base for own, base in zip(seconds, dense, strict=True)]
    return median(seconds) / median(dense), *quartiles(ratios)


def check_case(case: Case) -> None:
    """Raise for a method or reducer that is not there, before anything is timed."""
    parse(case.reduce)
    if case.method != LIBRARY:
        METHODS.get(case.method)
    elif case.reduce != "none":
        raise SpecError(f"the library's own {case.call} has no reducer, got {case.reduce!r}")
