"""`navia report`: the rows of `navia bench` as tables, figures and a page."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from navia.commands.terminal import JsonOption, console, print_json, print_wide, write
from navia.errors import InputError, NaviaError

if TYPE_CHECKING:
    from navia.report.results import Block, Column, Results, Table
    from navia.report.speed import Speed

_MOST_DOMAINS = 6  # that a terminal has room for


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `navia bench --out DIR` fills, or has filled.")],
    out: Annotated[Path | None, typer.Option(help="Where the report goes; DIR/report by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put the rows of a benchmark into comparable tables: Markdown, LaTeX, CSV, figures and a page.

    Rows that must not be compared (other weights, other pictures, ...) go to separate tables, and the report says why. It
    may be made while the benchmark is still running. Where DIR holds a speed.json (`benchmarks/speed.py --json`), the page
    has a section of it.

        navia report results
    """
    from navia.report.results import tabulate

    out, speed = out or folder / "report", _read_speed(folder)
    if speed is not None and not (folder / "rows.jsonl").exists():
        _report_speed_alone(speed, out, as_json)
        return
    rows, traces, notes = read_rows(folder)
    results = tabulate(rows, repr(str(folder / "rows.jsonl")))
    files, problems = write_report(results, traces, out, notes, speed)
    if as_json:
        print_json({**_as_dict(results), "files": [str(path) for path in files], "notes": [*notes, *problems]})
        return
    for table in results.tables:
        _print_table(table, len(results.tables) > 1)
    from navia.report.tables import missing_text, summary

    for line in (summary(results), *results.apart, missing_text(results), *notes, *problems):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_paths(files)


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], list[str]]:
    """Rows, traces by key, and what to say of traces that are missing. Nothing is locked: a benchmark may go on writing."""
    from navia.bench.store import Store

    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}: give the one that `navia bench --out` fills")
    store = Store(folder)
    try:
        rows = store.rows()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {str(store.path)!r}: {error}") from error
    if not rows:
        raise InputError(f"no rows in {str(folder)!r}: `navia bench` writes them to rows.jsonl, one per finished cell")
    traces: dict[str, dict[str, Any]] = {}
    lost = 0
    for row in rows:
        key = row.get("key") if isinstance(row, dict) else None  # what is no row at all is refused later, with its line
        try:
            traces[str(key)] = _whole_trace(store.trace(str(key)))
        except (OSError, ValueError):
            lost += 1
    rows_without = f"{lost} of {len(rows)} rows have no readable trace: their curves and histograms are not drawn."
    return rows, traces, [rows_without] if lost else []


def _read_speed(folder: Path) -> "Speed | None":
    from navia.report.speed import FILE, read_speed

    return read_speed(folder / FILE) if (folder / FILE).is_file() else None


def _report_speed_alone(speed: "Speed", out: Path, as_json: bool) -> None:
    from navia.report.speed import speed_page

    write(out / "index.html", lambda path: _save(path, speed_page(speed)))
    figures, problems = _save_speed_figure(speed, out)
    files = [out / "index.html", *figures]
    if as_json:
        print_json({"speed": speed, "files": [str(path) for path in files], "notes": problems})
        return
    for line in problems:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_paths(files)


def _save_speed_figure(speed: "Speed", out: Path) -> tuple[list[Path], list[str]]:
    """The paths, and what could not be made."""
    from navia.report.speed import save_speed

    figures: list[Path] = []
    try:
        write(out / "speed.png", lambda _: figures.extend(save_speed(speed, out)))
    except InputError:
        raise
    except NaviaError as missing:
        return [], [f"No figure of the speed: {missing}."]
    return figures, []


def _whole_trace(trace: Any) -> dict[str, Any]:
    lists: list[Any] = [trace.get(name) for name in ("right", "images", "predicted")] if isinstance(trace, dict) else []
    if not lists or not all(isinstance(values, list) for values in lists) or len(lists[0]) != len(lists[1]):
        raise ValueError("no trace")
    return dict(trace)


def write_report(
    results: "Results",
    traces: dict[str, dict[str, Any]],
    out: Path,
    notes: list[str],
    speed: "Speed | None" = None,
) -> tuple[list[Path], list[str]]:
    """Everything into `out`: the paths, and what could not be made."""
    from navia.report.examples import example_pictures
    from navia.report.figures import save_figures
    from navia.report.index_page import index_page
    from navia.report.latex import latex
    from navia.report.tables import csv_text, page_markdown

    problems = []
    figures: list[Path] = []
    try:
        write(out / "figures", lambda _: figures.extend(save_figures(results, traces, out)))
    except InputError:
        raise
    except NaviaError as missing:
        problems.append(f"No figures: {missing}.")
    if speed is not None:
        drawn, lost = _save_speed_figure(speed, out)
        figures += drawn
        problems += lost
    texts = {
        "results.md": page_markdown(results),
        "results.tex": latex(results),
        "results.csv": "".join(csv_text(table, header=table is results.tables[0]) for table in results.tables),
        "index.html": index_page(results, traces, example_pictures(results), [*notes, *problems], speed),
    }
    for name in texts:
        write(out / name, lambda path: _save(path, texts[path.name]))
    return [*(out / name for name in texts), *figures], problems


def _save(path: Path, text: str) -> None:
    """A reader never sees half of it."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _print_table(table: "Table", several: bool) -> None:
    for block in table.blocks:
        title = f"{f'Table {table.number}: ' if several else ''}{table.title}"
        print_wide(_rich(table, block, f"{title}\n{block.title}" if block.title else title))


def _rich(table: "Table", block: "Block", title: str) -> RichTable:
    from navia.report.results import best, interval_text, texts

    shown = RichTable("method", title=Text(title), title_justify="left", title_style="bold")
    cells = []
    for column in _columns(table):
        shown.add_column(Text(column.title), justify="right")
        own = []
        for line, text, mark in zip(block.lines, texts(block, column), best(block, column), strict=True):
            interval = interval_text(line.value(column)) if column.is_accuracy else ""
            own.append(Text.assemble((text, "bold" if mark else ""), (f" {interval}" if interval else "", "dim")))
        cells.append(own)
    for i, line in enumerate(block.lines):
        shown.add_row(Text(line.name), *(column[i] for column in cells))
    return shown


def _columns(table: "Table") -> "list[Column]":
    """Without the single domains where these are too many for a terminal: the files have them."""
    wide = len(table.domains) > _MOST_DOMAINS
    return [column for column in table.columns if column.kind != "domain" or not wide]


def _print_paths(files: list[Path]) -> None:
    figures = [path for path in files if path.suffix in (".png", ".svg")]
    texts = [path for path in files if path not in figures]
    for path in texts:
        console.print(str(path), markup=False, highlight=False, soft_wrap=True)
    if figures:
        line = f"{len(figures) // 2} figures as PNG and SVG in {figures[0].parent}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _as_dict(results: "Results") -> dict[str, Any]:
    return {
        "rows": results.rows,
        "tables": [_table_dict(table) for table in results.tables],
        "apart": list(results.apart),
        "missing": [asdict(cell) for cell in results.missing()],
    }


def _table_dict(table: "Table") -> dict[str, Any]:
    return {
        "number": table.number,
        "title": table.title,
        "protocol": dict(table.protocol),
        "blocks": [
            {
                "title": block.title,
                "lines": [
                    {"name": line.name, **asdict(line.setting), "options": line.setting.given,
                     "values": {column.name: asdict(line.value(column)) for column in table.columns}}
                    for line in block.lines
                ],
            }
            for block in table.blocks
        ],
    }  # fmt: skip
