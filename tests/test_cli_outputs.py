"""Where commands write: a folder gets the default file name, and a place that cannot be written is refused at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from navia.errors import InputError, SpecError
from navia.models import load as loading
from tests.test_cli import invoke

pytestmark = pytest.mark.slow

MODEL = ("-m", "embedded")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model is the first work that takes time."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("work began before the output was checked")

    monkeypatch.setattr(loading, "load", refuse)


def commands(clothes: Path) -> dict[str, Callable[[Path], list[str]]]:
    """Commands that write one file, by its default name."""
    images = str(clothes)
    return {
        "navia-demo.html": lambda out: ["demo", "-n", "64", "-b", "64", "--corruption", "contrast", "--out", str(out)],
        "predictions.csv": lambda out: ["run", images, *MODEL, "--method", "none", "--workers", "0", "--out", str(out)],
        "statistics.safetensors": lambda out: ["stats", images, *MODEL, "--out", str(out)],
        "tokens.png": lambda out: ["tokens", str(clothes / "00.png"), *MODEL, "--out", str(out)],
        "model.safetensors": lambda out: ["export", *MODEL, "--format", "checkpoint", "--out", str(out)],
    }


def test_a_folder_gets_the_default_file_name(clothes: Path, tmp_path: Path) -> None:
    quick = {name: arguments for name, arguments in commands(clothes).items() if not name.endswith(".html")}
    for name, arguments in quick.items():
        result = invoke(*arguments(tmp_path), catch=False)
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).is_file(), name
        assert name in result.stdout
    saved = ["--method", "tent", "--out", str(tmp_path / "other.csv"), "--save", str(tmp_path)]
    assert invoke("run", str(clothes), *MODEL, "--workers", "0", *saved, catch=False).exit_code == 0
    assert (tmp_path / "delta.safetensors").is_file()


@pytest.mark.usefixtures("no_model")
def test_a_place_below_a_file_is_refused_before_any_work(clothes: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name, arguments in commands(clothes).items():
        with pytest.raises(InputError, match=rf"cannot write '.*{name}': '.*file' is a file, not a folder"):
            invoke(*arguments(tmp_path / "file" / "deeper" / name), catch=False)
    save = ["--out", str(tmp_path / "p.csv"), "--save", str(tmp_path / "file" / "d.safetensors")]
    with pytest.raises(InputError, match=r"cannot write '.*d\.safetensors'"):
        invoke("run", str(clothes), *MODEL, *save, catch=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clothes", "file"]


@pytest.mark.usefixtures("no_model")
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(clothes: Path) -> None:
    for name, arguments in commands(clothes).items():
        for place in (Path("/proc/navia"), Path("/proc")):  # where not even root may write
            with pytest.raises(InputError, match=rf"cannot write '{place}/{name}'"):
                invoke(*arguments(place / name), catch=False)


@pytest.mark.usefixtures("no_model")
def test_a_folder_in_the_place_of_the_default_file_is_refused(clothes: Path, tmp_path: Path) -> None:
    (tmp_path / "navia-demo.html").mkdir()
    with pytest.raises(InputError, match=r"cannot write '.*navia-demo\.html': it is a folder"):
        invoke("demo", "--out", str(tmp_path), catch=False)


@pytest.mark.usefixtures("no_model")
def test_commands_that_fill_a_folder_refuse_a_file(clothes: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "bench").mkdir()
    for out, complaint in ((tmp_path / "file", "is a file, not a folder"), (tmp_path / "file" / "x", "cannot write '.*x'")):
        for arguments in (
            ["bench", "quick", "--out", str(out)],
            ["report", str(tmp_path / "bench"), "--out", str(out)],
            ["corrupt", str(clothes), "--out", str(out)],
            ["export", "-m", "hf:nowhere", "--out", str(out)],
        ):
            with pytest.raises(InputError, match=complaint if arguments[0] != "export" else "file"):
                invoke(*arguments, catch=False)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("no_model")
def test_export_refuses_what_is_there_and_unknown_endings_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        invoke("export", *MODEL, "--out", str(tmp_path / "model.onnx"), catch=False)
    with pytest.raises(InputError, match=r"model\.onnx' exists already"):
        invoke("export", *MODEL, "--format", "onnx", "--out", str(tmp_path), catch=False)
    with pytest.raises(SpecError, match="which format is"):
        invoke("export", *MODEL, "--out", str(tmp_path / "model.bin"), catch=False)


@pytest.mark.usefixtures("no_model")
def test_a_drawing_needs_the_ending_of_an_image_format(clothes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write '.*drawing\.txt': its name must end with \.png"):
        invoke("tokens", str(clothes / "00.png"), *MODEL, "--out", str(tmp_path / "drawing.txt"), catch=False)
