"""The files of a report: rows, traces and specs that `navia bench` wrote in, tables, figures and the page out.

A report keeps a list of its files in their folder. It replaces and deletes these and no others.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from navia.bench.store import Store
from navia.errors import InputError, NaviaError
from navia.io import atomic_write, printable
from navia.report.examples import example_images
from navia.report.figures import draw_figures
from navia.report.page import report_page
from navia.report.tables import Results
from navia.report.text import csv_text, latex, page_markdown

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


class ReportFiles:
    """`with ReportFiles(folder) as files:` and then `with files.open(name) as path:` for each file. Files of an earlier
    report that this one did not write are deleted at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []
        self._listed = self._read()

    def __enter__(self) -> "ReportFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        names = {path.name for path in self.paths}
        for name in self._listed - names:
            (self.folder / name).unlink(missing_ok=True)
        self._listed = names
        self._save()

    def check(self, *names: str) -> None:
        """Refuse names of files that the report did not write."""
        for name in names:
            path = self.folder / name
            if name not in self._listed and os.path.lexists(path):
                raise InputError(
                    f"{str(path)!r} is there already, and is not in the list of what `navia report` wrote "
                    f"({LIST} beside it): move it away, or choose another --out"
                )

    @contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """A temporary path to write to, which becomes the file `name`. It is listed first: an interrupted report can be made
        again."""
        self.check(name)
        if name not in self._listed:
            self._listed.add(name)
            self._save()
        with atomic_write(self.folder / name, sync=False) as unfinished:
            yield unfinished
        self.paths.append(self.folder / name)

    def _read(self) -> set[str]:
        path = self.folder / LIST
        try:
            names = json.loads(path.read_text(encoding="utf-8"))["files"]
            return {name for name in names if Path(name).name == name}
        except FileNotFoundError:
            return set()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{str(path)!r} is no list of files that `navia report` wrote; delete it: {error!r}") from error

    def _save(self) -> None:
        save_text(self.folder / LIST, json.dumps({"files": sorted(self._listed)}, indent=1) + "\n")


def write_report(results: Results, traces: dict[str, Trace], out: Path, notes: list[str]) -> tuple[list[Path], list[str]]:
    """Write tables, figures and the page to `out`.

    Returns:
        The paths, and a note on figures that could not be drawn.
    """
    try:
        with ReportFiles(out) as files:
            files.check("results.md", "results.tex", "results.csv", "index.html")
            figures, problems = _figures(results, traces, files)
            texts = {
                "results.md": page_markdown(results),
                "results.tex": latex(results),
                "results.csv": "".join(csv_text(table, header=table is results.tables[0]) for table in results.tables),
                "index.html": report_page(results, traces, example_images(results, traces), [*notes, *problems]),
            }
            for name, text in texts.items():
                with files.open(name) as path:
                    path.write_text(printable(text), encoding="utf-8")
            return [*files.paths[-len(texts) :], *figures], problems
    except OSError as error:
        raise InputError(f"cannot write to {str(out)!r}: {error}") from error


def _figures(results: Results, traces: dict[str, Trace], files: ReportFiles) -> tuple[list[Path], list[str]]:
    """Without matplotlib a report has no figures, but the rest."""
    try:
        return draw_figures(results, traces, files), []
    except InputError:
        raise
    except NaviaError as missing:
        return [], [f"No figures: {missing}."]


def save_text(path: Path, text: str) -> None:
    """Write a file that a reader never sees half of."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as unfinished:
            unfinished.write_text(printable(text), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error
