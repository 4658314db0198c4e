"""Cells on a Ray cluster: each cell is a task; a lost worker's cell is tried again, a finished one is never repeated."""

from collections.abc import Iterator, Sequence
from typing import Any

from navia.bench.cell import Cell
from navia.bench.grid import Engine, Failure, Outcome, attempt
from navia.bench.pace import longest_first
from navia.errors import NaviaError

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
        pending: dict[Any, Cell] = {task.remote(cell, cpus, workers): cell for cell in longest_first(wanted)}
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


def _in_worker(cell: Cell, cpus: float, workers: int) -> Outcome:
    import torch

    from navia.vit.device import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    return attempt(cell, workers)
