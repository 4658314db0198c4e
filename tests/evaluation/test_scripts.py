"""The smaller scripts of benchmarks/: what they write, read again and refuse."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


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
