"""Many cells: which ones a spec asks for, which are missing, how long they take, and running them."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from navia.adaptation import selection
from navia.bench.cell import Cell
from navia.bench.digests import (
    DataEntry,
    FileStamps,
    checkpoint_digest,
    is_here,
    model_digest,
    names_and_sizes,
    times,
)
from navia.bench.executors.serial import Executor, Failure, run_serial
from navia.bench.row import Row
from navia.bench.run import held_out_from
from navia.bench.spec import DataSpec, PreprocessingSpec, RunSpec, SourceSpec, Spec
from navia.bench.store import Store
from navia.data.layouts import detect_or_none
from navia.data.sources import SHIFTED_LAYOUTS
from navia.errors import NaviaError, SpecError
from navia.evaluation.explain import check_sklearn
from navia.io import expand_user
from navia.methods.base import METHODS, changed_options
from navia.reduction import parse
from navia.registry import load_plugin, source_digest

log = logging.getLogger("navia.bench")


@dataclass(frozen=True)
class Done:
    """A finished cell, its row, how many are done of how many, and the estimated seconds left."""

    cell: Cell
    row: Row
    done: int
    total: int
    left: float


class FailedCellsError(NaviaError):
    """Some cells have no row; the rows of all others are on disk. failures: the cells with their tracebacks."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = tuple(failures)
        reasons: dict[str, list[Cell]] = {}
        for failure in failures:
            last_line = failure.why.strip().split("\n")[-1]  # of a traceback: it names the error
            reasons.setdefault(last_line, []).append(failure.cell)
        lines = [f"{len(failures)} cell{'s' * (len(failures) > 1)} failed, to be tried again by the same command:"]
        for reason, failed in reasons.items():
            others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            lines.append(f"  {failed[0].title}{others}: {reason}")
        super().__init__("\n".join(lines))


def cells(spec: Spec) -> list[Cell]:
    """Every combination, domain by domain, so that rows to be compared come one after the other. Reads the weights and lists
    the images that the spec names, for their digests. Cells of named data sets that are missing are among them."""
    for plugin in spec.plugins:
        load_plugin(plugin)
    if any(run.tsne for run in spec.runs):
        check_sklearn()
    files = FileStamps()
    found: dict[str, Cell] = {}
    notes: dict[str, None] = {}
    for model, entry in itertools.product(spec.models, map(_with_files, spec.data)):
        checkpoint = None if model.checkpoint is None else str(model.checkpoint)
        of_model, of_checkpoint = model_digest(model.name), checkpoint_digest(checkpoint)
        data, corrupted = files.data(entry.path, entry.corruptions, entry.parts, entry.name), bool(entry.corruptions)
        source = _source_of(spec, entry, data)
        source_stamps = files.source(source.path)
        streams = [(name, (name,)) for name in data.names] if entry.stream == "reset" else [("", data.names)]
        for seed, (domain, domains) in itertools.product(spec.seeds, streams):
            stamps = files.stamps(data, domains, corrupted)
            batches = _num_batches(spec, entry, source, data, domains, files)
            whole = entry.images is None and entry.stream == "reset"
            for run, method, reduce, adapt_for in _runs(spec, entry, batches, notes):
                if seed != spec.seeds[0] and method == "none" and whole and adapt_for is None:
                    continue  # without adaptation the order changes nothing, unless it decides which images are scored
                fisher = METHODS.get(method).needs_fisher
                values = _shared_fields(model) | _shared_fields(entry) | _shared_fields(run)
                values |= {
                    "model": model.name, "model_digest": of_model,
                    "checkpoint": checkpoint, "checkpoint_digest": of_checkpoint, "dataset": entry.name,
                    "data": entry.path, "data_digest": names_and_sizes(stamps), "domain": domain, "domains": domains,
                    "corrupted": corrupted, "severity": entry.severity if corrupted else 0,
                    "source_path": source.path, "source_images": source.images,
                    "source_preprocessing": source.preprocessing, "fisher_images": source.fisher_images if fisher else None,
                    "source_digest": names_and_sizes(source_stamps), "times_digest": times([*stamps, *source_stamps]),
                    "method": method, "reduce": reduce, "options": changed_options(method, options_on(run, entry)),
                    "plugin_digest": source_digest(METHODS.get(method), type(parse(reduce))), "guarded": run.guard,
                    "adapt_for": adapt_for, "seed": seed, "batch": spec.batch,
                }  # fmt: skip
                cell = Cell(**values)
                found.setdefault(cell.key, cell)
    for note in notes:
        log.warning("%s", note)
    return list(found.values())


def options_on(run: RunSpec, entry: DataSpec) -> dict[str, Any]:
    """Options of a run on one data set."""
    return {**run.options, **run.options_for.get(entry.name or "", {})}


def _with_files(entry: DataSpec) -> DataSpec:
    """With ImageNet-C's files in place of generated corruptions, where they exist. They have 224 px and are only cropped."""
    for folder in filter(None, (entry.files, entry.path) if entry.corruptions else ()):
        layout = detect_or_none(expand_user(folder)) if is_here(folder) else None
        if folder == entry.files and is_here(folder) and (layout is None or layout.kind != "imagenet-c"):
            raise SpecError(f"files {folder!r} is no ImageNet-C folder; `navia doctor` says what it holds")
        if layout is not None and layout.kind == "imagenet-c":
            parts = tuple(f"{name}/{entry.severity}" for name in entry.corruptions)
            changes = {"path": folder, "corruptions": (), "parts": parts, "preprocessing": PreprocessingSpec()}
            return entry.model_copy(update=changes)
    return entry


def _source_of(spec: Spec, entry: DataSpec, data: DataEntry) -> SourceSpec:
    """Source of a data set. Where its folder is that of the data, the source images are left out of the stream."""
    source, path = spec.source, spec.source.path
    if path is None or not is_here(path) or not is_here(entry.path) or path == "embedded":
        return source
    if expand_user(path).resolve() != expand_user(entry.path).resolve() or _is_shifted(data):
        return source
    return source.model_copy(update={"path": None, "preprocessing": source.preprocessing or entry.preprocessing})


def _is_shifted(data: DataEntry) -> bool:
    return data.layout is not None and data.layout.kind in SHIFTED_LAYOUTS


def _shared_fields(part: BaseModel) -> dict[str, Any]:
    """Fields of a spec that a cell has under the same name: a new one needs no line here."""
    return {name: getattr(part, name) for name in type(part).model_fields if name in Cell.model_fields}


def _runs(
    spec: Spec, entry: DataSpec, batches: int | None, notes: dict[str, None]
) -> Iterator[tuple[RunSpec, str, str, int | None]]:
    """Run, method, reducer and adapt_for of each cell. batches: of the stream, if known. notes: gets what was changed."""
    for run in spec.runs:
        numbers, largest = run.adapt_for, max((n for n in run.adapt_for if n is not None), default=0)
        if run.shorten and batches is not None and 0 < (most := held_out_from(batches)) < largest:
            shorter = (n if n is None else max(1, round(n * most / largest)) for n in numbers)
            numbers = tuple(dict.fromkeys(shorter))
            new, old = (", ".join(str(n) for n in each if n is not None) for each in (numbers, run.adapt_for))
            notes[f"adapt_for is {new} instead of {old}: the stream has only {batches} batches"] = None
        for method in run.method:
            chosen = _grid_of(run, method)
            METHODS.get(method).Options.from_kwargs(method, options_on(run, entry) | chosen)
            for reduce, adapt_for in itertools.product(run.reduce, numbers):
                yield run, method, str(parse(reduce)), adapt_for


def _grid_of(run: RunSpec, method: str) -> dict[str, Any]:
    """One value of each option that a run chooses, to check that the method has them."""
    if run.choose is None:
        return {}
    grid = run.choose.grid or selection.GRID
    if unknown := sorted(set(grid) - set(METHODS.get(method).Options.__dataclass_fields__)):
        raise SpecError(
            f"method {method!r} has no option {', '.join(unknown)} to choose: give a grid, or leave out `choose`"
        )
    return {name: values[0] for name, values in grid.items()}


def _num_batches(
    spec: Spec, entry: DataSpec, source: SourceSpec, data: DataEntry, domains: Sequence[str], files: FileStamps
) -> int | None:
    """Of the stream over these domains; None if not known."""
    counts = files.counts(data, domains, bool(entry.corruptions))
    left_out = 0 if source.path is not None or data.path == "embedded" or _is_shifted(data) else source.images
    if counts is None and entry.images is None:
        return None
    lengths = [min(count - left_out, entry.images or count) for count in counts or ()] or [entry.images or 0] * len(domains)
    if entry.stream == "mixed":
        return math.ceil(sum(lengths) / spec.batch)
    return sum(math.ceil(length / spec.batch) for length in lengths)


def _missing(asked: Sequence[Cell], rows: Sequence[Row]) -> list[Cell]:
    """Cells without a row of the present weights and images. A row without times counts: it has no local images, or was
    written before rows had them."""
    done = {row.key: row.times_digest for row in rows}
    return [cell for cell in asked if cell.key not in done or done[cell.key] not in (None, cell.times_digest)]


def run_grid(
    spec: Spec, store: Store, executor: Executor = run_serial,
    on_failure: Callable[[Failure], object] = lambda _: None, name: str = "spec",
) -> Iterator[Done]:  # fmt: skip
    """Run what is missing. A cell counts once its row is on disk. One that fails does not stop the others: `on_failure` is
    called at once, and FailedCellsError is raised at the end. name: under which the store keeps the spec for `navia report`;
    the newest spec of a name replaces the one before."""
    with store.writing():
        asked = cells(spec)
        store.keep_spec(name, spec, asked)
        rows, worked, started = store.rows(), 0.0, time.monotonic()
        here = [cell for cell in asked if is_available(cell)]
        _report_missing(asked)
        wanted, total = _missing(here, rows), len(here)
        waiting, estimator = {cell.key: cell for cell in wanted}, Estimator(rows)
        failures: list[Failure] = []
        for outcome in executor(wanted):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                del waiting[outcome.cell.key]
                on_failure(outcome)
                continue
            row, trace = outcome
            store.add(row, trace)
            estimator.add(row)
            cell = waiting.pop(row.key)
            worked += row.wall_seconds
            parallel = worked / (time.monotonic() - started)  # how many cells run side by side
            left = (estimator.seconds(waiting.values()) or 0.0) / parallel
            yield Done(cell, row, total - len(waiting) - len(failures), total, left)
    if failures:
        raise FailedCellsError(failures)


def is_available(cell: Cell) -> bool:
    """False for a named data set that is not on this machine: its column of the table stays empty."""
    return cell.dataset is None or is_here(cell.data)


def _report_missing(asked: Sequence[Cell]) -> None:
    missing = {str(cell.dataset): cell.data for cell in asked if not is_available(cell)}
    if not missing:
        return
    text = ", ".join(f"{name} ({path!r})" for name, path in missing.items())
    advice = "give its folder with --data NAME=PATH"
    if all(not is_available(cell) for cell in asked):
        raise SpecError(f"none of the data sets is here: {text}; {advice}")
    log.warning("%s is not here and is left out: %s", text, advice)


def estimate(spec: Spec, store: Store) -> tuple[list[Cell], float | None]:
    """Missing cells, and the seconds that those with data take one after the other; None if there is no row to judge by."""
    rows = store.rows()
    wanted = _missing(cells(spec), rows)
    return wanted, Estimator(rows).seconds(filter(is_available, wanted))


class Estimator:
    """Estimates the time of cells by finished rows: those of the same model, method and reducer; if there are none, of the
    same model and method; and so on. Each row is read once, when it is added."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        # number of rows, images per domain, work (see `Cell.work`) and seconds, summed by kind
        self._sums: dict[tuple[str, ...], np.ndarray] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Rows of methods that are no longer installed are ignored."""
        if row.method not in METHODS.names():
            return
        images, kind = row.fingerprint.images, (row.model, row.method, row.reduce)
        own = np.array([1, images / len(row.domains), METHODS.get(row.method).relative_cost * images, row.wall_seconds])
        for depth in range(len(kind) + 1):
            self._sums[kind[:depth]] = self._sums.get(kind[:depth], 0) + own

    def seconds(self, wanted: Iterable[Cell]) -> float | None:
        """Of all cells one after the other; None if there is no row to judge by."""
        total = 0.0
        for cell in wanted:
            kind = (cell.model, cell.method, cell.reduce)
            sums = next((self._sums[kind[:depth]] for depth in (3, 2, 1, 0) if kind[:depth] in self._sums), None)
            if sums is None:
                return None
            rows, images, work, seconds = sums.tolist()
            total += cell.work(images / rows) * seconds / work
        return total
