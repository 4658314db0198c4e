"""Tables as Markdown, LaTeX and CSV, with the sentences of `text`."""

import csv
import io
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2

from navia.report import compare
from navia.report.compare import format_values, interval_text, read_column
from navia.report.formatting import DASH, format_number
from navia.report.groups import short_path
from navia.report.lines import Column, Line, Value
from navia.report.published import has_paper, paper, paper_columns, paper_gflops
from navia.report.tables import Block, Results, Table
from navia.report.text import (
    GFLOPS_TITLE,
    PAIRS_NOTE,
    TIMES_NOTE,
    TIMES_TITLE,
    against_title,
    differences_text,
    how_to_read,
    missing_text,
    pair_cells,
    paper_note,
    setting_text,
    summary,
    times_rows,
    why_several,
)

_OTHER_COSTS = ("gmacs_paper", "trainable", "realtime_ratio")


# ---- Markdown


def page_markdown(results: Results) -> str:
    """Every table, and how to read it."""
    parts = ["# Results", summary(results)]
    for table in results.tables:
        several = f"Table {table.number}: " if len(results.tables) > 1 else ""
        parts += [f"## {several}{table.title}", setting_text(table), markdown(table, with_paper=True)]
        parts += filter(None, [" ".join(how_to_read(table)), differences_text(table)])
        parts += _markdown_paper(table) if has_paper(table) else []
        parts += [*_markdown_pairs(table), *_markdown_times(table)]
    if why := why_several(results):
        parts += ["## Why there are several tables", "\n".join(f"- {text}" for text in why)]
    parts += ["## Missing", missing_text(results)] if results.missing() else []
    return "\n\n".join(parts) + "\n"


def markdown(table: Table, *, with_paper: bool = False, without: Collection[str] = ()) -> str:
    """One table per block. with_paper: a column of published averages beside ours. without: kinds of columns left out."""
    beside = with_paper and has_paper(table, [table.average])
    views = [table.columns] if len(table.datasets) == 1 else [table.main, table.parts]
    found = []
    for block, columns in itertools.product(table.blocks, filter(None, views)):
        title = "" if columns is views[0] else f"{block.title or 'The same'}, domain by domain"
        found.append(_markdown_block(table, block, columns, title or block.title, beside, without))
    return "\n\n".join(found)


def _markdown_block(
    table: Table, block: Block, columns: Sequence[Column], title: str, with_paper: bool, without: Collection[str]
) -> str:
    """One view of a block: its title, and its columns."""
    head, rows = ["method"], [[_escape_markdown(line.name)] for line in block.lines]
    for column in (column for column in block.select(columns) if column.kind not in without):
        beside = with_paper and column == table.average
        head += [column.title, "paper"] if beside else [column.title]
        for row, (line, text, value, mark) in zip(rows, read_column(block, column), strict=True):
            row.append(f"{f'**{text}**' if mark else text} {interval_text(value, brackets=True)}".strip())
            row += format_values([paper(table, line, column)], column) if beside else []
    lines = [f"**{title}**\n"] if title else []
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`\[\]<])", r"\\\1", text)


def _markdown_times(table: Table) -> list[str]:
    rows = [f"| {_escape_markdown(a)} | {_escape_markdown(b)} | {c} | {d} |" for a, b, c, d in times_rows(table)]
    head = ["| method | against | change | paper |", "|---|---|---:|---:|"]
    return [f"### {TIMES_TITLE}", "\n".join([*head, *rows]), TIMES_NOTE] if rows else []


def _markdown_paper(table: Table) -> list[str]:
    """Ours and the paper's, in each column that has published values."""
    columns = paper_columns(table)
    known = [line for line in table.lines if any(paper(table, line, column) is not None for column in columns)]
    gflops = [paper_gflops(table, line) for line in known]
    head = ["method", *(column.title for column in columns), *([GFLOPS_TITLE] if any(gflops) else [])]
    rows = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for line, theirs in zip(known, gflops, strict=True):
        values = [(line.value(column).mean, paper(table, line, column), column) for column in columns]
        cells = [" / ".join(format_values([ours, printed], column)) for ours, printed, column in values]
        cells += [f"{format_number(line.median('gmacs_paper'))} / {format_number(theirs)}"] if any(gflops) else []
        rows.append(f"| {' | '.join([_escape_markdown(line.name), *cells])} |")
    return ["### Beside the paper", "Ours / the paper's.", "\n".join(rows), paper_note(table)]


def _markdown_pairs(table: Table) -> list[str]:
    """The comparisons as a table, and how to read it; nothing where there is nothing to compare."""
    found = compare.comparisons(table)
    if not found:
        return []
    lines = [line.name for line in table.blocks[0].lines if any(line.name in own for _, own in found)]
    rows = [f"| method | {' | '.join(against_title(title, own) for title, own in found)} |", "|---|" + "---:|" * len(found)]
    for name in lines:
        cells = []
        for _, own in found:
            points, ends, wins = pair_cells(own[name]) if name in own else (DASH, "", "")
            cells.append(f"{points}{f' ({ends})' if ends else ''}{f', {wins}' if wins else ''}")
        rows.append(f"| {_escape_markdown(name)} | {' | '.join(cells)} |")
    return ["### Pair by pair", "\n".join(rows), PAIRS_NOTE]


# ---- LaTeX

_ESCAPED = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$",
    "|": "$|$", "[": "{[}", "]": "{]}", "*": "{*}",  # at the start of a row \\ and \midrule would take them for options
})  # fmt: skip


def latex(results: Results) -> str:
    """All tables; a comment above them names the packages that the preamble needs."""
    packages = "% \\usepackage{booktabs}\n% \\usepackage{graphicx}\n"
    head = f"% Tables of `navia report`: \\input this file. The preamble needs\n{packages}"
    return "\n".join([head, *(latex_table(table) for table in results.tables)])


def latex_table(table: Table) -> str:
    """One table, or of many domains two: averages with their intervals, then every domain with its number alone."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment("<%", "%>", "<<", ">>", "<#", "#>", trim_blocks=True, loader=loader)
    environment.filters |= {"tex": _escape_latex, "any": any}
    caption = " ".join([f"{table.title}.", setting_text(table), *how_to_read(table)])
    more = f"{table.title}, domain by domain. Top-1 accuracy in percent; the intervals are in results.csv."
    given = {"caption": caption, "more": more, "label": f"navia-{table.number}", "lines": _latex_lines}
    text = environment.get_template("results.tex").render(table=table, **given)
    return re.sub("\n{2,}", "\n\n", text).strip() + "\n"


def _latex_lines(block: Block, columns: Sequence[Column]) -> Iterator[tuple[str, list[tuple[str, bool]], list[str]]]:
    """Name, values with marks of the best, and intervals of each line."""
    for cells in zip(*(read_column(block, column) for column in columns), strict=True):
        yield (
            cells[0][0].name,
            [(text, mark) for _, text, _, mark in cells],
            [interval_text(value) for _, _, value, _ in cells],
        )


def _escape_latex(text: str) -> str:
    return text.translate(_ESCAPED).replace(r" \%", r"~\%")


# ---- CSV


def csv_text(table: Table, *, header: bool = True) -> str:
    """One line per number, in full precision: tables may have different columns. Accuracies and ECE are in percent."""
    file = io.StringIO()
    rows = [row for line in table.lines for row in _csv_rows(table, line)]
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _csv_rows(table: Table, line: Line) -> Iterator[dict[str, Any]]:
    setting, protocol = line.setting, table.protocol
    known = [dataset for dataset in table.datasets if dataset.domains]
    options = json.dumps(line.options_by_domain, sort_keys=True) if line.options_by_domain else setting.options
    common: dict[str, Any] = {
        "table": table.number, "model": short_path(protocol["model"]),
        "data": ", ".join(short_path(dataset.protocol["data"]) for dataset in known),
        "severity": protocol.get("severity"), "stream": protocol["stream"], "batch": protocol["batch"], "line": line.name,
        "method": setting.method, "reduce": setting.reduce, "options": options, "realtime": setting.realtime,
        "adapt_for": setting.adapt_for, "label": setting.label, "spec": table.spec,
    }  # fmt: skip
    values = [(column.name, "top1" if column.is_accuracy else "ece" if column.kind == "ece" else "cost", line.value(column),
               paper(table, line, column)) for column in dict.fromkeys((*table.columns, *table.main))]  # fmt: skip
    printed = {"gmacs_paper": paper_gflops(table, line) if has_paper(table) else None}
    more = [(cost, "cost", Value(line.median(cost)), printed.get(cost)) for cost in _OTHER_COSTS]
    for name, kind, value, theirs in [*values, *more]:
        if value.mean is not None or theirs is not None:
            own = line.options_by_domain.get(name)
            of = next((dataset for dataset in table.datasets if name == dataset.name or name in dataset.domains), None)
            place = (
                {"data": short_path(of.protocol["data"]), "severity": of.protocol["severity"]} if of and of.protocol else {}
            )
            yield common | place | {
                "options": options if own is None else json.dumps(own, sort_keys=True), "quantity": name, "kind": kind,
                "value": value.mean, "low": value.low, "high": value.high, "interval": value.interval,
                "seeds": value.seeds or None, "lowest_seed": value.lowest_seed, "highest_seed": value.highest_seed,
                "paper": theirs,
            }  # fmt: skip
