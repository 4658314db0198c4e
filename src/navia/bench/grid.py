"""Many cells: which ones a spec asks for, which are missing, and running those."""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navia.adapt.method import METHODS, changed_options
from navia.bench.cell import Cell, run_cell
from navia.bench.pace import total_seconds
from navia.bench.store import Store
from navia.bench.tsne import Tsne
from navia.errors import NaviaError, SpecError
from navia.images.layouts import recognise
from navia.measure.tsne import check_installed
from navia.reduce import parse
from navia.spec import DataSpec, RunSpec, Spec

Result = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Done:
    """A finished cell, its row, how many are done of how many, and the estimated seconds left."""

    cell: Cell
    row: dict[str, Any]
    done: int
    total: int
    left: float


@dataclass(frozen=True)
class Failure:
    """A cell that gave no row. why: what it refused, or the traceback of what nobody foresaw."""

    cell: Cell
    why: str

    @property
    def reason(self) -> str:
        """In one line: the last of a traceback names the error."""
        return self.why.strip().split("\n")[-1]


class FailedCellsError(NaviaError):
    """Some cells have no row; those of all others are on disk. failures: each cell with the whole of its traceback."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        self.failures = tuple(failures)
        reasons: dict[str, list[Cell]] = {}
        for failure in failures:
            reasons.setdefault(failure.reason, []).append(failure.cell)
        lines = [f"{len(failures)} cell{'s' * (len(failures) > 1)} failed, to be tried again by the same command:"]
        for reason, failed in reasons.items():
            others = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            lines.append(f"  {failed[0].title}{others}: {reason}")
        super().__init__("\n".join(lines))


def cells(spec: Spec) -> list[Cell]:
    """Every combination, domain by domain, so that rows that are compared come one after the other."""
    if any(run.tsne for run in spec.runs):
        check_installed()
    found = [
        Cell(
            model=model.name,
            checkpoint=None if model.checkpoint is None else str(model.checkpoint),
            crop_only=model.crop_only,
            data=data.path,
            domain=domain,
            domains=(domain,) if data.stream == "reset" else _domain_names(data),
            corrupted=bool(data.corruptions),
            severity=data.severity if data.corruptions else 0,
            stream=data.stream,
            images=data.images,
            label_shift=data.label_shift,
            source_images=spec.source.images,
            source_path=spec.source.path,
            method=method,
            reduce=reduce,
            options=json.dumps(changed_options(method, run.options), sort_keys=True),
            realtime=run.realtime,
            adapt_for=adapt_for,
            seed=seed,
            batch=spec.batch,
            label=run.label,
            tsne=None if run.tsne is None else Tsne(**run.tsne.model_dump()),
            guarded=run.guard,
        )
        for model in spec.models
        for data in spec.data
        for seed in spec.seeds
        for domain in (_domain_names(data) if data.stream == "reset" else ("",))
        for run in spec.runs
        for method, reduce in _pairs(run)
        for adapt_for in run.adapt_for
        if seed == spec.seeds[0] or not _order_free(method, data, adapt_for)
    ]
    return list(dict.fromkeys(found))


def _order_free(method: str, data: DataSpec, adapt_for: int | None) -> bool:
    """Without adaptation the order of the same images changes nothing, unless it decides which are scored: one seed is
    enough."""
    return method == "none" and data.images is None and data.stream == "reset" and adapt_for is None


def _domain_names(data: DataSpec) -> tuple[str, ...]:
    if data.corruptions:
        return data.corruptions
    if data.path == "embedded" or data.path.startswith("datasets:"):
        return ("clean" if data.path == "embedded" else data.path.removeprefix("datasets:"),)
    layout = recognise(Path(data.path))
    names = tuple(part.name or layout.root.name for part in layout.parts)
    unknown = sorted(set(data.parts) - set(names))
    if unknown:
        raise SpecError(f"{data.path!r} has no part {', '.join(unknown)}; it has {', '.join(names)}")
    return data.parts or names


def _pairs(run: RunSpec) -> Iterator[tuple[str, str]]:
    for method in run.method:
        kind = METHODS.get(method)
        kind.Options.of(method, run.options)
        for reduce in run.reduce:
            yield method, str(parse(reduce))


def missing(spec: Spec, store: Store) -> list[Cell]:
    done = {row["key"] for row in store.rows()}
    return [cell for cell in cells(spec) if cell.key not in done]


def run_grid(
    spec: Spec,
    store: Store,
    engine: "Engine | None" = None,
    tell: Callable[[Failure], None] | None = None,
    name: str = "spec",
) -> Iterator[Done]:
    """Run what is missing; each cell counts once its row is on disk. One that fails does not stop the others: `tell` hears
    of it at once, and FailedCellsError comes at the end. name: under which the store keeps the spec, for `navia report`;
    give each spec of one folder its own, for the newest of a name replaces the one before."""
    with store.writing():
        asked = cells(spec)
        store.keep_spec(name, spec, asked)
        wanted = missing(spec, store)
        total = len(asked)
        waiting = {cell.key: cell for cell in wanted}
        rows, worked, started = store.rows(), 0.0, time.monotonic()
        failures: list[Failure] = []
        for outcome in (engine or one_by_one)(wanted):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                del waiting[outcome.cell.key]
                if tell is not None:
                    tell(outcome)
                continue
            row, trace = outcome
            store.add(row, trace)
            rows.append(row)
            cell = waiting.pop(row["key"])
            worked += row["wall_seconds"]
            at_once = worked / (time.monotonic() - started)  # how many cells run side by side
            left = (total_seconds(list(waiting.values()), rows) or 0.0) / at_once
            yield Done(cell, row, total - len(waiting) - len(failures), total, left)
    if failures:
        raise FailedCellsError(failures)


Outcome = Result | Failure
Engine = Callable[[Sequence[Cell]], Iterable[Outcome]]


def one_by_one(wanted: Sequence[Cell], workers: int = 0) -> Iterator[Outcome]:
    """All cells in this process."""
    for cell in wanted:
        yield attempt(cell, workers)


def attempt(cell: Cell, workers: int = 0) -> Outcome:
    """Of a cell that fails, why: the others of a long night must not wait for it."""
    try:
        return run_cell(cell, workers)
    except NaviaError as error:
        return Failure(cell, str(error))
    except Exception:
        return Failure(cell, traceback.format_exc())


def estimate(spec: Spec, store: Store) -> tuple[list[Cell], float | None]:
    """Missing cells, and the seconds they will take judged by the rows that are there; None: nothing to judge by."""
    wanted = missing(spec, store)
    return wanted, total_seconds(wanted, store.rows())
