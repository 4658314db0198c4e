"""Cells on a Ray cluster: each cell is a task; a lost worker's cell is tried again, a finished one is never repeated."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from navia.bench.cell import Cell
from navia.bench.estimate import longest_first
from navia.bench.grid import Engine, Failure, Outcome, attempt
from navia.errors import NaviaError
from navia.methods.base import METHODS
from navia.reduction import REDUCERS
from navia.registry import Plugin, Registry, load_plugin, loaded_plugins

TRIES = 3


def ray_engine(address: str | None = None, cpus: float = 1, gpus: float = 0, workers: int = 0) -> Engine:
    """address: of a running cluster; None starts one on this machine. cpus, gpus: that one cell takes (fractions share).
    workers: processes that decode a cell's images."""
    try:
        import ray
    except ImportError as error:
        raise NaviaError("--on ray needs Ray: pip install 'navia[ray]'") from error

    def engine(wanted: Sequence[Cell]) -> Iterator[Outcome]:
        started = not ray.is_initialized()
        if started:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES)(_in_worker)
        own = ray.put(_own(wanted, ray.cloudpickle))
        pending: dict[Any, Cell] = {task.remote(cell, cpus, workers, own): cell for cell in longest_first(wanted)}
        try:
            while pending:
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                cell = pending.pop(ready)
                try:
                    outcome = ray.get(ready)
                except ray.exceptions.RayError as error:  # its worker died, of too little memory for instance
                    outcome = Failure(cell, f"given up after {TRIES} retries: {' '.join(str(error).split())}")
                yield outcome
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    return engine


@dataclass(frozen=True)
class Own:
    """Methods and reducers from outside of navia that cells may need. plugins: as they were loaded here. methods, reducers:
    pickled, those that were registered in any other way, by a script or notebook for instance."""

    plugins: tuple[Plugin, ...]
    methods: dict[str, bytes]
    reducers: dict[str, bytes]


def _own(wanted: Sequence[Cell], pickle: Any) -> Own:
    plugins = loaded_plugins()
    known = {plugin.module for plugin in plugins}
    methods = _pickled(METHODS, {cell.method for cell in wanted}, known, pickle)
    reducers = _pickled(REDUCERS, {reducer_of(cell) for cell in wanted}, known, pickle)
    return Own(plugins, methods, reducers)


def _pickled(registry: Registry[Any], names: set[str], known: set[str], pickle: Any) -> dict[str, bytes]:
    """known: modules that workers load by themselves."""
    own = registry.third_party()
    return {name: pickle.dumps(own[name]) for name in names & own.keys() if own[name].__module__ not in known}


def reducer_of(cell: Cell) -> str:
    """The name that its reducer is registered under."""
    return cell.reduce.partition(":")[0]


def _in_worker(cell: Cell, cpus: float, workers: int, own: Own) -> Outcome:
    import torch

    from navia.models.device import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    try:
        _register(own, cell)
    except NaviaError as error:
        return Failure(cell, str(error))
    return attempt(cell, workers)


def _register(own: Own, cell: Cell) -> None:
    """In a worker, what the cell needs and nobody registered there yet."""
    for plugin in own.plugins:
        load_plugin(plugin)
    _unpickle(METHODS, cell.method, own.methods)
    _unpickle(REDUCERS, reducer_of(cell), own.reducers)


def _unpickle(registry: Registry[Any], name: str, pickled: dict[str, bytes]) -> None:
    if name not in pickled or name in registry.names():
        return
    try:
        kind = pickle.loads(pickled[name])
    except Exception as error:  # its module is not here
        raise NaviaError(
            f"cannot load the {registry.kind} {name!r} on a worker ({error}): put it into a file, and name that with "
            "--import or in the spec's plugins"
        ) from error
    if name not in registry.names():  # to load it may have registered it
        registry.register(name)(kind)
