"""The command line: results on stdout, one line on stderr when refused, exit codes 0, 1 and 2."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

import navia
from navia.adaptation.adapter import Adapter
from navia.adaptation.guard import GuardOptions
from navia.cli.main import COMMANDS, app, main
from navia.cli.terminal import print_json, progress
from navia.data import imagenet
from navia.data.loader import Loader
from navia.data.sources import open_domains
from navia.data.streams import make_stream
from navia.errors import InputError
from navia.models.device import find_device
from navia.models.labels import class_names
from tests.families import build

TINY = "timm:vit_tiny_patch16_224"


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
def test_help_fits_80_columns_and_cuts_no_option(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    shown = set(re.findall(r"(?<=[\s│])--?[a-z][a-z0-9-]*(?=\s)", result.stdout))
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    assert {name for parameter in parameters for name in parameter.opts if name.startswith("-")} <= shown
    assert ("--json" in shown) is (command != "serve")


def test_the_help_lists_the_commands_in_order() -> None:
    text = invoke("--help").stdout
    assert re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE) == list(COMMANDS)


SHARED = {
    "--model": "-m", "--reduce": "-r", "--out": "-o", "--limit": "-n", "--batch-size": "-b", "--checkpoint": None,
    "--source": None, "--method": None, "--opt": None, "--workers": None, "--seed": None, "--device": None,
    "--precision": None, "--json": None,
}  # fmt: skip


def test_a_word_means_the_same_in_every_command() -> None:
    """Shared options have one short name, one panel and (repeatable or not) nearly one text."""
    panels: dict[str, set[str]] = {}
    short_names: dict[str, set[str]] = {}
    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            long = next((name for name in parameter.opts if name in SHARED), None)
            for name in parameter.opts:
                if not name.startswith("--") and name.startswith("-"):
                    short_names.setdefault(name, set()).add(max(parameter.opts, key=len))
            if long is not None:
                assert [name for name in parameter.opts if name != long] == ([SHARED[long]] if SHARED[long] else [])
                panels.setdefault(long, set()).add(parameter.rich_help_panel)
    assert all(len(found) == 1 for found in panels.values()), panels
    assert all(len(found) == 1 for found in short_names.values()), short_names
    assert set(panels) == set(SHARED)


def test_cost_as_json_has_the_librarys_numbers() -> None:
    result = invoke("cost", "-m", TINY, "-r", "none", "-r", "tome:8", "--forwards", "2", "--prompts", "3", "--json")
    assert result.exit_code == 0
    dense, reduced = json.loads(result.stdout)
    vit = navia.load(TINY, pretrained=False)
    for row, spec in ((dense, "none"), (reduced, "tome:8")):
        assert row == json.loads(json.dumps(navia.cost(vit, reduce=spec, forwards=2, prompts=3).as_dict()))
    assert reduced["tokens"][0] == 200
    assert reduced["tokens"][-1] == 104


def test_cost_as_a_table() -> None:
    result = invoke("cost", "-m", TINY)
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
    result = invoke("cost", "-m", TINY, "-r", "none", "--method", "tent", "--method", "foa", "--json")
    assert result.exit_code == 0
    tent, foa = json.loads(result.stdout)
    assert tent["trainable"] == 25 * 2 * 192
    assert foa["forwards"] == 24
    assert foa["tokens"][0] == 200


def test_cost_of_a_method_with_its_options() -> None:
    """NAVIA with 2 biases instead of 6, and a token beside CLS instead of a shift of it."""
    result = invoke(
        "cost", "-m", TINY, "-r", "none", "--method", "navia", "--opt", "budget=2", "--opt", "token=new", "--json"
    )
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["trainable"] == 25 * 2 * 192 + 192 + 2 * 192
    assert row["tokens"][0] == 198


def test_cost_shows_names_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "[bold]mine"
    build("transformers vit").model.save_pretrained(folder)  # type: ignore[operator]
    assert "[bold]mine" in "".join(invoke("cost", "-m", f"hf:{folder}", "-r", "none").stdout.split())


def test_cost_measures_on_request() -> None:
    result = invoke("cost", "-m", TINY, "-r", "tome:16", "--measure", "--batch-size", "1", "--rounds", "1", "--json")
    assert result.exit_code == 0
    (row,) = json.loads(result.stdout)
    assert row["timing"]["batch"] == 1
    assert row["timing"]["ms_per_image"] > 0


def test_cost_times_the_whole_step_and_compares_it_with_the_dense_ones(tiny_model: str) -> None:
    command = ("cost", "-m", tiny_model, "--method", "navia", "--method", "none", "-r", "none", "-r", "tome:2")
    command += ("--measure", "-b", "8", "--rounds", "1")
    rows = json.loads(invoke(*command, "--json").stdout)
    assert [(row["method"], row["reduce"]) for row in rows] == [
        (method, reduce) for method in ("navia", "none") for reduce in ("none", "tome:2")
    ]
    assert [row["timing"]["updated"] for row in rows] == [True, True, False, False]
    assert rows[0]["timing"]["of_dense_step"] == rows[2]["timing"]["of_dense_forward"] == 1
    shown = invoke(*command).stdout
    assert "of dense forward" in shown
    assert "of dense step" in shown
    assert "no update" not in shown


def test_cost_says_when_a_measured_step_had_no_update(tiny_model: str) -> None:
    command = ("cost", "-m", tiny_model, "--method", "sar", "--opt", "margin=0", "-r", "none")
    shown = invoke(*command, "--measure", "-b", "2", "--rounds", "1").stdout
    assert "no update was made, so its time is not in the step: sar + none" in " ".join(shown.split())


def test_cost_measures_on_the_device_that_is_asked_for_and_says_so() -> None:
    """The meta device stands for a GPU: a forward there computes shapes alone."""
    command = ("cost", "-m", TINY, "-r", "none", "--measure", "--batch-size", "1", "--rounds", "1")
    usual = str(find_device())
    for asked, device in (((), usual), (("--device", "meta"), "meta")):
        (row,) = json.loads(invoke(*command, *asked, "--json").stdout)
        assert row["timing"]["device"] == device
        assert f"time and memory on {device}" in " ".join(invoke(*command, *asked).stdout.split())
    result = invoke(*command, "--device", "abacus")
    assert result.exit_code == 1
    assert "no device 'abacus'" in str(result.exception)


def test_cost_table_is_never_cut_short() -> None:
    """Not even in 80 columns, with the longest of reducers and measured times."""
    spec = "tofu:[8,8,8,8,4,4,4,4,2,2,2,2],split=4,compat=true"
    result = invoke("cost", "-m", TINY, "-r", spec, "--measure", "--batch-size", "1", "--rounds", "1")
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
    arguments = ("--corruption", "contrast", "--limit", "16", "--method", method, "--device", "cpu", "--json")
    result = invoke("explain", "embedded", *arguments, catch=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["conditions"] == ["dense", "merged", method]
    assert told["reduce"] == "tome:8"


@pytest.mark.slow
def test_explain_compares_the_parts_of_navia_in_100_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("navia.evaluation.information.PENALTIES", (0.1,))  # the choice takes most of the time
    group = tmp_path / "group.json"
    group.write_text('{"shoes": [5, 7, 9], "clothes": [0, 1, 2, 3, 4, 6]}')
    arguments = ("--corruption", "contrast", "--limit", "48", "--group", str(group), "--device", "cpu")
    result = invoke("explain", "embedded", *arguments, catch=False)
    assert result.exit_code == 0, result.output
    assert "of 2 labels, label entropy" in result.stdout
    for pair in ("merged - dense", "align - merged", "+E - align", "+S - align", "both - align", "both - merged"):
        assert pair in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "of 84 steps" in result.stderr  # 6 conditions, each 1 batch to adapt to, 1 to examine and 12 blocks


def test_explain_refuses_wrong_groups_by_name(tmp_path: Path) -> None:
    group = tmp_path / "group.json"
    for text, message in (
        ("[]", "must have the form"),
        ('{"a": [0, 10]}', "has 10, not a class from 0 to 9"),
        ('{"a": [0], "b": [0]}', "class 0 in two groups"),
        ("{", "cannot read --group"),
    ):
        group.write_text(text)
        with pytest.raises(InputError, match=message):
            invoke("explain", "embedded", "--group", str(group), catch=False)
    with pytest.raises(InputError, match="ImageNet's 1000 classes, the model has 10"):
        invoke("explain", "embedded", "--group", "imagenet", catch=False)


def test_methods_lists_methods_reducers_and_what_they_do() -> None:
    result = invoke("methods", "tent", catch=False)
    told = " ".join(result.stdout.replace("│", " ").split())
    assert told.startswith("Tent: minimise the entropy of the predictions")
    assert "lr float 0.001 Learning rate. momentum float 0.9 Momentum of SGD." in told
    assert invoke("methods", "tant").exit_code == 2
    only = json.loads(invoke("methods", "tent", "--json").stdout)
    assert only["methods"] == {"tent": {"lr": 0.001, "momentum": 0.9}}
    assert only["options"]["tent"][0] == {"name": "lr", "type": "float", "default": 0.001, "meaning": "Learning rate."}
    told = json.loads(invoke("methods", "--json").stdout)
    assert told["reducers"] == navia.list_reducers()
    assert list(told["methods"]) == navia.list_methods()
    table = invoke("methods").stdout
    for name in (*navia.list_reducers(), *navia.list_methods()):
        assert f"│ {name} " in table
    assert "merge the r most similar pairs" in " ".join(table.split())
    assert "What a token reducer is" not in table


@pytest.mark.slow
def test_stats_then_choose_on_a_folder(clothes: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "source.safetensors"
    measured = invoke("stats", str(clothes), "-o", str(out), "-m", "embedded", "-r", "tome:2", "--json")
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["count"] == 16
    assert json.loads(measured.stdout)["reduce"] == "tome:2"
    assert out.is_file()
    target = ("choose", str(clothes), "--source", str(out), "-m", "embedded", "-r", "tome:2", "--batches", "2")
    chosen = invoke(*target, "--batch-size", "8", "--json")
    assert chosen.exit_code == 0, chosen.output
    told = json.loads(chosen.stdout)
    assert told["options"] in [options for options, _ in told["table"]]


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small transformers ViT with 1,000 classes that nobody named, as a folder."""
    from transformers import ViTConfig, ViTForImageClassification

    folder = tmp_path_factory.mktemp("models") / "thousand"
    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    torch.manual_seed(0)
    ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=1000, **size)).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def renditions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small picture in each of the 200 class folders of ImageNet-R."""
    root = tmp_path_factory.mktemp("data") / "imagenet-r"
    pixels = np.random.default_rng(0).integers(0, 255, (200, 36, 36, 3), dtype=np.uint8)
    for picture, index in zip(pixels, imagenet.r_classes(), strict=True):
        (root / imagenet.wnids()[index]).mkdir(parents=True)
        Image.fromarray(picture).save(root / imagenet.wnids()[index] / "one.png")
    return root


@pytest.mark.parametrize("corruption", [(), ("--corruption", "contrast", "--severity", "3")])
def test_choose_scores_the_classes_and_images_that_run_answers(
    thousand: str, renditions: Path, corruption: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "source.safetensors"
    assert invoke("stats", str(renditions), "-o", str(out), "-m", thousand, "--limit", "16").exit_code == 0
    target = ("choose", str(renditions), "--source", str(out), "-m", thousand, "--batches", "2", "--batch-size", "8")
    chosen = invoke(*target, *corruption, "--json")
    assert chosen.exit_code == 0, chosen.output
    vit = navia.load(thousand)
    opened = open_domains(renditions, 1000, corruptions=["contrast"] if corruption else (), severity=3)
    loader = Loader(make_stream(opened.domains, seed=0, limit=16), vit.preprocessing, 8)
    source = navia.SourceStatistics.load(out)
    same = navia.choose(vit, loader, source, batches=2, batch_size=8, classes=imagenet.r_classes())
    assert json.loads(chosen.stdout)["table"] == [[options, score] for options, score in same.table]


def test_a_bench_cell_chooses_among_the_classes_of_its_data(thousand: str, renditions: Path, tmp_path: Path) -> None:
    text = f"""
models: {{name: "{thousand}"}}
data: {{path: "{renditions}", images: 16}}
source: {{path: "{renditions}", images: 16}}
runs: {{method: navia, choose: {{batches: 2}}}}
batch: 8
"""
    (tmp_path / "spec.yaml").write_text(text)
    done = invoke("bench", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out"), "--json", catch=False)
    (row,) = json.loads(done.stdout)
    vit = navia.load(thousand)
    opened = open_domains(renditions, 1000)
    loader = Loader(make_stream(opened.domains, seed=0, limit=16), vit.preprocessing, 8)
    source = navia.SourceStatistics.measure(vit, renditions, limit=16)
    losses = [
        min(score for _, score in navia.choose(vit, loader, source, batches=2, batch_size=8, classes=classes).table)
        for classes in (imagenet.r_classes(), None)
    ]
    assert row["choice"]["loss"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[0] - losses[1]) > 1  # ln 1000 - ln 200 = 1.6: the entropy over all classes is another one


def test_run_names_classes_only_where_they_are_known(thousand: str, renditions: Path, tmp_path: Path) -> None:
    """Folders named by wnids are ImageNet's; pictures without folders say nothing about a model with 1,000 classes."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for folder in list(renditions.iterdir())[:2]:
        (flat / f"{folder.name}.png").write_bytes((folder / "one.png").read_bytes())
    told = {}
    for images, more in ((renditions, ()), (flat, ()), (flat, ("--labels", "imagenet"))):
        out = tmp_path / f"{images.name}{len(more)}.csv"
        arguments = ("--method", "none", "--limit", "2", "--out", str(out))
        done = invoke("run", str(images), "-m", thousand, *arguments, *more)
        assert done.exit_code == 0, done.output
        with out.open(newline="") as file:
            told[images.name, bool(more)] = [(int(row["label"]), row["name"]) for row in csv.DictReader(file)]
    names = imagenet.names()
    assert all(name == names[imagenet.r_classes()[label]] for label, name in told["imagenet-r", False])
    assert [name for _, name in told["flat", False]] == ["", ""]
    assert all(name == names[label] for label, name in told["flat", True])


def test_weights_with_classes_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "mine.safetensors", tmp_path / "answers.csv"
    save_file(navia.load(TINY, pretrained=False, num_classes=3).model.state_dict(), path)
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    arguments = ["run", str(tmp_path), "-m", TINY, "--method", "none", "--out", str(out)]
    done = invoke(*arguments, "--checkpoint", str(path), "--labels", str(tmp_path / "names.txt"))
    assert done.exit_code == 0, done.output
    with out.open(newline="") as file:
        assert [row["name"] in ("ant", "bee", "cat") for row in csv.DictReader(file)] == [True]
    said = refused([*arguments, "--checkpoint", str(path), "--num-classes", "4"], monkeypatch, capsys)
    assert "head.weight: (3, 192) in the file, (4, 192) in the model" in said
    assert "give them with --checkpoint" in refused([*arguments, "--num-classes", "3"], monkeypatch, capsys)


def test_choose_wants_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("contrast", "fog"):
        (tmp_path / part / "5").mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / part / "5" / "one.png")
    arguments = ["choose", str(tmp_path), "--source", "none.safetensors", "-m", "embedded"]
    assert "has 2 parts (fog/5, contrast/5, ...): choose on one of them" in refused(arguments, monkeypatch, capsys)


# ---- refused: 1 and one line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["cost", "-m", "timm:nope"], "timm has no model 'nope'"),
        (["cost", "-m", "vit_tiny"], "unknown model 'vit_tiny'; write timm:NAME"),
        (["cost", "-m", "timm:resnet10t"], "timm.models.resnet.ResNet is not supported"),
        (["cost", "-m", TINY, "-r", "tome:eight"], "malformed reducer 'tome:eight'"),
        (["cost", "-m", TINY, "-r", "tome:[1,2"], "malformed reducer 'tome:[1,2'"),
        (["cost", "-m", TINY, "--forwards", "0"], "forwards, batch_size and rounds must be at least 1"),
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
        ([str(clothes), "-o", str(tmp_path / "file" / "out.safetensors")], "cannot write"),
        ([str(tmp_path / "nowhere"), "-o", str(tmp_path / "out.safetensors")], "no folder"),
    ]
    for arguments, complaint in cases:
        assert complaint in refused(["stats", *arguments, "-m", "embedded"], monkeypatch, capsys)


# ---- misused: 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["cost"],
        ["cost", "-m", TINY, "--nosuch"],
        ["cost", "-m", TINY, "--forwards", "many"],
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
    done = subprocess.run([sys.executable, "-m", "navia.cli", "cost", "-m", "timm:nope"], capture_output=True, text=True)
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
    result = invoke("stats", "embedded", "-o", "x", "--model", "embedded", "--device", "tape")
    assert "no device 'tape'" in str(result.exception or result.output)


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_missing_source_is_answered_with_the_option(
    command: str, clothes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"run": ["run", str(clothes), "--out", str(tmp_path / "p.csv")], "serve": ["serve", "--port", "0"]}[command]
    told = refused([*arguments, "-m", "embedded"], monkeypatch, capsys)
    assert told.startswith("navia: method 'navia' needs source statistics: give --source FOLDER")
    assert "SourceStatistics" not in told
    with pytest.raises(navia.errors.NaviaError, match=r"navia\.SourceStatistics\.measure\(vit, images, reduce\)"):
        navia.adapt(navia.load("embedded"))


def test_statistics_without_fisher_are_answered_with_the_option(
    clothes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.safetensors"
    assert invoke("stats", str(clothes), "-o", str(plain), "-m", "embedded").exit_code == 0
    arguments = ["run", str(clothes), "-m", "embedded", "--method", "eata", "--source", str(plain)]
    told = refused([*arguments, "--out", str(tmp_path / "p.csv")], monkeypatch, capsys)
    assert "method 'eata' needs source statistics measured with `navia stats --fisher`" in told


def test_unknown_options_of_a_method_come_with_the_nearest(
    clothes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(clothes), "-m", "embedded", "--out", str(tmp_path / "p.csv")]
    told = refused([*run, "--method", "tent", "--opt", "momentun=0.5"], monkeypatch, capsys)
    assert told.endswith("; did you mean 'momentum'?\n")


def test_old_options_of_a_method_work_with_one_warning(clothes: Path, tmp_path: Path) -> None:
    run = ("run", str(clothes), "-m", "embedded", "--method", "align", "--source", "embedded", "--limit", "4")
    for name, warnings in (("enough", 1), ("min_batch", 0)):
        result = invoke(*run, "--opt", f"{name}=2", "-o", str(tmp_path / f"{name}.csv"), "--json", catch=False)
        assert json.loads(result.stdout)["settings"]["options"] == {"min_batch": 2}
        assert result.stderr.count("option enough of align is now min_batch") == warnings


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["run", "x", "-m", "embedded", "--method", "navai"], ["align", "tent", "did you mean 'navia'?"]),
        (["run", "x", "-m", "embedded", "-r", "tomme:8"], ["evit", "tofu", "did you mean 'tome'?"]),
        (["run", "x", "-m", "embedded", "--corruption", "fogg"], ["contrast", "did you mean 'fog'?"]),
        (["run", "x", "-m", "embedded", "--stream", "continuall"], ["reset", "mixed", "did you mean 'continual'?"]),
        (["run", "x", "-m", "embedded", "--precision", "float8"], ["bfloat16"]),
        (["run", "x", "-m", "embedded", "--device", "cuda:first"], ["auto", "cpu", "cuda:N"]),
        (["cost", "-m", "embedded", "-r", "none", "-r", "nosuch:1"], ["tome"]),
        (["cost", "-m", "embedded", "--method", "none", "--method", "tant"], ["did you mean 'tent'?"]),
        (["export", "-m", "embedded", "-o", "x", "--format", "onyx"], ["torch", "checkpoint", "did you mean 'onnx'?"]),
        (["bench", "quick", "--on", "moon"], ["local", "ray"]),
        (["corrupt", "x", "-o", "y", "--corruption", "smoke"], ["gaussian_noise"]),
    ],
)
def test_the_parser_checks_choices_and_tells_the_known_names(arguments: list[str], known: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    told = " ".join(result.output.replace("│", " ").split())
    for name in known:
        assert name in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["cost", "embedded", "-r", "none"], ["cost", "-m", "embedded", "-r", "none"]),
        (["cost", "-m", "embedded", "-o", "lr=1"], ["cost", "-m", "embedded", "--opt", "lr=1"]),
        (["cost", "-m", "embedded", "-olr=1"], ["cost", "-m", "embedded", "--opt=lr=1"]),
        (["cost", "-m", "embedded", "--batch=2"], ["cost", "-m", "embedded", "--batch-size=2"]),
        (
            ["run", "x", "-m", "m", "--lean", "--option", "lr=1"],
            ["run", "x", "-m", "m", "--grad-checkpointing", "--opt", "lr=1"],
        ),
        (
            ["run", "x", "-m", "m", "--order", "3", "--every", "9"],
            ["run", "x", "-m", "m", "--seed", "3", "--save-every", "9"],
        ),
        (["run", "x", "-m", "m", "-o", "a.csv", "--order", "names"], None),
        (["run", "x", "-m", "m", "-o", "lr=1"], ["run", "x", "-m", "m", "--opt", "lr=1"]),
        (["bench", "x", "--images", "7", "--batch", "2"], ["bench", "x", "--limit", "7", "--batch-size", "2"]),
        (["export", "m", "--out", "o", "--images", "d"], ["export", "--model", "m", "--out", "o", "--data", "d"]),
        (["export", "-m", "m", "-o", "o", "--classes", "3"], None),
        (["doctor", "x", "--classes", "10"], ["doctor", "x", "--num-classes", "10"]),
        (["stats", "x", "y", "-m", "m"], ["stats", "x", "--out", "y", "-m", "m"]),
        (["corrupt", "x", "x"], ["corrupt", "x", "--out", "x"]),
        (["explain", "x", "--count", "32"], ["explain", "x", "--limit", "32"]),
    ],
)
def test_names_of_the_previous_release_work_with_a_warning(
    old: list[str], new: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """None: nothing is renamed."""

    def parsed(arguments: list[str]) -> dict[str, Any]:
        command = get_command(app).commands[arguments[0]]  # type: ignore[attr-defined]
        return dict(command.make_context(arguments[0], arguments[1:]).params)

    found = parsed(old)
    told = capsys.readouterr().err
    assert ("is now" in told) is (new is not None)
    assert found == parsed(new or old)
    assert (capsys.readouterr().err == "") or new is None


def test_old_environment_variables_of_serve_work_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAVIA_SERVE_BATCH", "3")
    monkeypatch.setenv("NAVIA_SERVE_OPTION", "lr=1 steps=2")
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    found = command.make_context("serve", ["-m", "embedded"], auto_envvar_prefix="NAVIA_SERVE").params
    assert (found["batch_size"], list(found["opt"])) == (3, ["lr=1", "steps=2"])
    assert "NAVIA_SERVE_BATCH is now NAVIA_SERVE_BATCH_SIZE" in capsys.readouterr().err


def test_help_imports_no_torch() -> None:
    code = "import sys; from navia.cli.main import app; app(['run', '--help'], standalone_mode=False)"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], capture_output=True)
    assert done.returncode == 0


def test_progress_is_a_line_for_each_tenth_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("images") as show:
        for done in range(0, 101, 5):
            show(done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0] == "0 of 100 images"
    assert re.fullmatch(r"50 of 100 images, \d+ s left", lines[5])


def evaluation(*more: str, data: str = "embedded") -> Any:
    result = invoke("evaluate", data, "-m", "embedded", "--limit", "64", "--device", "cpu", *more, catch=False)
    assert result.exit_code == 0, result.output
    return result


def test_evaluate_prints_top1_with_interval_calibration_and_cost() -> None:
    corrupted = ("--method", "none", "--corruption", "contrast", "--corruption", "brightness")
    found = json.loads(evaluation(*corrupted, "--json").stdout)
    assert [domain["name"] for domain in found["domains"]] == ["contrast", "brightness"]
    for row in (found, *found["domains"]):
        low, high = row["interval"]
        assert 0 <= low <= row["top1"] <= high <= 1
        assert 0 <= row["ece"] <= 1
    table = evaluation(*corrupted).stdout
    for part in ("contrast", "brightness", "all", "top-1", "ECE", f"{found['top1']:.1%}", "GMACs"):
        assert part in table


@pytest.mark.slow
def test_evaluate_says_to_how_many_batches_it_adapted() -> None:
    sparse = ("--method", "tent", "--batch-size", "16", "--adapt-every", "2")
    assert json.loads(evaluation(*sparse, "--json").stdout)["update_share"] == 0.5
    assert "batches adapted to: 50%" in evaluation(*sparse).stdout


def test_evaluate_gives_the_numbers_of_the_library(clothes_by_class: Path) -> None:
    """On clean images and on a folder, with a method, its options and a reducer."""
    for data in ("embedded", str(clothes_by_class)):
        chosen = ("--method", "navia", "-r", "tome:8", "--source", "embedded", "--opt", "lr=0.01", "--batch-size", "32")
        found = json.loads(evaluation(*chosen, "--seed", "1", "--json", data=data).stdout)
        vit = navia.load("embedded")
        classes = open_domains(data, vit.num_classes, class_names(vit)).classes
        adapter = navia.adapt(vit, "navia", "tome:8", "embedded", classes=classes, lr=0.01)
        same = navia.evaluate(adapter, data, batch_size=32, limit=64, seed=1)
        assert found == json.loads(json.dumps(same.to_dict()))
        assert found["domains"][0]["updates"] > 0


def test_evaluate_after_a_collapse_has_no_calibration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has no NaN: what is not finite is null."""
    predict = Adapter.__call__
    monkeypatch.setattr(Adapter, "__call__", lambda self, images: predict(self, images) * torch.nan)
    printed = evaluation("--method", "none", "--json").stdout
    found = json.loads(printed)
    assert (found["top1"], found["ece"]) == (0, None)
    assert "NaN" not in printed
    assert re.search(r"clean +64 +0\.0% .* -\n", evaluation("--method", "none").stdout)


def test_evaluate_refuses_images_without_labels(
    clothes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", str(clothes), "-m", "embedded", "--method", "none"]
    assert "has no labels to score with: use class folders" in refused(arguments, monkeypatch, capsys)


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1.5, float("nan")], "b": float("inf"), "c": GuardOptions()})
    found = json.loads(capsys.readouterr().out)
    assert (found["a"], found["b"]) == ([1.5, None], None)
    assert isinstance(found["c"], dict)
