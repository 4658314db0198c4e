"""File names that are not valid UTF-8: every command works with them, and the results name the file's own bytes."""

import csv
import json
import os
import sys
from pathlib import Path

import pytest
from PIL import Image

import navia
from navia.bench.predictions import Predictions
from navia.data import sample
from navia.data.corruptions import corruption_seed
from tests.test_cli import invoke

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other file systems do not allow such names")

CAFE = os.fsdecode(b"caf\xe9")  # Latin-1


def save(path: Path, position: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        Image.fromarray(sample.unseen_images().images[position]).save(file, "PNG")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """The folder's own name is not valid UTF-8 either."""
    for i in range(16):
        save(tmp_path / CAFE / f"{CAFE} {i:02}.png", i)
    return tmp_path / CAFE


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    labels = sample.unseen_images().labels
    assert labels is not None
    for i in range(132):
        save(tmp_path / f"data {CAFE}" / sample.CLASSES[labels[i]] / f"{CAFE} {i:03}.png", i)
    return tmp_path / f"data {CAFE}"


def test_run_writes_the_bytes_of_the_name_and_goes_on(flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (flat / f"{CAFE} 05.png").write_bytes(b"no image")
    out, saved = tmp_path / f"{CAFE}.csv", tmp_path / f"{CAFE}.safetensors"
    arguments = ["run", str(flat), "-m", "embedded", "--method", "tent", "--batch-size", "4", "--workers", "0"]
    arguments += ["--skip-unreadable", "--out", str(out), "--save", str(saved), "--save-every", "0"]
    add, calls = Predictions.add, iter(range(100))

    def stop_at_the_third(self: Predictions, answered: object) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        add(self, answered)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Predictions, "add", stop_at_the_third)
        result = invoke(*arguments)
        assert isinstance(result.exception, SystemExit | KeyboardInterrupt), result.exception
    assert out.read_bytes().count(b"\n") == 1 + 7
    result = invoke(*arguments, catch=False)
    assert result.exit_code == 0
    assert r"left out: caf\udce9 05.png" in result.stdout
    paths = [line.split(b",")[0] for line in out.read_bytes().splitlines()[1:]]
    assert paths == [b"caf\xe9 %02d.png" % i for i in range(16) if i != 5]
    with out.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert all((flat / row["path"]).is_file() for row in csv.DictReader(file))
    found = json.loads(invoke(*arguments, "--json", catch=False).stdout)
    assert [name for name, _ in found["unreadable"]] == [f"{CAFE} 05.png"]
    assert saved.is_file()


def test_run_watches_a_folder(flat: Path, tmp_path: Path) -> None:
    arguments = ["run", str(flat), "-m", "embedded", "--method", "none", "--follow", "--idle", "0", "--wait", "0"]
    arguments += ["--out", str(tmp_path / "p.csv"), "--json"]
    for path in flat.iterdir():
        os.utime(path, (0, 0))  # written long ago
    for _ in range(2):  # the second time all are known
        assert json.loads(invoke(*arguments, catch=False).stdout)["scores"]["all"]["images"] == 16


@pytest.mark.slow
def test_bench_and_its_report(by_class: Path, tmp_path: Path) -> None:
    spec = tmp_path / f"{CAFE}.yaml"
    wanted = (
        "models: {name: embedded}",
        "data: {path: x, images: 32}",
        "source: {images: 16}",
        "runs: {method: [none, align]}",
    )
    spec.write_text("\n".join((*wanted, "batch: 16")))
    out = tmp_path / f"bench {CAFE}"
    result = invoke("bench", str(spec), "--data", str(by_class), "--out", str(out), catch=False)
    assert result.exit_code == 0, result.output
    assert r"data caf\udce9" in result.stderr
    result = invoke("report", str(out), catch=False)
    assert result.exit_code == 0, result.output
    assert r"caf\udce9" in (out / "report" / "index.html").read_text(encoding="utf-8")


def test_statistics_and_drawings(flat: Path, tmp_path: Path) -> None:
    statistics, drawing = tmp_path / f"{CAFE}.safetensors", tmp_path / f"{CAFE}.png"
    assert invoke("stats", str(flat), "-o", str(statistics), "-m", "embedded", catch=False).exit_code == 0
    assert navia.SourceStatistics.load(statistics).provenance.count == 16
    image = str(flat / f"{CAFE} 00.png")
    result = invoke("tokens", image, "-m", "embedded", "--out", str(drawing), catch=False)
    assert r"caf\udce9.png" in result.stdout
    assert drawing.is_file()


def test_corrupt_keeps_the_name_and_goes_on(flat: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    out = tmp_path / f"copy {CAFE}"
    arguments = [
        "corrupt",
        str(flat),
        "-o",
        str(out),
        "--corruption",
        "contrast",
        "--severity",
        "1",
        "--as-is",
        "--workers",
        "1",
    ]
    assert invoke(*arguments, "--limit", "8", catch=False).exit_code == 0
    result = invoke(*arguments, catch=False)
    assert "8 files written" in result.stdout
    written = sorted(os.listdir(os.fsencode(out / "contrast" / "1")))
    assert written == [b"caf\xe9 %02d.JPEG" % i for i in range(16)]


def test_seeds_of_other_names_are_as_before() -> None:
    assert corruption_seed("cat/ü.png", "fog", 3, 1) == 2063510897
    assert corruption_seed(f"{CAFE}.png", "fog", 3) != corruption_seed("cafe.png", "fog", 3)


def test_doctor_mentions_such_names(flat: Path, by_class: Path, clothes: Path) -> None:
    result = invoke("doctor", str(flat), catch=False)
    assert result.exit_code == 0
    assert (
        r"16 names that are not valid UTF-8: caf\udce9 00.png, caf\udce9 01.png, caf\udce9 02.png and 13 more"
        in result.stdout
    )
    found = json.loads(invoke("doctor", str(by_class), "--json", catch=False).stdout)["findings"]
    (text,) = [finding["text"] for finding in found if "UTF-8" in finding["text"]]
    assert text.startswith("132 names")
    assert "UTF-8" not in invoke("doctor", str(clothes), catch=False).stdout


def test_an_error_names_the_file(flat: Path, tmp_path: Path) -> None:
    (flat / f"{CAFE} 05.png").write_bytes(b"no image")
    result = invoke(
        "run", str(flat), "-m", "embedded", "--method", "none", "--workers", "0", "--out", str(tmp_path / "p.csv")
    )
    assert r"caf\udce9 05.png" in str(result.exception)
