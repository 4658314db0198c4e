"""What is generated in the documentation. `python tools/reference.py` writes it; with `--check` it exits with 1 if something
is out of date, which the tests run.

Pages of docs/reference: options of the methods and reducers, commands, fields of a bench row.
Blocks of other pages, between `<!-- begin NAME -->` and `<!-- end -->`: tables of the rows in docs/assets/results.jsonl.
"""

import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from navia.bench.row import schema_table
from navia.cli.main import COMMANDS, app
from navia.data.corruptions import names as corruption_names
from navia.methods.base import METHODS
from navia.methods.options import describe_options
from navia.reduction import REDUCERS
from navia.report.lines import t95

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
NOTE = "<!-- Written by tools/reference.py from the code. Do not edit. -->\n"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head, body = list(header), [[cell.replace("|", "\\|") for cell in row] for row in rows]
    numbers = [bool(body) and all(re.match(r"[+-]?\d", row[i]) for row in body) for i in range(len(head))]
    lines = [head, ["---:" if number else "---" for number in numbers], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def options_page() -> str:
    """Options of every method, and of every reducer."""
    parts = [
        f"# Options\n\n{NOTE}\nOptions of a method are keywords of `navia.adapt` and `--opt KEY=VALUE` on the command line. "
        "Options of a reducer follow its amount: `tofu:8,split=6`. [Methods](../methods.md) and "
        "[token reduction](../reduction.md) explain them.\n"
    ]
    for name in METHODS.names():
        method = METHODS.get(name)
        rows = [(f"`{o.name}`", f"`{o.type}`", f"`{o.default}`", o.meaning) for o in describe_options(method.Options)]
        summary = first_paragraph(sys.modules[method.__module__].__doc__)
        listed = table(("option", "type", "default", "meaning"), rows) if rows else "No options."
        parts.append(f"## {name}\n\n{summary}\n\n{listed}\n")
    parts.append("## Reducers\n")
    for name in REDUCERS.names():
        reducer = REDUCERS.get(name)
        rows = [
            (f"`{field.name}`", f"`{type_name(field.type)}`", f"`{field.default}`", argument(reducer, field.name))
            for field in dataclasses.fields(reducer)
            if field.name != "r"
        ]
        listed = table(("option", "type", "default", "meaning"), rows) if rows else "No options."
        parts.append(f"### {name} {{: #reducer-{name} }}\n\n{first_paragraph(reducer.__doc__)}\n\n{listed}\n")
    return "\n".join(parts)


def commands_page() -> str:
    """Every command with its arguments and options, in the panels of its help."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = [
        f"# Command line\n\n{NOTE}\nEvery command has `--help`. Results go to stdout, everything else to stderr. "
        "Exit codes: 0 success, 1 refused, 2 wrong usage, 130 after Ctrl-C. An option means the same in every command.\n"
    ]
    for name in COMMANDS:
        command = commands[name]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(["navia", name, *(placeholder(p) for p in arguments)])
        parts.append(f"## navia {name}\n\n{help_text(command.help)}\n\n`{usage} [OPTIONS]`\n")
        rows = [[f"`{placeholder(p)}`", "", default_of(p), escape(getattr(p, "help", None))] for p in arguments]
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.hidden:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or ""
            names = ", ".join(f"`{text}`" for text in sorted(parameter.opts, key=len))
            rows.append([names, panel, default_of(parameter), escape(parameter.help)])
        parts.append(table(("option", "panel", "default", "meaning"), rows) + "\n")
    return "\n".join(parts)


def rows_page() -> str:
    """The fields of a row of `navia bench`."""
    return (
        f"# Fields of a bench row\n\n{NOTE}\n`navia bench` writes one row per cell, as a line of JSON. "
        "[Benchmarks](../benchmarks.md) explains the files, [protocols](../protocols.md) the fingerprint.\n\n"
        f"{schema_table()}\n"
    )


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def argument(kind: type, name: str) -> str:
    """The text of an entry under `Args:` of a docstring."""
    found = re.search(rf"^\s*{name}: (.*?)(?=^\s*\w+: |^\s*$|\Z)", kind.__doc__ or "", re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def escape(text: str | None) -> str:
    return " ".join((text or "").split()).replace("<", "&lt;")


def help_text(text: str) -> str:
    """The help of a command; a paragraph that is a command becomes a block."""
    paragraphs = [escape(part) for part in text.replace("\b", "").split("\n\n") if part.strip()]
    return "\n\n".join(f"```text\n{part}\n```" if part.startswith("navia ") else part for part in paragraphs)


def placeholder(parameter: Any) -> str:
    """An argument as the usage line shows it."""
    name = str(parameter.metavar or parameter.human_readable_name) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def default_of(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == [] or value == () or callable(value):
        return ""
    return f"`{value}`"


# ---- tables of results

ALIGN, MERGED, NAVIA = ("align", "none"), ("align", "tome:8"), ("navia", "tome:8")
RUNS = (("none", "none"), ("tent", "none"), ALIGN, MERGED, NAVIA)  # on fifteen corruptions in three orders
FIVE = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")


def result_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DOCS / "assets" / "results.jsonl").read_text().splitlines()]


def accuracies(options: Mapping[str, Any] | None = None) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Top-1 in percent: {(method, reducer): {corruption: one value per order}}; without adaptation these are equal."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in sorted(result_rows(), key=lambda row: row["seed"]):
        if row["options"] == (options or {}):
            run = found.setdefault((row["method"], row["reduce"]), {})
            run.setdefault(row["domain"], []).append(100 * row["top1"])
    found[RUNS[0]] = {name: values * 3 for name, values in found[RUNS[0]].items()} if RUNS[0] in found else {}
    return found


def text_of(run: tuple[str, str]) -> str:
    return run[0] if run[1] == "none" else f"{run[0]} + {run[1]}"


def gmacs_of(run: tuple[str, str]) -> float:
    return next(row["gmacs"] for row in result_rows() if (row["method"], row["reduce"]) == run)


def mean(values: Mapping[str, Sequence[float]]) -> float:
    """Mean over the orders, then over the corruptions."""
    return statistics.fmean(map(statistics.fmean, values.values()))


def differences(one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Points between two runs on the same images in the same order."""
    return {name: [a - b for a, b in zip(one[name], other[name], strict=True)] for name in corruption_names()}


def results_block() -> str:
    """Means over fifteen corruptions and three orders, with the cost."""
    top1, dense = accuracies(), gmacs_of(RUNS[0])
    rows = [
        (f"`{text_of(run)}`", f"{mean(top1[run]):.1f} %", f"{gmacs_of(run):.2f}", f"{100 * gmacs_of(run) / dense:.0f} %")
        for run in RUNS
    ]
    listed = table(("method + reducer", "top-1", "GMACs per forward", "of dense"), rows)
    return f"{listed}\n\n{pairs_text()}"


def pairs_text() -> str:
    top1 = accuracies()
    gain = differences(top1[NAVIA], top1[MERGED])
    means = [statistics.fmean(points) for points in zip(*gain.values(), strict=True)]
    interval = t95(3) * statistics.stdev(means) / 3**0.5
    above = sum(points > 0 for values in gain.values() for points in values)
    return (
        f"Paired by corruption and order, `{text_of(NAVIA)}` is above `{text_of(MERGED)}` in {above} of 45 pairs, by "
        f"{statistics.fmean(means):.1f} ± {interval:.1f} points in the mean (Student's t over the three orders)."
    )


def pairs_block() -> str:
    """Paired differences between runs on the same images in the same order."""
    top1, rows = accuracies(), []
    for one, other in (
        (NAVIA, MERGED),
        (NAVIA, ALIGN),
        (MERGED, ALIGN),
        (ALIGN, RUNS[0]),
        (NAVIA, RUNS[0]),
        (RUNS[1], RUNS[0]),
    ):
        points = differences(top1[one], top1[other])
        means = [statistics.fmean(values) for values in zip(*points.values(), strict=True)]
        interval = t95(3) * statistics.stdev(means) / 3**0.5
        above = sum(value > 0 for values in points.values() for value in values)
        corruptions = sum(statistics.fmean(values) > 0 for values in points.values())
        difference = f"{statistics.fmean(means):+.1f} ± {interval:.1f}"
        rows.append((f"`{text_of(one)}`", f"`{text_of(other)}`", difference, f"{above} of 45", f"{corruptions} of 15"))
    return table(("run", "compared with", "points", "above in pairs", "above on corruptions"), rows)


def orders_block() -> str:
    """Table A: fifteen corruptions, means of three orders."""
    top1 = accuracies()
    rows = [(name, *(f"{statistics.fmean(top1[run][name]):.1f}" for run in RUNS)) for name in corruption_names()]
    rows.append(("mean", *(f"{mean(top1[run]):.1f}" for run in RUNS)))
    rest = [name for name in corruption_names() if name != "contrast"]
    rows.append(("mean without contrast", *(f"{mean({name: top1[run][name] for name in rest}):.1f}" for run in RUNS)))
    contrast = [top1[run]["contrast"] for run in RUNS]
    rows.append(("contrast: lowest to highest order", *(f"{min(values):.0f} to {max(values):.0f}" for values in contrast)))
    return table(("corruption", *(f"`{text_of(run)}`" for run in RUNS)), rows)


def methods_block() -> str:
    """Table B: every method on five corruptions, one order."""
    plain = [row for row in result_rows() if row["seed"] == 0 and row["options"] in ({}, {"variant": "foa"})]
    found = {((row["method"], row["reduce"]), row["domain"]): row for row in plain}
    runs = [(name, "none") for name in ("none", "lame", "tent", "cotta", "sar", "eata", "deyo", "foa", "align")]
    for amount in (4, 8):
        runs += [("align", f"{name}:{amount}") for name in ("evit", "tofu", "tome")] + [("navia", f"tome:{amount}")]
    rows = []
    for run in runs:
        own = [found[run, name] for name in FIVE]
        top1, ece = ([100 * row[name] for row in own] for name in ("top1", "ece"))
        numbers = [f"{value:.1f}" for value in (*top1, statistics.fmean(top1), statistics.fmean(ece))]
        rows.append((f"`{text_of(run)}`", *numbers, f"{own[0]['gmacs']:.2f}"))
    return table(("run", *FIVE, "mean", "ECE", "GMACs"), rows)


def rate_block() -> str:
    """navia with a lower learning rate, five corruptions, means of three orders."""
    usual, lower = accuracies()[NAVIA], accuracies({"lr": 0.001})[NAVIA]
    rows = [
        (f"`lr={lr}`", *(f"{statistics.fmean(top1[name]):.1f}" for name in FIVE), f"{mean({n: top1[n] for n in FIVE}):.1f}")
        for lr, top1 in ((0.005, usual), (0.001, lower))
    ]
    return table((f"`{text_of(NAVIA)}`", *FIVE, "mean"), rows)


def ablation_block() -> str:
    """Parts and layers of navia: mean over five corruptions, one order."""
    found: dict[str, list[float]] = {}
    for row in result_rows():
        if row["seed"] == 0 and row["domain"] in FIVE and (row["method"], row["reduce"]) == NAVIA:
            found.setdefault(json.dumps(row["options"], sort_keys=True), []).append(100 * row["top1"])
    settings: list[tuple[str, dict[str, Any]]] = [
        ("δ and δ_l in the six shallow blocks (default)", {}),
        ("δ_l alone", {"embedding": False}),
        ("δ alone", {"biases": False}),
        ("neither: `align`", {"biases": False, "embedding": False}),
        ("δ_l in six blocks spread over the depth", {"layers": "uniform"}),
        ("δ_l in the six deep blocks", {"layers": "deep"}),
        *((f"δ_l in {count} shallow block{'s' * (count > 1)}", {"budget": count}) for count in (1, 2, 4, 8, 12)),
    ]
    rows = []
    for text, options in settings:
        values = found[json.dumps(options, sort_keys=True)]
        assert len(values) == len(FIVE), options
        written = ", ".join(f"{key}={value}" for key, value in options.items())
        rows.append((text, f"`{written}`" if written else "", f"{statistics.fmean(values):.1f}"))
    return table(("tuned beside the LayerNorms", "options", "mean top-1"), rows)


# ---- files

PAGES = {"options.md": options_page, "commands.md": commands_page, "rows.md": rows_page}
BLOCKS: dict[str, Callable[[], str]] = {
    "results": results_block,
    "pairs": pairs_block,
    "orders": orders_block,
    "methods": methods_block,
    "rate": rate_block,
    "ablation": ablation_block,
}


def fill_blocks(text: str) -> str:
    """A page with its generated blocks made anew."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- begin {found[1]} -->\n\n{BLOCKS[found[1]]()}\n\n<!-- end -->"  # blank lines: Markdown needs them

    return re.sub(r"<!-- begin (\w+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def generated() -> dict[Path, str]:
    """Every file with generated parts, as it should be."""
    files = {REFERENCE / name: make() for name, make in PAGES.items()}
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        if "<!-- begin " in (text := path.read_text()):
            files[path] = fill_blocks(text)
    return files


def main(arguments: list[str]) -> int:
    outdated = []
    for path, text in generated().items():
        if path.is_file() and path.read_text() == text:
            continue
        if arguments == ["--check"]:
            outdated.append(path.name)
        else:
            path.write_text(text)
    if outdated:
        print(f"out of date: {', '.join(outdated)}; run python tools/reference.py", file=sys.stderr)
    return int(bool(outdated))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
