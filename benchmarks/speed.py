"""Time and memory of forwards and adaptation steps, relative to timm's own dense forward in the same run.

python benchmarks/speed.py                                  quick: DeiT-Ti and ViT-B, about five minutes on two cores
python benchmarks/speed.py --preset methods                 every method with every reducer
python benchmarks/speed.py --preset sizes                   ViT-Ti, S, B, L at batches of 1, 8, 64
python benchmarks/speed.py --preset scale                   against tokens, depth and batch
python benchmarks/speed.py --preset precision               float32, bfloat16, int8, with and without update
python benchmarks/speed.py --preset all                     all of these
python benchmarks/speed.py --model vit_small_patch16_224 --batch 16 --method navia --reduce none --reduce tome:8 --rounds 9

Weights are random, learning rates zero. Ctrl-C keeps the finished rows. The columns are explained in docs/performance.md.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages of the profiler between the lines
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
from rich.table import Table

import navia
from cases import DENSE, LIBRARY, PLAIN_STEP, Case, Row, Setting, available_mib, check_case, compare, computer, script_parser
from memory import in_fresh_process, measure_memory, needed_mib
from navia.cli.terminal import print_wide
from navia.errors import NaviaError
from navia.models.device import keep_freed_memory
from navia.models.precision import PRECISIONS

PRESETS = ("quick", "methods", "sizes", "scale", "precision", "all")
SIZES = tuple(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large"))
REDUCERS = ("none", "tome:8", "evit:8", "tofu:8")
PER_ROUND = 8  # calls timed in turn: with more, the first and the last of a round are too far apart in time
COLOURS = ("#4c566a", "#2f6fab", "#c2571a", "#7b3f8f")  # library, forward, step, marker


class Column(NamedTuple):
    """key: field of the row; factor, decimals: its format."""

    title: str
    key: str
    factor: float = 1
    decimals: int = 2


COLUMNS = (
    Column("ms/image", "ms_per_image"),
    Column("ratio", "ratio"),
    Column("best/best", "best"),
    Column("MACs", "macs"),
    Column("products", "products"),
    Column("GFLOP/s", "gflops", decimals=0),
    Column("bare GFLOP/s", "gflops_bare", decimals=0),
    Column("share, %", "share", 100, 0),
    Column("peak, MiB", "peak_mib", decimals=0),
    Column("allocated, MiB", "allocated_mib", decimals=0),
)


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
    for depth in (6, 12, 24):  # the same number of tokens is left at every depth
        thinned = tuple(replace(case, reduce=f"tome:{96 // depth}") if case.reduce != "none" else case for case in PAIR)
        yield Plan(Setting(model, 8, (("depth", depth),)), thinned)
    for batch in (1, 2, 4, 8, 16, 32, 64):
        yield Plan(Setting(model, batch), PAIR)


def precision() -> Iterator[Plan]:
    """navia in every precision, beside what users do without it: timm's own calls, and plain ToMe with plain autograd."""
    cases: list[Case] = []
    for kind in ("float32", "bfloat16", "int8"):
        plain = [Case("forward", LIBRARY, precision=kind), Case("forward", LIBRARY, "tome:8", kind)]
        plain += [Case("step", LIBRARY, "tome:8", kind)] if kind != "int8" else []
        own = [Case("step", "none", "tome:8", kind), Case("step", "navia", "tome:8", kind)]
        cases += [*plain, *own, Case("step", "navia", "tome:8", kind, updated=False)]
    yield Plan(Setting("deit_tiny_patch16_224", 32), tuple(cases))
    yield Plan(Setting("vit_base_patch16_224", 8), tuple(cases))


def plans(options: argparse.Namespace) -> list[Plan]:
    """Plans of the preset, with its values replaced by those of the command line."""
    made = {"quick": quick, "methods": methods, "sizes": sizes, "scale": scale, "precision": precision}
    wanted = [make for name, make in made.items() if options.preset in (name, "all")]
    found = list(dict.fromkeys(plan for make in wanted for plan in make()))
    if options.method or options.reduce or options.precision:
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
    found = (*forwards(*reducers), *steps(*pairs))
    kinds = options.precision or ["float32"]
    return tuple(case if case == PLAIN_STEP else replace(case, precision=kind) for kind in kinds for case in found)


# ---- running it


class Results:
    """All rows so far, on the terminal and in the file, which always holds complete JSON."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, Any] = {**computer(), "command": shlex.join(sys.argv[1:]), "rows": []}

    def add_rows(self, rows: Sequence[Row], title: str) -> None:
        self.found["rows"] += map(asdict, rows)
        self.save()
        print_rows([asdict(row) for row in rows], title)

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".tmp")
        half.write_text(json.dumps(self.found, indent=2))
        half.replace(self.path)


def time_plan(plan: Plan, options: argparse.Namespace, results: Results) -> None:
    cases = [case for case in plan.cases if fits(plan.setting, case)]
    added: set[str] = set()  # the library's own calls are timed with every chunk and shown once
    for chunk in chunks([case for case in cases if case != DENSE], PER_ROUND):
        say(f"{plan.setting}: {', '.join(map(str, chunk))}")
        rows = compare(plan.setting, chunk, options.rounds, not options.no_guard, progress(options.rounds))
        rows = [row for row in rows if row.name not in added]
        for row in rows:
            warn(row)
        if not options.no_memory:
            rows = [with_memory(plan.setting, row, (DENSE, *chunk), options) for row in rows]
        results.add_rows(rows, f"{plan.setting}, {torch.get_num_threads()} threads, {options.rounds} rounds")
        added |= {row.name for row in rows}


def warn(row: Row) -> None:
    """A step that did less or more than its normal work is no valid measurement."""
    if row.kept == 0 and row.method not in ("none", "lame") and "no update" not in row.name:
        say(f"  {row.name} kept no image for an update: its time is not that of a whole step")
    if row.guard:
        say(f"  the guard intervened: {row.name}, {row.guard}")


def chunks(cases: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    for begin in range(0, len(cases), size):
        yield cases[begin : begin + size]


def fits(setting: Setting, case: Case) -> bool:
    need, there = needed_mib(setting, case), available_mib()
    if there is None or need < 0.7 * there:
        return True
    say(f"{setting}: {case} skipped, it needs about {need / 1024:.1f} GiB and {there / 1024:.1f} are free")
    return False


def with_memory(setting: Setting, row: Row, cases: Iterable[Case], options: argparse.Namespace) -> Row:
    say(f"  memory of {row.name}")
    case = next(case for case in cases if str(case) == row.name)
    found = in_fresh_process(measure_memory, setting, case, torch.get_num_threads(), not options.no_guard)
    if found is None:
        say(f"  {row.name} was killed, probably out of memory")
        return row
    return replace(row, peak_mib=found[0], allocated_mib=found[1])


def progress(rounds: int) -> Callable[[int], None]:
    start = time.perf_counter()
    return lambda number: say(f"  round {number} of {rounds}, {time.perf_counter() - start:.0f} s since the start")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- table and figure


def cell_text(row: dict[str, Any], column: Column) -> str:
    value = row[column.key]
    text = "–" if value is None else f"{column.factor * value:,.{column.decimals}f}"
    return f"{text} [{row['low']:.2f}, {row['high']:.2f}]" if column.key == "ratio" else text


def print_rows(rows: Iterable[dict[str, Any]], title: str) -> None:
    table = Table("call", title=title, title_justify="left", title_style="bold")
    for column in COLUMNS:
        table.add_column(column.title, justify="right")
    for row in rows:
        table.add_row(row["name"], *(cell_text(row, column) for column in COLUMNS))
    print_wide(table)


def setting_of(row: dict[str, Any]) -> str:
    return str(Setting(row["model"], row["batch"], tuple(row["options"].items())))


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """The ratios as bars, one panel per setting, to speed.png and speed.svg: their paths."""
    import matplotlib
    from matplotlib.figure import Figure

    groups = [(title, list(own)) for title, own in groupby(rows, key=setting_of)]
    sizes = [len(own) for _, own in groups]
    figure = Figure(figsize=(6.8, 0.9 + sum(0.55 + 0.2 * size for size in sizes)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": [size + 2 for size in sizes]})
    for axes, (title, own) in zip(panels.flat, groups, strict=True):
        draw_panel(axes, title, own)
    panels.flat[-1].set_xlabel("time relative to timm's dense forward")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "speed.png", folder / "speed.svg"]
    with matplotlib.rc_context({"svg.hashsalt": "navia", "svg.fonttype": "none"}):
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def draw_panel(axes: Any, title: str, rows: Sequence[dict[str, Any]]) -> None:
    for name, colour in zip((LIBRARY, "forward", "step"), COLOURS, strict=False):
        own = [(i, row) for i, row in enumerate(rows) if name == (LIBRARY if row["method"] == LIBRARY else row["call"])]
        axes.barh([i for i, _ in own], [row["ratio"] for _, row in own], 0.66, color=colour, label=name)
    ratios, places = [row["ratio"] for row in rows], range(len(rows))
    # the ratio of medians may lie outside the quartiles of single rounds
    ends = [[max(0.0, r["ratio"] - r["low"]) for r in rows], [max(0.0, r["high"] - r["ratio"]) for r in rows]]
    axes.errorbar(ratios, places, xerr=ends, linestyle="none", ecolor="#1d1e20", elinewidth=0.7, capsize=2)
    bound = {"label": "by matrix products alone", "color": COLOURS[3], "markersize": 4.5, "markeredgecolor": "white"}
    axes.plot([row["products"] for row in rows], places, "D", **bound)
    for i, row in enumerate(rows):
        axes.text(max(row["ratio"], row["high"], row["products"]), i, f"  {row['ratio']:.2f}", va="center", fontsize=7)
    axes.set_yticks(places, [row["name"] for row in rows], fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()


def parser() -> argparse.ArgumentParser:
    made = script_parser(__doc__)
    made.add_argument("--preset", choices=PRESETS, default="quick", help="default: quick")
    made.add_argument("--model", action="append", help="a ViT of timm, or embedded; repeatable")
    made.add_argument("--batch", action="append", type=int, help="images per call; repeatable; default with --model: 8")
    made.add_argument("--method", action="append", help=f"of the steps: {', '.join(navia.list_methods())}; repeatable")
    made.add_argument("--reduce", action="append", help="none, tome:8, evit:8, tofu:8, ...; repeatable")
    made.add_argument("--precision", action="append", choices=PRECISIONS, help="of navia's calls; repeatable")
    made.add_argument("--only", choices=("forward", "step"), help="skip the other kind of call")
    made.add_argument("--rounds", type=int, default=3, help="default: 3; use 9 or more for published figures")
    made.add_argument("--threads", type=int, default=torch.get_num_threads(), help=f"default: {torch.get_num_threads()}")
    made.add_argument("--no-guard", action="store_true", help="steps without the guard")
    made.add_argument("--no-memory", action="store_true", help="measure time only")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as they are finished")
    made.add_argument("--plot", type=Path, metavar="DIR", help="draw the ratios to DIR/speed.png and speed.svg")
    return made


def main() -> None:
    keep_freed_memory()
    options = parser().parse_args()
    if min(options.rounds, options.threads, *(options.batch or [1])) < 1:
        parser().error("rounds, threads and batch must be at least 1")
    torch.set_num_threads(options.threads)
    results = Results(options.json)
    say(f"{results.found['cpu']}: {', '.join(results.found['instructions']) or 'unknown instruction sets'}")
    try:
        for plan in plans(options):
            for case in plan.cases:
                check_case(case)
        for plan in plans(options):
            time_plan(plan, options, results)
    except KeyboardInterrupt:
        say(f"stopped; {len(results.found['rows'])} rows were finished")
    except NaviaError as error:
        sys.exit(f"error: {error}")
    if options.plot and results.found["rows"]:
        say(", ".join(map(str, draw(results.found["rows"], options.plot))))


if __name__ == "__main__":
    main()
