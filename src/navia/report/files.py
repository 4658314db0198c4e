"""The files of a report: rows, traces and specs that `navia bench` wrote in, tables, figures and the page out.

A report keeps a list of its files in their folder. It replaces and deletes these and no others.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from navia.bench.store import Store
from navia.errors import InputError, NaviaError
from navia.io import atomic_write, printable
from navia.report.figures import draw_figures
from navia.report.images import example_images
from navia.report.markup import csv_text, latex, page_markdown
from navia.report.page import report_page
from navia.report.tables import Results

Trace = dict[str, Any]
LIST = "navia-report.json"


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Trace], list[str]]:
    """Rows, traces by key, and a note on missing traces. Nothing is locked: a benchmark may go on writing."""
    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}: give the one that `navia bench --out` fills")
    store = Store(folder)
    try:
        rows = [row.as_json() for row in store.rows()]
    except OSError as error:
        raise InputError(f"cannot read {str(store.path)!r}: {error}") from error
    if not rows:
        raise InputError(f"no rows in {str(folder)!r}: `navia bench` writes them to rows.jsonl, one per finished cell")
    traces: dict[str, Trace] = {}
    for row in rows:
        try:
            trace = store.trace(row["key"])
            if all(isinstance(trace[name], list) for name in ("right", "images", "predicted")):
                traces[row["key"]] = trace
        except (OSError, ValueError, KeyError, TypeError):  # not there, not whole, or no trace
            continue
    lost = len(rows) - len(traces)
    note = f"{lost} of {len(rows)} rows have no readable trace: their curves and histograms are not drawn."
    return rows, traces, [note] if lost else []


def read_specs(folder: Path) -> list[dict[str, Any]]:
    """The specs that `navia bench` kept beside the rows: each is a table."""
    specs = Store(folder).specs()
    for spec in specs:
        cells = spec.get("cells")
        if not isinstance(cells, list) or not all(isinstance(cell, dict) and "key" in cell for cell in cells):
            raise InputError(f"spec {spec.get('name')!r} in {str(folder / 'specs')!r} has no list of cells; delete its file")
    return specs


def write_report(results: Results, traces: dict[str, Trace], out: Path, notes: list[str]) -> tuple[list[Path], list[str]]:
    """Write tables, figures and the page to `out`. Returns the paths, and a note on figures that could not be drawn."""
    figures, problems = {}, []
    try:
        figures = draw_figures(results, traces)
    except NaviaError as missing:  # without matplotlib a report has the rest
        problems = [f"No figures: {missing}."]
    texts = {
        "results.md": page_markdown(results),
        "results.tex": latex(results),
        "results.csv": "".join(csv_text(table, header=table is results.tables[0]) for table in results.tables),
        "index.html": report_page(results, traces, example_images(results, traces), [*notes, *problems]),
    }
    return write_files(out, {name: printable(text).encode() for name, text in texts.items()} | figures), problems


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files and their list, and delete those of an earlier list that are not among them. Files that are not listed are
    never touched: a name that one of them has is refused before anything is written."""
    own = folder / LIST
    try:
        listed = {name for name in json.loads(own.read_text(encoding="utf-8"))["files"] if Path(name).name == name}
    except OSError:  # not there
        listed = set()
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{str(own)!r} is no list of files that `navia report` wrote; delete it: {error!r}") from error
    for path in (folder / name for name in contents):
        if path.name not in listed and os.path.lexists(path):
            raise InputError(
                f"{str(path)!r} is there already, and is not in the list of what `navia report` wrote "
                f"({LIST} beside it): move it away, or choose another --out"
            )
    save_text(
        own, json.dumps({"files": sorted(listed | {*contents})})
    )  # listed first: an interrupted report can be made again
    for name, content in contents.items():
        _save(folder / name, content)
    for name in listed - {*contents}:
        (folder / name).unlink(missing_ok=True)
    save_text(own, json.dumps({"files": sorted(contents)}, indent=1) + "\n")
    return [folder / name for name in contents]


def save_text(path: Path, text: str) -> None:
    """Write a file that a reader never sees half of."""
    _save(path, printable(text).encode())


def _save(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as unfinished:
            unfinished.write_bytes(content)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error
