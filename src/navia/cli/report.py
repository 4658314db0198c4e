"""`navia report`: the rows of `navia bench` as tables, figures and a page."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import folder_to_write, print_json, print_line, print_wide
from navia.errors import InputError, known_names

if TYPE_CHECKING:
    from navia.report.compare import Paired
    from navia.report.tables import Block, Results, Table


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `navia bench`.")],
    out: options.OutOrNone = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Twice: two lines of a table to compare, by their names there. Repeatable."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write the rows of a benchmark as tables (Markdown, LaTeX, CSV), figures and a page, to DIR/report by default.

    Each spec that was run into DIR has its own table. Rows that must not be compared (other weights, other images, ...) go
    to separate tables, and the report says why. It may be made while the benchmark is still running.

        navia report results

        navia report results --compare NAVIA_8 --compare ToMe_8
    """
    from navia.report.files import read_rows, read_specs, write_report
    from navia.report.tables import tabulate
    from navia.report.text import missing_text, paired_text, summary

    out = folder_to_write(out or folder / "report")
    rows, traces, notes = read_rows(folder)
    results = tabulate(rows, repr(str(folder / "rows.jsonl")), read_specs(folder), traces)
    asked = _compare(results, compare or [])
    files, problems = write_report(results, traces, out, notes)
    if as_json:
        tables, missing = list(map(_as_dict, results.tables)), [asdict(cell) for cell in results.missing()]
        found = {"rows": results.rows, "tables": tables, "apart": list(results.apart), "missing": missing}
        found |= {"compared": [{"table": number, **_pair_as_dict(pair)} for number, pair in asked]}
        print_json({**found, "files": [str(path) for path in files], "notes": [*notes, *problems]})
        return
    print_tables(results)
    for number, pair in asked:
        print_line(f"{f'Table {number}: ' if len(results.tables) > 1 else ''}{paired_text(pair, images=True)}.")
    texts = [path for path in files if path.suffix not in (".png", ".svg")]
    for line in (summary(results), *results.apart, missing_text(results), *notes, *problems, *map(str, texts)):
        print_line(line)
    if len(files) > len(texts):
        print_line(f"{(len(files) - len(texts)) // 2} figures as PNG and SVG in {out}")


def print_tables(results: "Results", pairs: bool = True) -> None:
    """Each table with how to read its intervals. pairs: also compare lines pair by pair."""
    from navia.report.text import differences_text, intervals_and_seeds, pairs_short

    for table in results.tables:
        title = f"{f'Table {table.number}: ' if len(results.tables) > 1 else ''}{table.title}"
        for block in table.blocks:
            print_wide(_rich(table, block, f"{title}\n{block.title}" if block.title else title))
        compared = pairs_short(table) if pairs else []
        for text in filter(None, [" ".join(intervals_and_seeds(table)), differences_text(table), *compared]):
            print_line(text)


def _compare(results: "Results", names: list[str]) -> list[tuple[int, "Paired"]]:
    """Two names after each other are a pair: the two lines in each table that has both."""
    from navia.report.compare import paired

    known = dict.fromkeys(line.name for table in results.tables for line in table.lines)
    if unknown := next((name for name in names if name not in known), None):
        raise InputError(f"no line {unknown!r} in these tables{known_names(unknown, known)}")
    if len(names) % 2:
        raise InputError(f"--compare {names[-1]!r} needs a second --compare LINE{known_names('', known)}")
    found = []
    for one, other in zip(names[::2], names[1::2], strict=True):
        tables = [(table, {line.name: line for line in table.lines}) for table in results.tables]
        both = [(table, lines[one], lines[other]) for table, lines in tables if one in lines and other in lines]
        if not both:
            raise InputError(f"{one!r} and {other!r} are in no table together: their rows must not be compared")
        pairs = [(table.number, pair) for table, a, b in both if (pair := paired(a, b, table.average))]
        if not pairs:
            raise InputError(f"{one!r} and {other!r} have no images and orders in common yet")
        found += pairs
    return found


def _pair_as_dict(pair: "Paired") -> dict[str, Any]:
    return {**asdict(pair), "pairs": pair.pairs, "settled": pair.settled}


def _rich(table: "Table", block: "Block", title: str) -> RichTable:
    from navia.report.compare import interval_text, read_column

    columns = block.select(table.main)  # the files have the others
    shown = RichTable("method", title=Text(title), title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(Text(column.title), justify="right")
    for cells in zip(*(read_column(block, column) for column in columns), strict=True):
        values = [Text.assemble((text, "bold" if mark else ""), (f" {interval_text(value)}".rstrip(), "dim"))
                  for _, text, value, mark in cells]  # fmt: skip
        shown.add_row(Text(cells[0][0].name), *values)
    return shown


def _as_dict(table: "Table") -> dict[str, Any]:
    from navia.report.compare import comparisons, differences, read_column, step_times
    from navia.report.published import has_paper, paper, paper_gflops
    from navia.report.text import how_to_read

    columns = list(dict.fromkeys((*table.columns, *table.main)))
    blocks = [
        {
            "title": block.title,
            "best": {c.name: [line.name for line, _, _, mark in read_column(block, c) if mark] for c in columns},
            "lines": [
                {"name": line.name, **asdict(line.setting), "options": line.setting.given,
                 "options_by_domain": line.options_by_domain,
                 "values": {column.name: asdict(line.value(column)) for column in columns},
                 "paper": {c.name: theirs for c in columns if (theirs := paper(table, line, c)) is not None}
                 | ({"gflops": paper_gflops(table, line)} if has_paper(table) and paper_gflops(table, line) else {})}
                for line in block.lines
            ],
        }
        for block in table.blocks
    ]  # fmt: skip
    return {
        "number": table.number, "title": table.title, "spec": table.spec, "protocol": dict(table.protocol),
        "datasets": [asdict(dataset) for dataset in table.datasets],
        "notes": how_to_read(table), "differences": [asdict(gap) for gap in differences(table)],
        "paired": [{"against": title, **_pair_as_dict(pair)} for title, own in comparisons(table) for pair in own.values()],
        "step_times": [{"line": x.line.name, "dense": x.dense.name, "percent": x.percent, "paper": x.paper}
                       for x in step_times(table)],
        "blocks": blocks,
    }  # fmt: skip
