"""One cell: its name, and what its row says of its method's cost."""

import pytest

from navia.bench.cell import Cell, run_cell
from navia.bench.grid import cells
from navia.bench.spec import parse_spec
from navia.errors import SpecError
from navia.models.load import load
from navia.report.lines import Setting

SPEC = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, severity: 1, images: 16}
source: {images: 16}
runs:
  - {method: navia, reduce: tome:8}
  - {method: navia, reduce: tome:8, options: {budget: 2, token: new}}
batch: 16
"""


def test_a_row_counts_its_own_options() -> None:
    """Four biases fewer of 12 blocks, and one token more on the way of every image."""
    usual, ablated = (run_cell(cell)[0] for cell in cells(parse_spec(SPEC, "a")))
    assert (usual.trainable or 0) - (ablated.trainable or 0) == 4 * load("embedded").embed_dim
    assert ablated.gmacs > usual.gmacs


def test_a_row_says_how_often_it_adapted_and_older_keys_stay() -> None:
    text = SPEC.replace("images: 16}\nsource", "images: 64}\nsource").replace(
        "options: {budget: 2, token: new}", "adapt_every: 2"
    )
    usual, sparse = cells(parse_spec(text, "a"))
    assert sparse.setting == "contrast navia+tome:8 (adapt_every=2) seed 0"
    assert usual.key == Cell(**{name: value for name, value in usual.model_dump().items() if name != "adapt_every"}).key
    assert usual.key != sparse.key
    assert [run_cell(cell)[0].update_share for cell in (usual, sparse)] == [1.0, 0.5]


def test_a_cell_computes_in_its_precision() -> None:
    text = SPEC.replace("options: {budget: 2, token: new}", "precision: int8")
    exact, low = cells(parse_spec(text, "a"))
    assert low.setting == "contrast navia+tome:8 (int8) seed 0"
    assert exact.key != low.key
    rows = [run_cell(cell)[0] for cell in (exact, low)]
    assert rows[0].nll != rows[1].nll
    assert rows[0].fingerprint.weights == rows[1].fingerprint.weights
    assert Setting.from_row(rows[1].model_dump()).text == "navia + tome:8 (int8)"
    with pytest.raises(SpecError, match="precision"):
        parse_spec(text.replace("int8", "int4"), "a")


def test_the_names_of_cells_tell_them_apart() -> None:
    runs = """
  - {method: tent, realtime: true}
  - {method: tent, guard: false}
  - {method: tent, adapt_for: [1, 2]}
seeds: [0, 1]
"""
    found = [cell.setting for cell in cells(parse_spec(SPEC.replace("batch: 16\n", "") + runs.lstrip("\n"), "a"))]
    assert len(set(found)) == len(found) == 12
    assert found[:6] == [
        "contrast navia+tome:8 seed 0",
        "contrast navia+tome:8 (budget=2, token=new) seed 0",
        "contrast tent+none (in real time) seed 0",
        "contrast tent+none (without guard) seed 0",
        "contrast tent+none (1 batches) seed 0",
        "contrast tent+none (2 batches) seed 0",
    ]
