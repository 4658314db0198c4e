"""Every preset of the paper end to end on the embedded images and a tiny model: cells, rows, report."""

from pathlib import Path

import pytest

from navia.bench.grid import cells, run_grid
from navia.bench.presets import named, presets
from navia.bench.store import Store
from navia.spec import Spec
from tests.test_cli import invoke

pytestmark = pytest.mark.slow


# One of each kind of table and figure; the others have rows like those of Table 1.
REPORTED = ("paper-table1", "paper-tradeoff", "paper-convergence", "paper-tsne", "realtime")


def small(name: str, model: str) -> Spec:
    """One corruption and two batches of 8; presets that score a last third adapt to 1 and 2 of three instead of hundreds."""
    images = 24 if name in ("paper-convergence", "paper-tsne") else 16
    spec = named(name).scaled(model=model, data="embedded", corruptions=["contrast"], severity=1, images=images, batch=8)
    runs = [run.model_copy(update={"adapt_for": (1, 2)}) if run.adapt_for != (None,) else run for run in spec.runs]
    if name == "realtime":  # its other runs are those of Table 1
        runs = [run for run in runs if run.realtime]
    if name == "paper-tradeoff":
        runs = [run.model_copy(update={"reduce": ("tome:1",)}) for run in runs]
    return spec.model_copy(update={"runs": tuple(runs)})


@pytest.mark.parametrize("name", [name for name in presets() if name != "paper-table2"])  # the rows of Table 1
def test_preset(name: str, tiny_model: str, tmp_path: Path) -> None:
    spec, store = small(name, tiny_model), Store(tmp_path)
    rows = [done.row for done in run_grid(spec, store)]
    assert len(rows) == len(cells(spec)) == len(store.rows())
    assert all(0 <= row["top1"] <= 1 and row["gmacs"] > 0 for row in rows)
    if name not in REPORTED:
        return
    result = invoke("report", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report" / "index.html").read_text()
    for row in rows:
        assert row["method"] in page or row["label"] in page
