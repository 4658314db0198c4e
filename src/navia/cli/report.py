"""`navia report`: the rows of `navia bench` as tables, figures and a page."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import console, folder_to_write, print_json, print_wide

if TYPE_CHECKING:
    from navia.report.tables import Block, Results, Table


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `navia bench`.")],
    out: options.OutOrNone = None,
    as_json: options.Json = False,
) -> None:
    """Write the rows of a benchmark as tables (Markdown, LaTeX, CSV), figures and a page, to DIR/report by default.

    Each spec that was run into DIR has its own table. Rows that must not be compared (other weights, other images, ...) go
    to separate tables, and the report says why. It may be made while the benchmark is still running.

        navia report results
    """
    from navia.report.files import read_rows, read_specs, write_report
    from navia.report.tables import tabulate
    from navia.report.text import missing_text, summary

    out = folder_to_write(out or folder / "report")
    rows, traces, notes = read_rows(folder)
    results = tabulate(rows, repr(str(folder / "rows.jsonl")), read_specs(folder), traces)
    files, problems = write_report(results, traces, out, notes)
    if as_json:
        print_json({**_as_dict(results), "files": [str(path) for path in files], "notes": [*notes, *problems]})
        return
    print_tables(results)
    print_lines((summary(results), *results.apart, missing_text(results), *notes, *problems))
    figures = [path for path in files if path.suffix in (".png", ".svg")]
    print_lines(str(path) for path in files if path not in figures)
    if figures:
        print_lines([f"{len(figures) // 2} figures as PNG and SVG in {figures[0].parent}"])


def print_tables(results: "Results") -> None:
    """Each table with how to read its intervals."""
    from navia.report.text import differences_text, intervals_and_seeds

    for table in results.tables:
        _print_table(table, len(results.tables) > 1)
        print_lines(filter(None, [" ".join(intervals_and_seeds(table)), differences_text(table)]))


def _print_table(table: "Table", several: bool) -> None:
    for block in table.blocks:
        title = f"{f'Table {table.number}: ' if several else ''}{table.title}"
        print_wide(_rich(table, block, f"{title}\n{block.title}" if block.title else title))


def _rich(table: "Table", block: "Block", title: str) -> RichTable:
    from navia.report.compare import best, column_texts, interval_text

    shown = RichTable("method", title=Text(title), title_justify="left", title_style="bold")
    cells = []
    columns = table.summed if table.is_wide else table.columns  # the files have what a terminal has no room for
    for column in block.select(columns):
        shown.add_column(Text(column.title), justify="right")
        own = []
        for line, text, mark in zip(block.lines, column_texts(block, column), best(block, column), strict=True):
            interval = interval_text(line.value(column)) if column.is_accuracy else ""
            own.append(Text.assemble((text, "bold" if mark else ""), (f" {interval}" if interval else "", "dim")))
        cells.append(own)
    for i, line in enumerate(block.lines):
        shown.add_row(Text(line.name), *(column[i] for column in cells))
    return shown


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _as_dict(results: "Results") -> dict[str, Any]:
    return {
        "rows": results.rows,
        "tables": [_table_dict(table) for table in results.tables],
        "apart": list(results.apart),
        "missing": [asdict(cell) for cell in results.missing()],
    }


def _table_dict(table: "Table") -> dict[str, Any]:
    from navia.report.compare import best, differences
    from navia.report.text import how_to_read

    return {
        "number": table.number,
        "title": table.title,
        "spec": table.spec,
        "protocol": dict(table.protocol),
        "notes": how_to_read(table),
        "differences": [asdict(gap) for gap in differences(table)],
        "blocks": [
            {
                "title": block.title,
                "best": {
                    column.name: [line.name for line, mark in zip(block.lines, best(block, column), strict=True) if mark]
                    for column in table.columns
                },
                "lines": [
                    {"name": line.name, **asdict(line.setting), "options": line.setting.given,
                     "options_by_domain": line.options_by_domain,
                     "values": {column.name: asdict(line.value(column)) for column in table.columns}}
                    for line in block.lines
                ],
            }
            for block in table.blocks
        ],
    }  # fmt: skip
