"""The command line: results on stdout, one line on stderr when refused, exit codes 0, 1 and 2."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import navia
from navia.cli import app, main

TINY = "timm:vit_tiny_patch16_224"


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the program prints when it exits with 1."""
    monkeypatch.setattr(sys, "argv", ["navia", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert caught.value.code == 1
    assert out == ""
    assert err.startswith("navia: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights for ViT-Ti."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    torch.manual_seed(0)
    save_file(navia.load(TINY, pretrained=False).model.state_dict(), path)
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((320, 240), Image.Resampling.BICUBIC).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout.strip() == navia.__version__


def test_no_command_shows_the_help() -> None:
    result = invoke()
    for command in ("cost", "tokens", "methods"):
        assert command in result.output


@pytest.mark.parametrize("command", ["cost", "tokens", "methods"])
def test_every_command_has_help(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_cost_as_json_has_the_librarys_numbers() -> None:
    result = invoke("cost", TINY, "-r", "none", "-r", "tome:8", "--forwards", "2", "--prompts", "3", "--json")
    assert result.exit_code == 0
    dense, reduced = json.loads(result.stdout)
    vit = navia.load(TINY, pretrained=False)
    for row, spec in ((dense, "none"), (reduced, "tome:8")):
        assert row == json.loads(json.dumps(navia.cost(vit, reduce=spec, forwards=2, prompts=3).as_dict()))
    assert reduced["tokens"][0] == 200
    assert reduced["tokens"][-1] == 104


def test_cost_as_a_table() -> None:
    result = invoke("cost", TINY)
    assert result.exit_code == 0
    vit = navia.load(TINY, pretrained=False)
    dense = navia.cost(vit).gmacs
    rows = [line for line in result.stdout.splitlines() if ":" in line or "none" in line]
    for spec in ("none", "tome:4", "tome:8", "evit:8", "tofu:8"):
        (row,) = [line for line in rows if f" {spec} " in line]
        found = navia.cost(vit, reduce=spec)
        for cell in (f"{found.gmacs:.2f}", f"{found.gmacs / dense:.1%}", f"{found.gmacs_paper:.2f}", str(found.tokens[-1])):
            assert f" {cell} " in row
    assert "5.7 M parameters" in result.stdout


def test_cost_measures_on_request() -> None:
    result = invoke("cost", TINY, "-r", "tome:16", "--measure", "--batch", "1", "--rounds", "1", "--json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["timing"]["batch"] == 1
    assert row["timing"]["ms_per_image"] > 0
    table = invoke("cost", TINY, "-r", "tome:16", "--measure", "--batch", "1", "--rounds", "1")
    assert "ms/image (batch 1)" in table.stdout
    assert "peak MiB" in table.stdout


def test_tokens_draws_a_picture_and_says_how_it_was_seen(picture: Path, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "groups.png"
    result = invoke(
        *("tokens", str(picture), "-m", TINY, "--checkpoint", str(tiny), "-r", "tome:8", "-r", "evit:8"),
        *("--out", str(out), "--scale", "1"),
    )
    assert result.exit_code == 0, result.output
    with Image.open(out) as drawing:
        assert drawing.size == (3 * 224 + 2 * 8, 224)
    told = " ".join(result.stdout.split())
    for part in ("tome:8, evit:8", "bicubic", "224x224", "mean (0.5, 0.5, 0.5)", "std (0.5, 0.5, 0.5)"):
        assert part in told


def test_tokens_as_json(picture: Path, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "groups.png"
    result = invoke("tokens", str(picture), "-m", TINY, "--checkpoint", str(tiny), "--out", str(out), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["out"] == str(out)
    assert told["reduce"] == ["tome:8"]
    assert told["preprocessing"]["size"] == [224, 224]
    assert out.is_file()


def test_methods_lists_the_reducers_and_what_they_do() -> None:
    assert json.loads(invoke("methods", "--json").stdout)["reducers"] == ["evit", "none", "tofu", "tome"]
    table = " ".join(invoke("methods").stdout.split())
    for part in ("tome", "evit", "tofu", "none", "merge the r most similar pairs", "keep the tokens that the CLS"):
        assert part in table


# ---- refused: 1 and one line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cost", "timm:nope"], "timm has no model 'nope'"),
        (["cost", "vit_tiny"], "unknown model 'vit_tiny'; write timm:NAME"),
        (["cost", "timm:resnet10t"], "cannot walk timm.models.resnet.ResNet"),
        (["cost", TINY, "-r", "tome:eight"], "malformed reducer 'tome:eight'"),
        (["cost", TINY, "-r", "tome:[1,2"], "malformed reducer 'tome:[1,2'"),
        (["cost", TINY, "-r", "nosuch:1"], "unknown reducer 'nosuch'"),
        (["cost", TINY, "--forwards", "0"], "forwards, batch and rounds must be at least 1"),
    ],
)
def test_cost_refuses_in_one_line(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refused(arguments, monkeypatch, capsys)


def test_tokens_refuses_what_it_cannot_read_or_write(
    picture: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "garbage.pth").write_bytes(b"garbage")
    model = ["-m", TINY, "--checkpoint", str(tiny)]
    cases: list[tuple[list[str], str]] = [
        ([str(tmp_path / "nowhere.png"), *model], "no image file"),
        ([str(tmp_path / "text.png"), *model], "cannot read image"),
        ([str(tmp_path), *model], "cannot read image"),
        ([str(picture), "-m", TINY, "--checkpoint", str(tmp_path / "nowhere.pth")], "no checkpoint file"),
        ([str(picture), "-m", TINY, "--checkpoint", str(tmp_path / "garbage.pth")], "cannot read checkpoint"),
        ([str(picture), *model, "-r", "tome:x"], "malformed reducer"),
        ([str(picture), *model, "--out", str(tmp_path / "out.nosuch")], "cannot write"),
        ([str(picture), *model, "--out", str(picture / "out.png")], "cannot write"),
    ]
    for arguments, complaint in cases:
        assert complaint in refused(["tokens", *arguments], monkeypatch, capsys)


# ---- misused: 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["cost"],
        ["cost", TINY, "--nosuch"],
        ["cost", TINY, "--forwards", "many"],
        ["tokens"],
        ["tokens", "a.png", "--scale", "0"],
        ["--nosuch"],
    ],
)
def test_misuse_exits_with_2_and_shows_the_usage(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.output
    assert "Traceback" not in result.output


def test_the_program_itself_refuses_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-m", "navia.cli", "cost", "timm:nope"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if line.startswith("navia: ")]
    assert len(done.stderr.splitlines()) == 1
