"""Cells on a Ray cluster: each cell is a task; a lost worker's cell is tried again, a finished one is never repeated."""

from collections.abc import Iterator, Sequence
from typing import Any

from navia.bench.cell import Cell, run_cell
from navia.bench.grid import Engine, Result
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

    def engine(wanted: Sequence[Cell]) -> Iterator[Result]:
        started = not ray.is_initialized()
        if started:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES)(_in_worker)
        pending: list[Any] = [task.remote(cell, cpus, workers) for cell in longest_first(wanted)]
        try:
            while pending:
                ready, pending = ray.wait(pending, num_returns=1)
                yield ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, NaviaError):
                raise error.cause from None
            raise
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            if started:
                ray.shutdown()

    return engine


def _in_worker(cell: Cell, cpus: float, workers: int) -> Result:
    import torch

    torch.set_num_threads(max(1, int(cpus)))
    return run_cell(cell, workers)
