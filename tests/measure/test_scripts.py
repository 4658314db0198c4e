"""The smaller scripts of benchmarks/: what they write, read again and refuse."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import navia

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = Path(__file__).parents[2] / "docs" / "assets" / "deit_tiny.jsonl"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def run(made: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{made.__name__}.py", *arguments])
    made.main()


def refusal(made: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        run(made, monkeypatch, *arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


# ---- real.py


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A small model with random weights, and 66 pictures of noise."""
    made = script("real", monkeypatch)
    torch.manual_seed(0)
    vit = navia.load("timm:test_vit", pretrained=False)
    save_file(vit.model.state_dict(), tmp_path / "w.safetensors")
    random = np.random.default_rng(0)
    for i in range(66):
        path = tmp_path / "images" / str(i % 2) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (*vit.preprocessing.size, 3), dtype=np.uint8)).save(path)
    monkeypatch.setattr(made, "MODEL", "timm:test_vit")
    monkeypatch.setattr(made, "WEIGHTS", tmp_path / "w.safetensors")
    monkeypatch.setattr(made, "IMAGES", tmp_path / "images")
    return made


def test_a_run_is_resumed_by_all_that_makes_its_rows(
    real: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same again adds nothing, another batch, severity or number of images does; a torn last row is made anew."""
    out = tmp_path / "rows.jsonl"
    asked = ("--out", str(out), "--run", "eata|none", "--corruption", "contrast", "--orders", "1")
    run(real, monkeypatch, *asked, "--batch", "2")
    whole = out.read_text()
    out.write_text(whole + whole[:40])
    run(real, monkeypatch, *asked, "--batch", "2")
    assert out.read_text() == whole
    run(real, monkeypatch, *asked, "--batch", "1")
    run(real, monkeypatch, *asked, "--batch", "2", "--severity", "1")
    run(real, monkeypatch, *asked, "--batch", "2", "--images", "1")
    rows = real.read_rows(out)
    assert [real.setting_of(row) for row in rows] == [(5, 2, None), (5, 1, None), (1, 2, None), (5, 2, 1)]
    assert [row["images"] for row in rows] == [2, 2, 2, 1]
    capsys.readouterr()
    run(real, monkeypatch, "--out", str(out), "--table", "--batch", "2", "--severity", "1")
    assert capsys.readouterr().out.count("eata + none") == 1
    told = refusal(real, monkeypatch, capsys, "--out", str(out), "--table")
    assert "no rows of severity 5, batch 64, all images; it holds severity 1, batch 2, all images;" in told


def test_rows_that_do_not_tell_their_batch_are_those_of_64(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = script("real", monkeypatch), tmp_path / "rows.jsonl"
    path.write_bytes(ROWS.read_bytes())
    assert {made.setting_of(row) for row in made.read_rows(path)} == {(5, 64, None)}
    run(made, monkeypatch, "--out", str(path), "--table")
    assert "| navia + tome:8 | 29.1 ± 2.2 (3) |" in capsys.readouterr().out


def test_intervals_over_many_orders_are_students(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six orders, 0 and 1 in turn: t(5) = 2.571, standard deviation 0.5477."""
    rows = [{"corruption": "fog", "run": "tent|none", "top1": float(i % 2), "images": 10} for i in range(6)]
    script("real", monkeypatch).print_table(rows)
    assert f"50.0 ± {100 * 2.571 * 0.54772 / 6**0.5:.1f} (6)" in capsys.readouterr().out


# ---- pair.py


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 values the 40th and the 61st: by the binomial distribution 96 %, one rank less 94 %."""
    interval = script("pair", monkeypatch).interval_of_median
    assert interval(list(range(1, 101))) == (40, 61)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_pair_that_is_not_there_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(script("pair", monkeypatch), monkeypatch, capsys, "align,tome:8", "nosuch,tome:8")
    assert "unknown method 'nosuch'" in told


def test_two_steps_are_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--model", "test_vit", "--batch", "2", "--pairs", "2")
    run(script("pair", monkeypatch), monkeypatch, "tent,none", "none", *small)
    assert "none, none / tent, none, test_vit, batch 2" in capsys.readouterr().out


# ---- export_parity.py, memory.py


def test_too_few_pictures_for_the_table_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = script("export_parity", monkeypatch)
    assert "take 24 pictures, got 20" in refusal(made, monkeypatch, capsys, "embedded", "--count", "20")


def test_the_memory_of_a_step_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(script("memory", monkeypatch), monkeypatch, "test_vit", "8", "tent", "none")
    assert "GiB" in capsys.readouterr().out


def test_what_a_cluster_is_expected_to_bring_is_what_the_docs_say() -> None:
    pytest.importorskip("ray")
    told = subprocess.run([sys.executable, BENCHMARKS / "cluster.py", "expect"], capture_output=True, text=True, check=True)
    simulated = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.stdout.splitlines()[2:]]
    times = {(seeds, workers): (first, plain) for seeds, workers, first, _, plain in simulated}
    page = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text()
    for workers in ("8", "64", "1,000"):
        one, (three, plain) = times["1", workers][0], times["3", workers]
        assert f"| {workers} | {one} | {three} | {plain} |" in page
