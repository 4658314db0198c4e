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
from tests.families import build

TINY = "timm:vit_tiny_patch16_224"
COMMANDS = (
    "cost", "tokens", "methods", "stats", "choose", "demo", "run", "bench", "doctor", "corrupt", "explain",
    "export", "report",
)  # fmt: skip


def invoke(*arguments: str, catch: bool = True) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"}, catch_exceptions=catch)


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
    for command in COMMANDS:
        assert command in result.output


@pytest.mark.parametrize("command", COMMANDS)
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
    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines() if line.startswith("│")]
    specs = ("none", "tome:4", "tome:8", "evit:8", "tofu:8")
    assert [row[:2] for row in rows] == [["none", spec] for spec in specs]
    for row, spec in zip(rows, specs, strict=True):
        found = navia.cost(vit, reduce=spec)
        numbers = [f"{found.gmacs:.2f}", f"{found.gmacs / dense:.1%}", f"{found.gmacs_paper:.2f}"]
        assert row[2:] == [*numbers, "197", str(found.tokens[-1]), "0"]
    assert "5.7 M parameters" in result.stdout


def test_cost_of_a_method() -> None:
    """LayerNorm tuning of ViT-Ti: 2 x 192 entries of 25 norms; FOA: 4 + 3 ln(3 x 192) candidates and the best so far."""
    result = invoke("cost", TINY, "-r", "none", "--method", "tent", "--method", "foa", "--json")
    assert result.exit_code == 0
    tent, foa = json.loads(result.stdout)
    assert tent["trainable"] == 25 * 2 * 192
    assert foa["forwards"] == 24
    assert foa["tokens"][0] == 200


def test_cost_of_a_method_with_its_options() -> None:
    """NAVIA with 2 biases instead of 6, and a token beside CLS instead of a shift of it."""
    result = invoke("cost", TINY, "-r", "none", "--method", "navia", "-o", "budget=2", "-o", "token=new", "--json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["trainable"] == 25 * 2 * 192 + 192 + 2 * 192
    assert row["tokens"][0] == 198


def test_cost_shows_names_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "[bold]mine"
    build("transformers vit").model.save_pretrained(folder)  # type: ignore[operator]
    assert "[bold]mine" in "".join(invoke("cost", f"hf:{folder}", "-r", "none").stdout.split())


def test_cost_measures_on_request() -> None:
    result = invoke("cost", TINY, "-r", "tome:16", "--measure", "--batch", "1", "--rounds", "1", "--json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["timing"]["batch"] == 1
    assert row["timing"]["ms_per_image"] > 0


def test_cost_table_is_never_cut_short() -> None:
    """Not even in 80 columns, with the longest of reducers and measured times."""
    spec = "tofu:[8,8,8,8,4,4,4,4,2,2,2,2],split=4,compat=true"
    result = invoke("cost", TINY, "-r", spec, "--measure", "--batch", "1", "--rounds", "1")
    assert result.exit_code == 0
    for part in (
        spec,
        "ms/image (batch 1)",
        "peak MiB",
        f"{navia.cost(navia.load(TINY, pretrained=False), spec).gmacs:.2f}",
    ):
        assert f" {part} " in result.stdout
    assert "…" not in result.stdout


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eata", "lame"])
def test_explain_works_with_every_kind_of_method(method: str) -> None:
    arguments = ("--corruption", "contrast", "--count", "16", "--method", method, "--device", "cpu", "--json")
    result = invoke("explain", "embedded", *arguments, catch=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["conditions"] == ["dense", "tome:8", f"{method} + tome:8"]


def test_methods_lists_methods_reducers_and_what_they_do() -> None:
    told = json.loads(invoke("methods", "--json").stdout)
    assert told["reducers"] == navia.reducers()
    assert list(told["methods"]) == navia.methods()
    table = invoke("methods").stdout
    for name in (*navia.reducers(), *navia.methods()):
        assert f"│ {name} " in table
    assert "merge the r most similar pairs" in " ".join(table.split())


@pytest.mark.slow
def test_stats_then_choose_on_a_folder(clothes: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "source.safetensors"
    measured = invoke("stats", str(clothes), str(out), "-m", "embedded", "-r", "tome:2", "--json")
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["count"] == 16
    assert json.loads(measured.stdout)["reduce"] == "tome:2"
    assert out.is_file()
    target = ("choose", str(clothes), "--source", str(out), "-m", "embedded", "-r", "tome:2", "--batches", "2")
    chosen = invoke(*target, "--batch", "8", "--json")
    assert chosen.exit_code == 0, chosen.output
    told = json.loads(chosen.stdout)
    assert told["options"] in [options for options, _ in told["table"]]


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


def test_stats_refuses_what_it_cannot_read_or_write(
    clothes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    cases = [
        ([str(clothes), str(tmp_path / "file" / "out.safetensors")], "cannot write"),
        ([str(tmp_path / "nowhere"), str(tmp_path / "out.safetensors")], "no folder"),
    ]
    for arguments, complaint in cases:
        assert complaint in refused(["stats", *arguments, "-m", "embedded"], monkeypatch, capsys)


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


@pytest.mark.slow
def test_the_program_itself_refuses_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-m", "navia.cli", "cost", "timm:nope"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if line.startswith("navia: ")]
    assert len(done.stderr.splitlines()) == 1


def test_a_device_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    result = invoke(
        "run", "embedded", "--model", "embedded", "--method", "none", "--device", "cuda:7", "--out", str(tmp_path / "a")
    )
    assert result.exit_code == 1
    assert "no device 'cuda:7' here; there is cpu" in str(result.exception or result.output)
    result = invoke("stats", "embedded", "x", "--model", "embedded", "--device", "tape")
    assert "no device 'tape'" in str(result.exception or result.output)
