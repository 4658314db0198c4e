"""Time and memory of forwards and adaptation steps, beside timm's own dense forward and step in the same run.

python benchmarks/speed.py                                  quick: DeiT-Ti and ViT-B, some five minutes on two cores
python benchmarks/speed.py --preset methods                 every method with every reducer
python benchmarks/speed.py --preset sizes                   ViT-Ti, S, B, L at batches of 1, 8, 64
python benchmarks/speed.py --preset scale                   against tokens, depth and batch
python benchmarks/speed.py --preset stream                  10,000 steps: do time and memory stay where they are?
python benchmarks/speed.py --preset foa                     FOA with full covariance and with variances only
python benchmarks/speed.py --preset all                     all of these
python benchmarks/speed.py --model vit_small_patch16_224 --batch 16 --method navia --reduce none --reduce tome:8 --rounds 9

Weights are random, learning rates zero. Ctrl-C keeps what is finished. What the columns mean: docs/performance.md.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # what the profiler says of itself would fall between the lines
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from rich.table import Table

import navia
import speed_foa
import speed_stream
from navia.cli.terminal import print_wide
from navia.errors import NaviaError
from navia.evaluation.computer import available_mib, computer
from navia.evaluation.memory import in_fresh_process, measure_memory, needed_mib
from navia.evaluation.speed import DENSE, PLAIN_STEP, Case, Row, Setting, check_case, compare
from navia.models.device import keep_freed_memory
from navia.report.speed import COLUMNS, FOA_COLUMNS, cell_text, foa_texts, quartiles_text, save_speed, stream_text

PRESETS = ("quick", "methods", "sizes", "scale", "stream", "foa", "all")
SIZES = tuple(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large"))
REDUCERS = ("none", "tome:8", "evit:8", "tofu:8")
TOGETHER = 8  # calls that are timed in turn: of more, the first and the last of a round lie too far apart


@dataclass(frozen=True)
class Plan:
    """Cases to time in a setting."""

    setting: Setting
    cases: tuple[Case, ...]


# ---- what to run


def forwards(*reducers: str) -> tuple[Case, ...]:
    return tuple(Case("forward", reduce=reduce) for reduce in reducers)


def steps(*runs: tuple[str, str]) -> tuple[Case, ...]:
    return (PLAIN_STEP, *(Case("step", method, reduce) for method, reduce in runs))


PAIR = (*forwards("none", "tome:8"), *steps(("align", "none"), ("navia", "tome:8")))


def quick() -> Iterator[Plan]:
    cases = (*forwards(*REDUCERS), *steps(("align", "none"), ("align", "tome:8"), ("navia", "tome:8")))
    yield Plan(Setting("deit_tiny_patch16_224", 32), cases)
    yield Plan(Setting("vit_base_patch16_224", 8), cases)


def methods() -> Iterator[Plan]:
    for reduce in REDUCERS:
        cases = (*forwards(reduce), *steps(*((method, reduce) for method in navia.list_methods())))
        yield Plan(Setting("deit_tiny_patch16_224", 8), cases)


def sizes() -> Iterator[Plan]:
    for model in SIZES:
        for batch in (1, 8, 64):
            yield Plan(Setting(model, batch), PAIR)


def scale() -> Iterator[Plan]:
    model = SIZES[0]
    for side in (224, 384, 512):
        yield Plan(Setting(model, 8, (("img_size", side),)), PAIR)
    for depth in (6, 12, 24):  # as many tokens are left at every depth
        thinned = tuple(replace(case, reduce=f"tome:{96 // depth}") if case.reduce != "none" else case for case in PAIR)
        yield Plan(Setting(model, 8, (("depth", depth),)), thinned)
    for batch in (1, 2, 4, 8, 16, 32, 64):
        yield Plan(Setting(model, batch), PAIR)


def plans(options: argparse.Namespace) -> list[Plan]:
    """The preset's, with what was given on the command line in place of its own."""
    made = {"quick": quick, "methods": methods, "sizes": sizes, "scale": scale}
    wanted = [make for name, make in made.items() if options.preset in (name, "all")]
    found = list(dict.fromkeys(plan for make in wanted for plan in make()))
    if not found:
        return []
    if options.method or options.reduce:
        found = [replace(plan, cases=chosen(options)) for plan in found]
    if options.model or options.batch:
        models = options.model or dict.fromkeys(plan.setting.model for plan in found)
        batches = options.batch or [8]
        found = [Plan(Setting(model, batch), found[0].cases) for model in models for batch in batches]
    found = [replace(plan, cases=tuple(c for c in plan.cases if options.only in (None, c.call))) for plan in found]
    return list(dict.fromkeys(found))


def chosen(options: argparse.Namespace) -> tuple[Case, ...]:
    reducers = options.reduce or ["none", "tome:8"]
    pairs = [(method, reduce) for method in options.method or ["align", "navia"] for reduce in reducers]
    return (*forwards(*reducers), *steps(*pairs))


# ---- running it


class Results:
    """All that was measured so far, on the terminal and in the file, which always holds whole JSON."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, Any] = {**computer(), "command": shlex.join(sys.argv[1:]), "rows": []}

    def add_rows(self, rows: Sequence[Row], title: str) -> None:
        self.found["rows"] += map(asdict, rows)
        self.save()
        print_rows([asdict(row) for row in rows], title)

    def add(self, name: str, value: object) -> None:
        self.found[name] = value
        self.save()

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".tmp")
        half.write_text(json.dumps(self.found, indent=2))
        half.replace(self.path)


def time_plan(plan: Plan, options: argparse.Namespace, results: Results) -> None:
    cases = [case for case in plan.cases if fits(plan.setting, case)]
    added: set[str] = set()  # the library's own calls are timed with every chunk, and shown once
    for together in chunks([case for case in cases if case != DENSE], TOGETHER):
        say(f"{plan.setting}: {', '.join(map(str, together))}")
        rows = compare(plan.setting, together, options.rounds, not options.no_guard, progress(options.rounds))
        rows = [row for row in rows if row.name not in added]
        for row in rows:
            warn(row)
        if not options.no_memory:
            rows = [with_memory(plan.setting, row, options) for row in rows]
        results.add_rows(rows, f"{plan.setting}, {torch.get_num_threads()} threads, {options.rounds} rounds, float32")
        added |= {row.name for row in rows}


def warn(row: Row) -> None:
    """A step that did less or more than it should is no measurement."""
    if row.kept == 0 and row.method not in ("none", "lame"):
        say(f"  {row.name} found no image worth an update: its time is not that of a whole step")
    if row.guard:
        say(f"  the guard stepped in: {row.name}, {row.guard}")


def chunks(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for begin in range(0, len(cases), size):
        yield cases[begin : begin + size]


def fits(setting: Setting, case: Case) -> bool:
    need, there = needed_mib(setting, case), available_mib()
    if there is None or need < 0.7 * there:
        return True
    say(f"{setting}: {case} left out, it needs about {need / 1024:.1f} GiB and {there / 1024:.1f} are left")
    return False


def with_memory(setting: Setting, row: Row, options: argparse.Namespace) -> Row:
    say(f"  memory of {row.name}")
    case = Case("forward" if row.call == "forward" else "step", row.method, row.reduce)
    found = in_fresh_process(measure_memory, setting, case, torch.get_num_threads(), not options.no_guard)
    if found is None:
        say(f"  {row.name} was ended from outside, probably for want of memory")
        return row
    return replace(row, peak_mib=found[0], allocated_mib=found[1])


def progress(rounds: int) -> Callable[[int], None]:
    start = time.perf_counter()
    return lambda number: say(f"  round {number} of {rounds}, {time.perf_counter() - start:.0f} s since the start")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- printing


def print_rows(rows: Iterable[dict[str, Any]], title: str) -> None:
    table = Table("call", title=title, title_justify="left", title_style="bold")
    for column in COLUMNS:
        table.add_column(column.title, justify="right")
    for row in rows:
        spread = {"ratio": f" {quartiles_text(row)}"}
        table.add_row(row["name"], *(cell_text(row, column) + spread.get(column.key, "") for column in COLUMNS))
    print_wide(table)


def print_foa(rows: Iterable[dict[str, Any]]) -> None:
    table = Table("FOA", title="FOA and its search", title_justify="left", title_style="bold")
    for name in FOA_COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*foa_texts(row))
    print_wide(table)


def run(options: argparse.Namespace, results: Results) -> None:
    for plan in plans(options):
        time_plan(plan, options, results)
    if options.preset in ("foa", "all"):
        rows: list[dict[str, Any]] = []
        for row in speed_foa.compare(options.images, say):
            rows.append(row)
            results.add("foa", rows)
        print_foa(rows)
    if options.preset in ("stream", "all"):
        results.add("stream", speed_stream.long_stream(options.steps, say))
        print(stream_text(results.found["stream"]))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--preset", choices=PRESETS, default="quick", help="default: quick")
    made.add_argument("--model", action="append", help="a ViT of timm's, or embedded; repeatable")
    made.add_argument("--batch", action="append", type=int, help="images per call; repeatable; default with --model: 8")
    made.add_argument("--method", action="append", help=f"of steps: {', '.join(navia.list_methods())}; repeatable")
    made.add_argument("--reduce", action="append", help="none, tome:8, evit:8, tofu:8, ...; repeatable")
    made.add_argument("--only", choices=("forward", "step"), help="leave out the other kind of call")
    made.add_argument("--rounds", type=int, default=3, help="default: 3; take 9 or more for figures to keep")
    made.add_argument("--threads", type=int, default=torch.get_num_threads(), help=f"default: {torch.get_num_threads()}")
    made.add_argument("--no-guard", action="store_true", help="steps without the guard")
    made.add_argument("--no-memory", action="store_true", help="time only: no processes for peak memory and allocations")
    made.add_argument("--steps", type=int, default=10_000, help="of the stream preset; default: 10000")
    made.add_argument("--images", type=int, default=256, help="of the foa preset, for each model; default: 256")
    made.add_argument(
        "--json", type=Path, help="write the rows there as they are finished; `navia report` shows a speed.json"
    )
    made.add_argument("--plot", type=Path, metavar="DIR", help="draw the ratios to DIR/speed.png and speed.svg")
    return made


def main() -> None:
    keep_freed_memory()
    options = parser().parse_args()
    if min(options.rounds, options.threads, options.images, options.steps // 10, *(options.batch or [1])) < 1:
        parser().error("rounds, threads, images and batch must be at least 1, steps at least 10")
    torch.set_num_threads(options.threads)
    results = Results(options.json)
    try:
        for plan in plans(options):
            for case in plan.cases:
                check_case(case)
        run(options, results)
    except KeyboardInterrupt:
        say(f"stopped; {len(results.found['rows'])} rows were finished")
    except NaviaError as error:
        sys.exit(f"error: {error}")
    if options.plot and results.found["rows"]:
        say(", ".join(map(str, save_speed(results.found, options.plot))))


if __name__ == "__main__":
    main()
