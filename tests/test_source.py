"""Source images are drawn by one rule, as many everywhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import navia
from navia.bench import cell as cell_module
from navia.bench.grid import cells
from navia.bench.spec import SourceSpec, parse_spec
from navia.data import SOURCE_IMAGES, sample
from navia.data.sources import Domain, open_source
from tests.test_cli import invoke

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than are drawn, side by side; by name, all dark ones come first."""
    folder = tmp_path_factory.mktemp("clean")
    images = sample.unseen_images().images[:80]
    for place, number in enumerate(images.reshape(80, -1).mean(axis=1).argsort()):
        Image.fromarray(images[number]).save(folder / f"{place:03}.png")
    return folder


@pytest.fixture(scope="module")
def expected(clean: Path) -> torch.Tensor:
    """Means of the features of the images that the rule draws."""
    vit, source = navia.load("embedded"), open_source(clean)
    assert len(source.images) == SOURCE_IMAGES == SourceSpec().images
    images = source.tensors(range(SOURCE_IMAGES), vit.preprocessing)
    mean = navia.SourceStatistics.measure(vit, images).mean
    first = Domain("first", open_source(clean, None).images.images)  # type: ignore[attr-defined]
    by_name = navia.SourceStatistics.measure(vit, first.tensors(range(SOURCE_IMAGES), vit.preprocessing)).mean
    assert (mean - by_name).abs().max() > 0.01
    return mean


class CaughtError(Exception):
    pass


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is measured of a source; the run is then over."""
    found: list[torch.Tensor] = []
    measure = navia.SourceStatistics.measure

    def catch(*given: Any, **named: Any) -> None:
        found.append(measure(*given, **named).mean)
        raise CaughtError

    monkeypatch.setattr(navia.SourceStatistics, "measure", catch)
    return found


def start(what: str, clean: Path, folder: Path) -> None:
    if what == "python":
        navia.SourceStatistics.measure(navia.load("embedded"), clean)
        return
    if what == "bench":
        text = f"models: {{name: embedded}}\ndata: {{path: embedded, images: 8}}\nsource: {{path: {clean}}}\n"
        cell_module.run_cell(cells(parse_spec(text + "runs: {method: align}\n", "a"))[0])
        return
    delta = folder / "delta.safetensors"
    navia.adapt(navia.load("embedded"), "tent").save(delta)
    commands = {
        "run": ["run", str(clean), "-m", "embedded", "--method", "align", "--out", str(folder / "p.csv")],
        "serve": ["serve", "-m", "embedded", "--method", "align", "--port", "0"],
        "explain": ["explain", "embedded", "-r", "none"],
        "export": ["export", "embedded", "--delta", str(delta), "--out", str(folder / "m.pt2")],
    }
    invoke(*commands[what], "--source", str(clean), catch=False)


@pytest.mark.parametrize("what", ["python", "run", "explain", "export", "serve", "bench"])
def test_everything_draws_the_same_images(
    what: str, clean: Path, expected: torch.Tensor, measured: list[torch.Tensor], tmp_path: Path
) -> None:
    with pytest.raises(CaughtError):
        start(what, clean, tmp_path)
    torch.testing.assert_close(measured[0], expected)


def test_stats_draws_them_too_and_more_when_asked(clean: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    out = tmp_path / "s.safetensors"
    for more, count in (((), SOURCE_IMAGES), (("--limit", "70"), 70), (("--limit", "2000"), 80)):
        result = invoke("stats", str(clean), "-o", str(out), "-m", "embedded", "--json", *more)
        assert json.loads(result.stdout)["count"] == count
        if not more:
            torch.testing.assert_close(load_file(out)["mean"], expected)
