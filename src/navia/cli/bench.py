"""`navia bench`: a grid of runs that can be stopped and started at will."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from navia.cli import options
from navia.cli.options import COMPUTE, IMAGES, OUTPUT, choice, option
from navia.cli.terminal import errors, folder_to_write, print_json, print_line, print_wide
from navia.errors import SpecError

if TYPE_CHECKING:
    from navia.bench.grid import Done
    from navia.bench.row import Row

_DATA = (
    "Folder of images, embedded, or datasets:NAME, instead of the spec's; NAME=PATH for one of its data sets, repeatable."
)
PRESETS: Any = {"autocompletion": lambda incomplete: options.suggest(*options.preset_names())(incomplete)}


def bench(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="YAML file or preset; see `navia bench presets`.", **PRESETS)],
    model: options.ModelOrNone = None,
    checkpoint: options.Checkpoint = None,
    data: Annotated[list[str] | None, option("--data", IMAGES, _DATA, metavar="[NAME=]PATH")] = None,
    source: options.Source = None,
    plugins: options.Plugins = None,
    corruption: options.Corruptions = None,
    severity: options.SeverityOrNone = None,
    limit: options.LimitOrNone = None,
    batch_size: options.BatchSizeOrNone = None,
    seed: Annotated[list[int] | None, option("--seed", IMAGES, "Seed of the random numbers; repeatable.")] = None,
    crop_only: options.CropOnly = False,
    cache: Annotated[
        Path | None, option("--cache", IMAGES, "Folder that keeps generated corruptions.", metavar="DIR")
    ] = None,
    cache_limit: Annotated[float, option("--cache-limit", IMAGES, "Largest size of --cache, in GB.", min=0.001)] = 20,
    workers: options.Workers = 0,
    on: Annotated[str, option("--on", COMPUTE, "local or ray.", **choice("executor", lambda: ("local", "ray")))] = "local",
    ray_address: Annotated[str | None, option("--ray-address", COMPUTE, "Address of a Ray cluster.")] = None,
    cpus: Annotated[float, option("--cpus", COMPUTE, "Cores of a cell, with ray.", min=0.1)] = 1,
    gpus: Annotated[float, option("--gpus", COMPUTE, "GPUs of a cell, with ray; may be a fraction.", min=0)] = 0,
    tf32: options.TF32 = False,
    deterministic: options.Deterministic = False,
    out: options.Out = Path("bench"),
    dry_run: Annotated[bool, option("--dry-run", OUTPUT, "Only list the cells and the estimated time.")] = False,
    as_json: options.Json = False,
) -> None:
    """Run every model x data x method x reducer x seed of a spec and write one row for each.

    Options replace the values of the spec. Stop it at any time: the same command runs only what is missing. A cell that
    fails does not stop the others; then the exit code is 1, and the next run tries it again.

        navia bench paper-table1 -m timm:deit_tiny_patch16_224 --data imagenet/val
    """
    from navia.bench.executors.ray import ray_executor
    from navia.bench.executors.serial import run_serial
    from navia.bench.grid import FailedCellsError, estimate, is_available, run_grid
    from navia.bench.presets import load_spec, presets
    from navia.bench.store import Store
    from navia.data.cache import PixelCache
    from navia.io import expand_user
    from navia.models.device import keep_freed_memory

    if spec == "presets":
        table = Table("preset", "what it is")
        for name, text in presets().items():
            table.add_row(name, text)
        print_json(presets()) if as_json else print_wide(table)
        return
    if on == "ray" and (tf32 or deterministic):
        raise SpecError("--tf32 and --deterministic are settings of this process: use --on local")
    asked = load_spec(spec).scaled(
        model=model, checkpoint=checkpoint, data=_data_paths(data), source=source, corruptions=corruption,
        severity=severity, images=limit, seeds=seed, batch=batch_size, crop_only=crop_only,
    )  # fmt: skip
    store = Store(folder_to_write(out))
    if dry_run:
        wanted, seconds = estimate(asked, store)
        titles = [f"{cell.title}{'' if is_available(cell) else f' (no {cell.data!r} here)'}" for cell in wanted]
        known = "nothing finished yet to judge by" if seconds is None else f"about {_duration(seconds)} by the rows so far"
        if as_json:
            print_json({"cells": titles, "seconds": seconds})
        else:
            gone = sum(not is_available(cell) for cell in wanted)
            without = f", {gone} more of data sets that are not here" if gone else ""
            print_line("\n".join([*titles, f"{len(titles) - gone} cells to run{without}, {known}"]))
        return
    pixels = None
    if cache is not None:
        pixels = PixelCache(folder_to_write(expand_user(cache).absolute()), int(cache_limit * 1e9))
    keep_freed_memory()
    rows: list[Row] = []
    failed = None
    try:
        serial = functools.partial(run_serial, workers=workers, cache=pixels)
        executor = serial if on == "local" else ray_executor(ray_address, cpus, gpus, workers, pixels)
        name = spec if spec in presets() else Path(spec).stem
        grid = run_grid(asked, store, executor, lambda f: print_line(f"failed: {f.cell.title}: {f.why}", errors), name)
        rows.extend(_with_progress(grid))
    except FailedCellsError as error:
        failed = error
    except KeyboardInterrupt:
        print_line(f"navia: interrupted; {len(rows)} new rows in {out}, the same command goes on", errors)
        raise
    if as_json:
        print_json([row.as_json() for row in rows])
    elif rows or failed is None:
        print_line(f"{len(rows)} cells run, rows in {out / 'rows.jsonl'}; read them with: navia report {out}")
    if failed is not None:
        raise failed


def _data_paths(given: list[str] | None) -> str | dict[str, str] | None:
    """One path, or paths by the names of data sets."""
    if not given:
        return None
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    pairs = [text.partition("=") for text in given]
    if wrong := [name for name, _, path in pairs if not path]:
        raise SpecError(f"--data {wrong[0]!r}: of several data sets each needs its name, NAME=PATH")
    return {name: path for name, _, path in pairs}


def _with_progress(grid: "Iterator[Done]") -> "Iterator[Row]":
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        task = progress.add_task("cells", total=None, left="")
        for done in grid:
            row, left = done.row, f"{_duration(done.left)} left"
            progress.update(task, completed=done.done, total=done.total, left=left)
            note = "" if row.collapsed is None else f" (not finite from batch {row.collapsed} on)"
            accuracy = f"{100 * (row.top1 or 0):.1f} %{note}"
            print_line(f"{done.done}/{done.total} {done.cell.setting}: {accuracy}, {left}", progress.console)
            yield row


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
