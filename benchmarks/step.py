"""One adaptation step in detail.

python benchmarks/step.py compare align,tome:8 navia,tome:8     ratio of two steps, for differences below the timing noise
python benchmarks/step.py profile navia,tome:8 --rounds 3       torch's operators by their own time
python benchmarks/step.py stream --rounds 10000                 do time and memory stay constant over a long stream?

compare and profile: --model deit_tiny_patch16_224 --batch 32 with random weights. stream: the embedded model.

compare runs the steps in the order A B B A, so that a drift of the machine affects both. It prints the median of the ratios
B / A of neighbouring steps with its 95 % interval (order statistics). Ctrl-C prints the result so far.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression, median
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages of the profiler between the lines

import torch
from torch.profiler import ProfilerActivity, profile

import navia
from cases import Case, Setting, check_case, load, runner, script_parser, seconds_of
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain
from navia.errors import InputError, NaviaError
from navia.evaluation.latency import random_images, resident_mib
from navia.models.device import keep_freed_memory

NORMAL_95 = 1.96
POINTS = 200  # values in a trend, each the mean over a part of the stream
FEWEST = 10  # values needed for a trend
STREAM_BATCH, STREAM_METHOD, STREAM_REDUCE = 8, "navia", "tome:16"


def parse_case(text: str) -> Case:
    method, _, reduce = text.partition(",")
    case = Case("step", method, reduce or "none")
    check_case(case)
    return case


# ---- compare


def compare(cases: Sequence[Case], model: str, batch: int, pairs: int) -> None:
    vit = load(Setting(model, batch))
    images = random_images(vit, batch)
    steps = [runner(vit, case) for case in cases]
    for step in steps:
        step.warm_up(images)
    ratios: list[float] = []
    try:
        for number in range(pairs):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            seconds = {index: seconds_of(steps[index], images) for index in order}
            ratios.append(seconds[1] / seconds[0])
    except KeyboardInterrupt:
        print()
    if not ratios:
        raise SystemExit("no pair was finished")
    low, high = interval_of_median(ratios)
    print(f"{cases[1]} / {cases[0]}, {model}, batch {batch}, {torch.get_num_threads()} threads, {len(ratios)} pairs:")
    print(f"{median(ratios):.4f}, 95 % interval of the median: {low:.4f} to {high:.4f}")


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median: ranks are binomial, here by the normal approximation."""
    ordered, half = sorted(values), NORMAL_95 * math.sqrt(len(values)) / 2
    low = max(0, math.floor(len(values) / 2 - half) - 1)
    return ordered[low], ordered[len(values) - 1 - low]


# ---- profile


def profile_step(case: Case, model: str, batch: int, rounds: int, top: int) -> None:
    vit = load(Setting(model, batch))
    images = random_images(vit, batch)
    step = runner(vit, case)
    step.warm_up(images)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(rounds):
            step(images)
    found = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    print(f"{case}, {model}, batch {batch}: {total / 1e3 / rounds:.0f} ms per step with the profiler on")
    for event in found[:top]:
        print(f"{100 * event.self_cpu_time_total / total:5.1f} %  {event.count / rounds:6.0f} calls per step  {event.key}")
    rest = sum(event.self_cpu_time_total for event in found[top:])
    print(f"{100 * rest / total:5.1f} %  all others")


# ---- stream


@dataclass(frozen=True)
class Trend:
    """first, last: medians over the first and last tenth of the steps. slope: growth per 1,000 steps by least squares,
    without the first tenth, in which caches fill."""

    first: float
    last: float
    slope: float


def trend(steps: Sequence[int], values: Sequence[float]) -> Trend:
    """steps: the step number of each value, ascending."""
    tenth = len(values) // FEWEST
    if len(steps) != len(values) or not tenth:
        raise InputError(f"a trend needs at least {FEWEST} values and as many steps, got {len(values)} and {len(steps)}")
    slope = linear_regression(steps[tenth:], values[tenth:]).slope
    return Trend(median(values[:tenth]), median(values[-tenth:]), 1000 * slope)


def long_stream(steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`steps` batches of noisy images of the embedded sample, repeated. Time is processor time of all threads, which other
    processes on the machine affect least."""
    vit = navia.load("embedded")
    noisy = Domain("noise", unseen_images(), "gaussian_noise", 2)
    batches = noisy.tensors(range(64 * STREAM_BATCH), vit.preprocessing).split(STREAM_BATCH)
    clean = Domain("clean", source_images()).tensors(range(64), vit.preprocessing)
    source = navia.SourceStatistics.measure(vit, clean, STREAM_REDUCE)
    adapter = navia.adapt(vit, STREAM_METHOD, STREAM_REDUCE, source)
    part = max(1, steps // POINTS)
    at: list[int] = []
    milliseconds, resident = [], []
    try:
        for begin in range(0, steps - part + 1, part):
            start = time.process_time()
            for number in range(begin, begin + part):
                adapter(batches[number % len(batches)])
            milliseconds.append(1000 * (time.process_time() - start) / part)
            resident.append(resident_mib())
            at.append(begin + part)
            if len(at) % (POINTS // 10) == 0:
                say(f"  step {at[-1]:,} of {steps:,}: {milliseconds[-1]:.1f} ms, {resident[-1]:.1f} MiB resident")
    except KeyboardInterrupt:
        if len(at) < FEWEST:
            raise
        say(f"stopped after {at[-1]:,} steps")
    return {
        "name": f"embedded, {STREAM_METHOD}, {STREAM_REDUCE}",
        "batch": STREAM_BATCH,
        "steps": at[-1],
        "threads": torch.get_num_threads(),
        "ms_per_step": asdict(trend(at, milliseconds[: len(at)])),
        "resident_mib": asdict(trend(at, resident[: len(at)])),
    }


def stream_text(stream: dict[str, Any]) -> str:
    time, memory = stream["ms_per_step"], stream["resident_mib"]
    return (
        f"A stream of {stream['steps']:,} steps ({stream['name']}, batch {stream['batch']}): {time['first']:.1f} ms of "
        f"processor time per step in the first tenth, {time['last']:.1f} in the last "
        f"({time['slope']:+.3f} per 1,000 steps); "
        f"resident memory {memory['first']:.0f} MiB, then {memory['last']:.0f} ({memory['slope']:+.3f} per 1,000 steps)."
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("what", choices=("compare", "profile", "stream"))
    parser.add_argument("cases", nargs="*", help="METHOD,REDUCE: two for compare, one for profile, none for stream")
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="timm name; default: deit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=32, help="images per step; default: 32")
    parser.add_argument("--rounds", type=int, help="pairs (100), profiled steps (3) or steps of the stream (10000)")
    parser.add_argument("--top", type=int, default=12, help="operators printed by profile; default: 12")
    parser.add_argument("--json", action="store_true", help="stream: print the result as JSON")
    options = parser.parse_args(arguments)
    wanted = {"compare": 2, "profile": 1, "stream": 0}[options.what]
    options.rounds = options.rounds or {"compare": 100, "profile": 3, "stream": 10_000}[options.what]
    if len(options.cases) != wanted:
        parser.error(f"{options.what} takes {wanted} METHOD,REDUCE, got {len(options.cases)}")
    if options.what == "stream" and options.rounds < FEWEST:
        parser.error(f"a stream needs at least {FEWEST} steps, got {options.rounds}")
    if min(options.rounds, options.batch) < 1:
        parser.error("rounds and batch must be at least 1")
    try:
        options.cases = [parse_case(text) for text in options.cases]
    except NaviaError as error:
        parser.error(str(error))
    return options


def main() -> None:
    keep_freed_memory()
    options = parse()
    if options.what == "compare":
        compare(options.cases, options.model, options.batch, options.rounds)
    elif options.what == "profile":
        profile_step(options.cases[0], options.model, options.batch, options.rounds, options.top)
    else:
        found = long_stream(options.rounds, lambda line: print(line, file=sys.stderr, flush=True))
        print(json.dumps(found, indent=2) if options.json else stream_text(found))


if __name__ == "__main__":
    main()
