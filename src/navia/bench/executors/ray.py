"""Cells on a Ray cluster: each cell is a task; a lost worker's cell is tried again, a finished one is never repeated."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from navia.bench.cell import Cell
from navia.bench.executors.serial import CellResult, Executor, Failure, attempt
from navia.data.cache import PixelCache
from navia.errors import NaviaError
from navia.methods.base import METHODS
from navia.reduction import REDUCERS
from navia.registry import Plugin, Registry, load_plugin, loaded_plugins

TRIES = 3


def ray_executor(
    address: str | None = None, cpus: float = 1, gpus: float = 0, workers: int = 0, cache: PixelCache | None = None
) -> Executor:
    """Make an executor that runs cells on Ray. address: of a running cluster; None starts one on this machine. cpus, gpus:
    of one cell (fractions share). workers: processes that decode the images of a cell. cache: of corrupted images."""
    try:
        import ray
    except ImportError as error:
        raise NaviaError("--on ray needs Ray: pip install 'navia[ray]'") from error

    def run(wanted: Sequence[Cell]) -> Iterator[CellResult]:
        started = not ray.is_initialized()
        if started:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES)(_in_worker)
        own = ray.put((loaded_plugins(), _own_classes(wanted, ray.cloudpickle)))
        # the longest cells first: begun last, one would keep a worker busy after all others have finished
        order = sorted(wanted, key=Cell.work, reverse=True)
        pending: dict[Any, Cell] = {task.remote(cell, cpus, workers, own, cache): cell for cell in order}
        try:
            while pending:
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                cell = pending.pop(ready)
                try:
                    outcome = ray.get(ready)
                except ray.exceptions.RayError as error:  # its worker died, for instance of too little memory
                    outcome = Failure(cell, f"given up after {TRIES} retries: {' '.join(str(error).split())}")
                yield outcome
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    return run


Classes = dict[tuple[str, str], bytes]  # pickled, by the kind and name of their registry


def _registered(cell: Cell) -> list[tuple[Registry[Any], str]]:
    """The method and the reducer of a cell: their registries, and their names there."""
    return [(METHODS, cell.method), (REDUCERS, cell.reduce.partition(":")[0])]


def _own_classes(wanted: Sequence[Cell], pickler: Any) -> Classes:
    """Third-party methods and reducers of the cells that are in no plugin, for instance in a notebook."""
    plugins = {plugin.module for plugin in loaded_plugins()}
    entries = {entry for cell in wanted for entry in _registered(cell)}
    found = {(registry.kind, name): registry.third_party().get(name) for registry, name in entries}
    return {key: pickler.dumps(kind) for key, kind in found.items() if kind and kind.__module__ not in plugins}


def _in_worker(
    cell: Cell, cpus: float, workers: int, own: tuple[tuple[Plugin, ...], Classes], cache: PixelCache | None
) -> CellResult:
    import torch

    from navia.models.device import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    plugins, classes = own
    try:
        for plugin in plugins:
            load_plugin(plugin)
        for registry, name in _registered(cell):
            if (registry.kind, name) in classes and name not in registry.names():
                _register(registry, name, classes[registry.kind, name])
    except NaviaError as error:
        return Failure(cell, str(error))
    return attempt(cell, workers, cache=cache)


def _register(registry: Registry[Any], name: str, pickled: bytes) -> None:
    try:
        kind = pickle.loads(pickled)
    except Exception as error:  # its module is not here
        raise NaviaError(
            f"cannot load the {registry.kind} {name!r} on a worker ({error}): put it into a file, and name that with "
            "--import or in the spec's plugins"
        ) from error
    if name not in registry.names():  # unpickling may have registered it
        registry.register(name)(kind)
