"""One row: what it says of its method's cost."""

from navia.bench.cell import run_cell
from navia.bench.grid import cells
from navia.spec import parse_spec
from navia.vit.load import load

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
    assert usual["trainable"] - ablated["trainable"] == 4 * load("embedded").dim
    assert ablated["gmacs"] > usual["gmacs"]
