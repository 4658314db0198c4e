"""What a folder of `navia bench` holds, and the report's files that are made of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from navia.bench.store import Store
from navia.errors import InputError, NaviaError
from navia.io import atomic_write, printable
from navia.report.examples import example_pictures
from navia.report.figures import draw_figures
from navia.report.index_page import index_page
from navia.report.latex import latex
from navia.report.results import Results
from navia.report.tables import csv_text, page_markdown
from navia.report.written import Written

Trace = dict[str, Any]
_TEXTS = ("results.md", "results.tex", "results.csv", "index.html")


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Trace], list[str]]:
    """Rows, traces by key, and what to say of traces that are missing. Nothing is locked: a benchmark may go on writing."""
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
    lost = 0
    for row in rows:
        try:
            traces[row["key"]] = _whole_trace(store.trace(row["key"]))
        except (OSError, ValueError):
            lost += 1
    rows_without = f"{lost} of {len(rows)} rows have no readable trace: their curves and histograms are not drawn."
    return rows, traces, [rows_without] if lost else []


def read_specs(folder: Path) -> list[dict[str, Any]]:
    """Those that `navia bench` kept beside the rows: each is a table. None in folders from before it kept them."""
    specs = Store(folder).specs()
    for spec in specs:
        cells = spec.get("cells")
        if not isinstance(cells, list) or not all(isinstance(cell, dict) and "key" in cell for cell in cells):
            raise InputError(f"spec {spec.get('name')!r} in {str(folder / 'specs')!r} has no list of cells; delete its file")
    return specs


def _whole_trace(trace: Any) -> Trace:
    lists: list[Any] = [trace.get(name) for name in ("right", "images", "predicted")] if isinstance(trace, dict) else []
    if not lists or not all(isinstance(values, list) for values in lists) or len(lists[0]) != len(lists[1]):
        raise ValueError("no trace")
    return dict(trace)


def write_report(results: Results, traces: dict[str, Trace], out: Path, notes: list[str]) -> tuple[list[Path], list[str]]:
    """Everything into `out`: the paths, and what could not be made."""
    with _writing(out) as written:
        written.check(*_TEXTS)
        figures, problems = _drawn("figures", lambda: draw_figures(results, traces, written))
        made = (
            page_markdown(results),
            latex(results),
            "".join(csv_text(table, header=table is results.tables[0]) for table in results.tables),
            index_page(results, traces, example_pictures(results), [*notes, *problems]),
        )
        texts = [_write(written, name, text) for name, text in zip(_TEXTS, made, strict=True)]
    return [*texts, *figures], problems


@contextmanager
def _writing(out: Path) -> Iterator[Written]:
    try:
        with Written(out) as written:
            yield written
    except OSError as error:
        raise InputError(f"cannot write to {str(out)!r}: {error}") from error


def _write(written: Written, name: str, text: str) -> Path:
    with written.file(name) as path:
        path.write_text(printable(text), encoding="utf-8")
    return written.paths[-1]


def _drawn(what: str, draw: Callable[[], list[Path]]) -> tuple[list[Path], list[str]]:
    """Paths of figures, or a sentence why there are none: without matplotlib the rest of a report is still one."""
    try:
        return draw(), []
    except InputError:
        raise
    except NaviaError as missing:
        return [], [f"No {what}: {missing}."]


def save_text(path: Path, text: str) -> None:
    """A reader never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as unfinished:  # it can be made again at any time
            unfinished.write_text(printable(text), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error
