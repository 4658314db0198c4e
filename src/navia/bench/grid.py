"""Many cells: which ones a spec asks for, which are missing, and running those."""

import itertools
import json
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from navia.bench.cell import Cell, run_cell
from navia.bench.estimate import Pace, Waiting, total_seconds
from navia.bench.inputs import Data, Inputs, checkpoint_digest, model_digest, names_and_sizes, times
from navia.bench.run import held_out_from
from navia.bench.spec import DataSpec, RunSpec, Spec
from navia.bench.store import Store
from navia.bench.tsne import Tsne
from navia.errors import NaviaError
from navia.evaluation.tsne import check_installed
from navia.methods.base import METHODS, changed_options
from navia.models.base import ViT
from navia.plugins import load_plugin, source_digest
from navia.reduction import parse

log = logging.getLogger("navia.bench")

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
    """Every combination, domain by domain, so that rows that are compared come one after the other. Looks at the weights and
    lists the images that the spec names, for their digests."""
    for plugin in spec.plugins:
        load_plugin(plugin)
    if any(run.tsne for run in spec.runs):
        check_installed()
    inputs = Inputs()
    of_source = inputs.source(spec.source.path)
    found: dict[str, Cell] = {}
    notes: dict[str, None] = {}
    for model in spec.models:
        checkpoint = None if model.checkpoint is None else str(model.checkpoint)
        of_model, of_checkpoint = model_digest(model.name), checkpoint_digest(checkpoint)
        for entry in spec.data:
            data, made = inputs.data(entry.path, entry.corruptions, entry.parts), bool(entry.corruptions)
            for seed, (domain, domains) in itertools.product(spec.seeds, _streams(entry, data)):
                stamps = inputs.stamps(data, domains, made)
                batches = _batches(spec, entry, data, domains, inputs)
                for run, method, reduce, adapt_for in _settings(spec, batches, notes):
                    if seed != spec.seeds[0] and _order_free(method, entry, adapt_for):
                        continue
                    cell = Cell(
                        model=model.name,
                        checkpoint=checkpoint,
                        crop_only=model.crop_only,
                        data=entry.path,
                        domain=domain,
                        domains=domains,
                        corrupted=made,
                        severity=entry.severity if made else 0,
                        stream=entry.stream,
                        images=entry.images,
                        label_shift=entry.label_shift,
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
                        model_digest=of_model,
                        checkpoint_digest=of_checkpoint,
                        data_digest=names_and_sizes(stamps),
                        source_digest=names_and_sizes(of_source),
                        times_digest=times([*stamps, *of_source]),
                        plugin_digest=source_digest(METHODS.get(method), type(parse(reduce))),
                    )
                    found.setdefault(cell.key, cell)
    for note in notes:
        log.warning("%s", note)
    return list(found.values())


def _streams(entry: DataSpec, data: Data) -> list[tuple[str, tuple[str, ...]]]:
    """The domain of each cell, and all that its stream goes over."""
    return [(name, (name,)) for name in data.names] if entry.stream == "reset" else [("", data.names)]


def _settings(spec: Spec, batches: int | None, notes: dict[str, None]) -> Iterator[tuple[RunSpec, str, str, int | None]]:
    """batches: of the stream, where that is known. notes: takes what was changed."""
    for run in spec.runs:
        numbers = run.adapt_for
        if run.shorten and batches is not None:
            numbers = _shortened(numbers, held_out_from(batches))
            if numbers != run.adapt_for:
                told = [", ".join(str(number) for number in each if number is not None) for each in (numbers, run.adapt_for)]
                notes[f"adapt_for is {told[0]} instead of {told[1]}: the stream has only {batches} batches"] = None
        for method, reduce in _pairs(run):
            for adapt_for in numbers:
                yield run, method, reduce, adapt_for


def _batches(spec: Spec, entry: DataSpec, data: Data, domains: Sequence[str], inputs: Inputs) -> int | None:
    """Of the stream over these domains; None: not known."""
    counts = inputs.counts(data, domains, bool(entry.corruptions))
    left_out = 0 if spec.source.path is not None or data.path == "embedded" or data.shifted else spec.source.images
    if counts is not None:
        lengths = [min(count - left_out, entry.images or count) for count in counts]
    elif entry.images is not None:
        lengths = [entry.images] * len(domains)
    else:
        return None
    if entry.stream == "mixed":
        return math.ceil(sum(lengths) / spec.batch)
    return sum(math.ceil(length / spec.batch) for length in lengths)


def _shortened(numbers: tuple[int | None, ...], most: int) -> tuple[int | None, ...]:
    """In proportion, so that the largest is `most`; as they are where it is not larger."""
    largest = max((number for number in numbers if number is not None), default=0)
    if not 0 < most < largest:
        return numbers
    shorter = (number if number is None else max(1, round(number * most / largest)) for number in numbers)
    return tuple(dict.fromkeys(shorter))


def _order_free(method: str, data: DataSpec, adapt_for: int | None) -> bool:
    """Without adaptation the order of the same images changes nothing, unless it decides which are scored: one seed is
    enough."""
    return method == "none" and data.images is None and data.stream == "reset" and adapt_for is None


def _pairs(run: RunSpec) -> Iterator[tuple[str, str]]:
    for method in run.method:
        kind = METHODS.get(method)
        kind.Options.of(method, run.options)
        for reduce in run.reduce:
            yield method, str(parse(reduce))


def missing(spec: Spec, store: Store) -> list[Cell]:
    """Cells of the spec without a row of the weights and images that are there now."""
    return _without_row(cells(spec), store.rows())


def _without_row(asked: Sequence[Cell], rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """A row that does not tell when its images were written counts: it has none, or is from before rows told it."""
    done = {row["key"]: row.get("times_digest") for row in rows}
    return [cell for cell in asked if cell.key not in done or done[cell.key] not in (None, cell.times_digest)]


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
        rows, worked, started = store.rows(), 0.0, time.monotonic()
        wanted = _without_row(asked, rows)
        total = len(asked)
        waiting, left, pace = {cell.key: cell for cell in wanted}, Waiting(wanted), Pace(rows)
        failures: list[Failure] = []
        for outcome in (engine or one_by_one)(wanted):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                left.remove(waiting.pop(outcome.cell.key))
                if tell is not None:
                    tell(outcome)
                continue
            row, trace = outcome
            store.add(row, trace)
            pace.add(row)
            cell = waiting.pop(row["key"])
            left.remove(cell)
            worked += row["wall_seconds"]
            at_once = worked / (time.monotonic() - started)  # how many cells run side by side
            yield Done(cell, row, total - len(waiting) - len(failures), total, (left.seconds(pace) or 0.0) / at_once)
    if failures:
        raise FailedCellsError(failures)


Outcome = Result | Failure
Engine = Callable[[Sequence[Cell]], Iterable[Outcome]]


def one_by_one(wanted: Sequence[Cell], workers: int = 0, vit: ViT | None = None) -> Iterator[Outcome]:
    """All cells in this process. vit: their model, where it is loaded already."""
    for cell in wanted:
        yield attempt(cell, workers, vit)


def attempt(cell: Cell, workers: int = 0, vit: ViT | None = None) -> Outcome:
    """Of a cell that fails, why: the others of a long night must not wait for it."""
    try:
        return run_cell(cell, workers, vit)
    except NaviaError as error:
        return Failure(cell, str(error))
    except Exception:
        return Failure(cell, traceback.format_exc())


def estimate(spec: Spec, store: Store) -> tuple[list[Cell], float | None]:
    """Missing cells, and the seconds they will take judged by the rows that are there; None: nothing to judge by."""
    rows = store.rows()
    wanted = _without_row(cells(spec), rows)
    return wanted, total_seconds(wanted, rows)
