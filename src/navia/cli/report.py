"""`navia report`: the rows of `navia bench` as tables, figures and a page."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import folder_to_write, print_json, print_line, print_wide

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
        tables, missing = list(map(_as_dict, results.tables)), [asdict(cell) for cell in results.missing()]
        found = {"rows": results.rows, "tables": tables, "apart": list(results.apart), "missing": missing}
        print_json({**found, "files": [str(path) for path in files], "notes": [*notes, *problems]})
        return
    print_tables(results)
    texts = [path for path in files if path.suffix not in (".png", ".svg")]
    for line in (summary(results), *results.apart, missing_text(results), *notes, *problems, *map(str, texts)):
        print_line(line)
    if len(files) > len(texts):
        print_line(f"{(len(files) - len(texts)) // 2} figures as PNG and SVG in {out}")


def print_tables(results: "Results") -> None:
    """Each table with how to read its intervals."""
    from navia.report.text import differences_text, intervals_and_seeds

    for table in results.tables:
        title = f"{f'Table {table.number}: ' if len(results.tables) > 1 else ''}{table.title}"
        for block in table.blocks:
            print_wide(_rich(table, block, f"{title}\n{block.title}" if block.title else title))
        for text in filter(None, [" ".join(intervals_and_seeds(table)), differences_text(table)]):
            print_line(text)


def _rich(table: "Table", block: "Block", title: str) -> RichTable:
    from navia.report.compare import interval_text, read_column

    columns = block.select(table.summed if table.is_wide else table.columns)  # the files have the others
    shown = RichTable("method", title=Text(title), title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(Text(column.title), justify="right")
    for cells in zip(*(read_column(block, column) for column in columns), strict=True):
        values = [Text.assemble((text, "bold" if mark else ""), (f" {interval_text(value)}".rstrip(), "dim"))
                  for _, text, value, mark in cells]  # fmt: skip
        shown.add_row(Text(cells[0][0].name), *values)
    return shown


def _as_dict(table: "Table") -> dict[str, Any]:
    from navia.report.compare import differences, read_column
    from navia.report.text import how_to_read

    blocks = [
        {
            "title": block.title,
            "best": {c.name: [line.name for line, _, _, mark in read_column(block, c) if mark] for c in table.columns},
            "lines": [
                {"name": line.name, **asdict(line.setting), "options": line.setting.given,
                 "options_by_domain": line.options_by_domain,
                 "values": {column.name: asdict(line.value(column)) for column in table.columns}}
                for line in block.lines
            ],
        }
        for block in table.blocks
    ]  # fmt: skip
    return {
        "number": table.number, "title": table.title, "spec": table.spec, "protocol": dict(table.protocol),
        "notes": how_to_read(table), "differences": [asdict(gap) for gap in differences(table)], "blocks": blocks,
    }  # fmt: skip
