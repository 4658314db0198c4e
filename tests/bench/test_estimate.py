"""How long cells take, by rows whose seconds are known."""

from pathlib import Path
from typing import Any

import pytest

from navia.bench.cell import Cell
from navia.bench.grid import Estimator, cells, run_grid
from navia.bench.row import Fingerprint, Row
from navia.bench.spec import parse_spec
from navia.bench.store import Store

SPEC = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [contrast, fog], images: 100}]
runs: [{method: [none, foa, tent, cotta, sar]}, {method: tent, reduce: tome:8}]
"""


@pytest.fixture(scope="module")
def grid() -> list[Cell]:
    return cells(parse_spec(SPEC, "a"))


def row(cell: Cell, seconds: float, images: int = 100, **others: Any) -> Row:
    """Only what an estimate reads."""
    values = {"model": cell.model, "method": cell.method, "reduce": cell.reduce, "domains": ("fog",), **others}
    found = Fingerprint.model_construct(images=images)
    return Counted.model_construct(key=cell.key, wall_seconds=seconds, fingerprint=found, **values)


class Counted(Row):
    """A row that counts how often its time is read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "wall_seconds":
            reads.append(1)
        return super().__getattribute__(name)


reads: list[int] = []


def seconds(wanted: list[Cell], rows: list[Row]) -> float | None:
    return Estimator(rows).seconds(wanted)


def of(grid: list[Cell], method: str, reduce: str = "none") -> Cell:
    return next(cell for cell in grid if (cell.method, cell.reduce) == (method, reduce))


def test_a_stream_over_many_domains_is_longer_than_one_domain() -> None:
    whole = cells(parse_spec(SPEC.replace("images: 100", "images: 100, stream: continual"), "a"))
    assert of(whole, "tent").work() == 2 * 2 * 100


def test_rows_of_the_same_kind_tell_most(grid: list[Cell]) -> None:
    tent, merged, sar = of(grid, "tent"), of(grid, "tent", "tome:8"), of(grid, "sar")
    rows = [row(tent, 10), row(merged, 6), row(of(grid, "none"), 1, model="another")]
    assert seconds([tent], rows) == pytest.approx(10)
    assert seconds([merged], rows) == pytest.approx(6)
    assert seconds([sar], rows) == pytest.approx(16)  # twice the effort of the mean of both
    assert seconds([sar], rows[2:]) == pytest.approx(4)  # another model's is better than nothing
    assert seconds([tent, merged], rows) == pytest.approx(16)


def test_images_count_and_unknown_numbers_are_those_of_the_rows(grid: list[Cell]) -> None:
    tent = of(grid, "tent")
    assert seconds([tent], [row(tent, 10, images=50)]) == pytest.approx(20)
    unlimited = of(cells(parse_spec(SPEC.replace(", images: 100", ""), "a")), "tent")
    assert seconds([unlimited], [row(tent, 10, images=50)]) == pytest.approx(10)


def test_without_rows_nothing_is_claimed(grid: list[Cell]) -> None:
    assert seconds(grid, []) is None
    assert seconds(grid, [row(grid[0], 10, method="of a package that is gone")]) is None
    assert seconds([], []) == 0


@pytest.mark.parametrize("run", ["at the start", "after each cell"])
def test_every_row_is_read_once_however_many_cells_there_are(run: str, tmp_path: Path, monkeypatch: Any) -> None:
    per_row = []
    for seeds in (4, 16):
        spec = parse_spec(SPEC, "a").scaled(seeds=list(range(seeds)))
        asked = cells(spec)
        rows = [row(cell, 1.0) for cell in asked]
        reads.clear()
        if run == "at the start":
            assert seconds(asked, rows) == pytest.approx(len(asked))
        else:
            monkeypatch.setattr(Store, "add", lambda *_: None)
            done = run_grid(spec, Store(tmp_path / str(seeds)), lambda wanted, rows=rows: ((r, {}) for r in rows))
            assert len(list(done)) == len(asked)
        per_row.append(len(reads) / len(rows))
    assert per_row[0] == per_row[1]
