"""Cells one after the other in this process, and what every executor yields."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from navia.bench.cell import Cell, Trace, run_cell
from navia.bench.row import Row
from navia.data.cache import PixelCache
from navia.errors import NaviaError
from navia.models.base import ViT


@dataclass(frozen=True)
class Failure:
    """A cell that gave no row. why: what it refused, or the traceback of an unexpected error."""

    cell: Cell
    why: str


CellResult = tuple[Row, Trace] | Failure
Executor = Callable[[Sequence[Cell]], Iterable[CellResult]]


def run_serial(
    wanted: Sequence[Cell], workers: int = 0, vit: ViT | None = None, cache: PixelCache | None = None
) -> Iterator[CellResult]:
    """Run all cells in this process. workers: processes that decode images. vit: their model, if it is loaded already.
    cache: of corrupted images."""
    for cell in wanted:
        yield attempt(cell, workers, vit, cache)


def attempt(cell: Cell, workers: int = 0, vit: ViT | None = None, cache: PixelCache | None = None) -> CellResult:
    """Run a cell; an error becomes a `Failure`, so that the other cells still run."""
    try:
        return run_cell(cell, workers, vit, cache)
    except NaviaError as error:
        return Failure(cell, str(error))
    except Exception:
        return Failure(cell, traceback.format_exc())
