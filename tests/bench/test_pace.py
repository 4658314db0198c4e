"""How long cells take, by rows whose seconds are known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from navia.bench.cell import Cell
from navia.bench.estimate import expected_seconds, longest_first, total_seconds, work
from navia.bench.grid import cells, run_grid
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


def row(cell: Cell, seconds: float, images: int = 100, **others: Any) -> Mapping[str, Any]:
    own = {"model": cell.model, "method": cell.method, "reduce": cell.reduce, "domains": ["fog"], "wall_seconds": seconds}
    return {**own, "fingerprint": {"images": images}, **others}


def of(grid: list[Cell], method: str, reduce: str = "none") -> Cell:
    return next(cell for cell in grid if (cell.method, cell.reduce) == (method, reduce))


def test_the_longest_cells_begin_and_equals_keep_their_order(grid: list[Cell]) -> None:
    methods = [cell.method for cell in longest_first(grid)]
    assert methods == ["foa"] * 2 + ["cotta"] * 2 + ["sar"] * 2 + ["tent"] * 4 + ["none"] * 2
    assert [cell.domain for cell in longest_first(grid)][:4] == ["contrast", "fog"] * 2


def test_a_stream_over_many_domains_is_longer_than_one_domain() -> None:
    whole = cells(parse_spec(SPEC.replace("images: 100", "images: 100, stream: continual"), "a"))
    assert work(of(whole, "tent")) == 2 * 2 * 100


def test_rows_of_the_same_kind_tell_most(grid: list[Cell]) -> None:
    tent, merged, sar = of(grid, "tent"), of(grid, "tent", "tome:8"), of(grid, "sar")
    rows = [row(tent, 10), row(merged, 6), row(of(grid, "none"), 1, model="another")]
    assert expected_seconds(tent, rows) == pytest.approx(10)
    assert expected_seconds(merged, rows) == pytest.approx(6)
    assert expected_seconds(sar, rows) == pytest.approx(16)  # twice the effort of the mean of both
    assert expected_seconds(sar, rows[2:]) == pytest.approx(4)  # another model's is better than nothing
    assert total_seconds([tent, merged], rows) == pytest.approx(16)


def test_images_count_and_unknown_numbers_are_those_of_the_rows(grid: list[Cell]) -> None:
    tent = of(grid, "tent")
    assert expected_seconds(tent, [row(tent, 10, images=50)]) == pytest.approx(20)
    unlimited = of(cells(parse_spec(SPEC.replace(", images: 100", ""), "a")), "tent")
    assert expected_seconds(unlimited, [row(tent, 10, images=50)]) == pytest.approx(10)


def test_without_rows_nothing_is_claimed(grid: list[Cell]) -> None:
    assert total_seconds(grid, []) is None
    assert total_seconds(grid, [row(grid[0], 10, method="of a package that is gone")]) is None
    assert total_seconds([], []) == 0


class Counted(dict[str, Any]):
    """A row that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getitem__(name)


@pytest.mark.parametrize("run", ["at the start", "after each cell"])
def test_the_estimate_looks_at_every_row_once(run: str, tmp_path: Path) -> None:
    """However many cells there are: a fixed number of looks per row."""
    per_row = []
    for seeds in (4, 16):
        spec = parse_spec(SPEC, "a").scaled(seeds=list(range(seeds)))
        asked = cells(spec)
        rows = [Counted(row(cell, 1.0), key=cell.key, options={}) for cell in asked]
        Counted.looks = 0
        if run == "at the start":
            assert total_seconds(asked, rows) == pytest.approx(len(asked))
        else:
            store = Store(tmp_path / str(seeds))
            assert len(list(run_grid(spec, store, lambda wanted, rows=rows: ((r, {}) for r in rows)))) == len(asked)
        per_row.append(Counted.looks / len(rows))
    assert per_row[0] == per_row[1]
