"""`navia export`: a file, one line on how near it comes, and errors that say what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import navia
from navia.cli.main import app
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain
from navia.export import read_metadata
from tests.test_cli import refused

pytestmark = pytest.mark.slow


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments], env={"COLUMNS": "200"}, catch_exceptions=False)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model after one step of align under tome:8."""
    vit = navia.load("embedded")
    clean = Domain("clean", source_images()).tensors(range(32), vit.preprocessing)
    adapter = navia.adapt(vit, "align", "tome:8", navia.SourceStatistics.measure(vit, clean, "tome:8"))
    adapter(Domain("new", unseen_images()).tensors(range(16), vit.preprocessing) * 0.5)
    path = tmp_path_factory.mktemp("delta") / "delta.safetensors"
    adapter.save(path)
    return path


def test_a_delta_becomes_a_file_with_its_method_reducer_and_labels(delta: Path, tmp_path: Path, clothes: Path) -> None:
    out = tmp_path / "model.safetensors"
    done = invoke("-m", "embedded", "--delta", str(delta), "--out", str(out), "--data", str(clothes), "--classes", "9,0,7")
    assert done.exit_code == 0, done.output
    assert "over 16 images in batches of 1, 7, 8; top-1 agrees on 16 of 16" in done.stdout
    assert "method align, 1 steps, reducer tome:8" in done.stdout
    found = read_metadata(out)
    assert found.labels == ("ankle boot", "t-shirt", "sneaker")
    images = Domain("clean", source_images()).tensors(range(4), found.preprocessing)
    vit = navia.load("embedded", checkpoint=out)
    with torch.no_grad():
        assert not torch.allclose(vit(images), navia.load("embedded")(images))


def test_json_has_the_parity_and_the_metadata(tmp_path: Path) -> None:
    numbers = tmp_path / "classes.txt"
    numbers.write_text("1\n2\n")
    out = tmp_path / "model.safetensors"
    done = invoke("embedded", "-r", "evit:8", "-f", "checkpoint", "--out", str(out), "--classes", str(numbers), "--json")
    found = json.loads(done.stdout)
    assert found["out"] == str(out)
    assert found["parity"]["difference"] < 1e-5
    assert set(found["parity"]["differences"]) == {"1", "7", "8"}
    assert found["metadata"]["labels"] == ["trouser", "pullover"]
    assert found["metadata"]["preprocessing"]["size"] == [28, 28]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "model.safetensors", "--delta", "DELTA", "-r", "tome:4"], "another reduce: tome:8, not tome:4"),
        (["--out", "model.safetensors", "--delta", "nosuch"], "no delta file 'nosuch'"),
        (["--out", "model.xyz"], "which format is 'model.xyz'"),
        (["--out", "here.onnx"], "exists already"),
        (["--out", "model.onnx", "--classes", "a,b"], "--classes takes numbers"),
        (["--out", "model.onnx", "--classes", "3,99"], "classes reach from 3 to 99"),
        (["--out", "model.onnx", "--data", "nosuch"], "no folder"),
    ],
)
def test_refusals_are_one_line(
    arguments: list[str],
    message: str,
    delta: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.onnx").write_text("")
    given = [str(delta) if argument == "DELTA" else argument for argument in arguments]
    assert message in refused(["export", "-m", "embedded", *given], monkeypatch, capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["here.onnx"]
