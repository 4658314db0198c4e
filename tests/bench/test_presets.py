"""Every preset of the paper end to end on the embedded images and a tiny model: cells, rows, report."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from navia.bench.grid import cells, run_grid
from navia.bench.presets import load_spec, presets
from navia.bench.spec import Spec, parse_spec
from navia.bench.store import Store
from navia.data import sample
from tests.test_cli import invoke

pytestmark = pytest.mark.slow


# One of each kind of table and figure; the others have rows like those of Table 1.
REPORTED = ("paper-table1", "paper-tradeoff", "paper-convergence", "paper-tsne", "realtime")


def small(name: str, model: str) -> Spec:
    """One corruption and two batches of 8; presets that score a last third adapt to 1 and 2 of three."""
    images = 24 if name in ("paper-convergence", "paper-tsne") else 16
    spec = load_spec(name).scaled(model=model, data="embedded", corruptions=["contrast"], severity=1, images=images, batch=8)
    runs = spec.runs
    if name == "realtime":  # its other runs are those of Table 1
        runs = tuple(run for run in runs if run.realtime)
    if name == "paper-tradeoff":
        runs = tuple(run.model_copy(update={"reduce": ("tome:1",)}) for run in runs)
    return spec.model_copy(update={"runs": runs})


@pytest.mark.parametrize("name", [name for name in presets() if name != "paper-table2"])  # the rows of Table 1
def test_preset(name: str, tiny_model: str, tmp_path: Path) -> None:
    spec, store = small(name, tiny_model), Store(tmp_path)
    rows = [done.row for done in run_grid(spec, store)]
    assert len(rows) == len(cells(spec)) == len(store.rows())
    assert all(0 <= row.top1 <= 1 and row.gmacs > 0 for row in rows)
    if name not in REPORTED:
        return
    result = invoke("report", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report" / "index.html").read_text()
    for row in rows:
        assert row.method in page or row.label in page


def test_the_preset_of_latency_has_the_dense_step_of_every_reduced_one() -> None:
    spec = load_spec("paper-latency").scaled(model="embedded", data="embedded")
    found = cells(spec)
    runs = {(cell.method, cell.reduce) for cell in found}
    assert {method for method, _ in runs} == {"none", "tent", "align", "navia"}
    assert {(method, "none") for method, _ in runs} <= runs
    assert {reduce for method, reduce in runs if method == "navia"} == {"none", "tome:4", "tome:8"}
    assert {(cell.batch, cell.images, cell.guarded, cell.domain) for cell in found} == {(64, 640, False, "gaussian_noise")}


def test_the_curve_of_convergence_keeps_its_points_on_a_shorter_stream(caplog: pytest.LogCaptureFixture) -> None:
    def points(**sizes: Any) -> list[int | None]:
        spec = load_spec("paper-convergence").scaled(model="embedded", data="embedded", corruptions=["contrast"], **sizes)
        return [cell.adapt_for for cell in cells(spec) if cell.method == "navia"]

    assert points(images=480, batch=8) == [
        4,
        8,
        12,
        16,
        20,
        24,
        28,
        32,
        36,
        40,
    ]  # of 60
    assert "adapt_for is 4, 8, 12, 16, 20, 24, 28, 32, 36, 40 instead of 25, 50" in caplog.text
    assert len(caplog.messages) == 1
    assert points(images=24, batch=8) == [1, 2]
    assert points(images=375, batch=1) == [25, 50, 75, 100, 125, 150, 175, 200, 225, 250]
    assert len(caplog.messages) == 2


def test_the_length_of_the_stream_is_that_of_the_data(tmp_path: Path) -> None:
    """Without the images that are left out as the source, and whatever more was asked for."""
    for number in range(20):
        path = tmp_path / sample.CLASSES[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(sample.unseen_images().images[number]).save(path)
    text = "models: {name: embedded}\ndata: {path: PATH%s}\nsource: {images: 5}\nruns: {method: tent, adapt_for: [10, 20]}\n"

    def points(more: str) -> list[int | None]:
        spec = parse_spec(text.replace("PATH", str(tmp_path)) % more, "a").scaled(images=100, batch=1)
        return [cell.adapt_for for cell in cells(spec)]

    assert points("") == [5, 10]
    assert points(", corruptions: [fog]") == [5, 10]
    for kind in ("continual", "mixed"):
        assert points(f", corruptions: [fog, snow], stream: {kind}") == [10, 20]
