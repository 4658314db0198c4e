"""The other scripts of benchmarks/: what they print, and what they refuse."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import foa
import gpu_check
import navia
import step
from navia.errors import InputError

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    importlib.import_module(name).main()


def refusal(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        run(name, monkeypatch, *arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["speed", "step", "stream", "memory", "foa", "export_parity", "gpu_check"])
def test_every_script_has_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(name, monkeypatch, "--help")
    assert ended.value.code == 0
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


# ---- step.py


def test_interval_of_a_median_covers_95_percent() -> None:
    """Of 100 values the 40th and the 61st: by the binomial distribution 96 %, one rank less 94 %."""
    assert step.interval_of_median(list(range(1, 101))) == (40, 61)
    assert step.interval_of_median([3.0, 1.0, 2.0]) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("compare align,tome:8 nosuch,tome:8", "unknown method 'nosuch'"),
        ("compare align,tome:8", "compare takes 2 METHOD,REDUCE, got 1"),
        ("stream --rounds 9", "at least 10 steps, got 9"),
        ("profile tent --batch 0", "at least 1"),
    ],
)
def test_impossible_steps_are_refused(
    arguments: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refusal("step", monkeypatch, capsys, *arguments.split())


def test_two_steps_are_compared_and_one_is_profiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--model", "test_vit", "--batch", "2", "--rounds", "2")
    run("step", monkeypatch, "compare", "tent,none", "none", *small)
    assert "none, none / tent, none, test_vit, batch 2" in capsys.readouterr().out
    run("step", monkeypatch, "profile", "tent", *small, "--top", "3")
    assert "calls per step" in capsys.readouterr().out


def test_trend_has_both_ends_and_a_slope() -> None:
    steps = list(range(100, 2100, 100))
    found = step.trend(
        steps, [50.0, 50.0] + [10 + number / 500 for number in steps[2:]]
    )  # the slope ignores the first tenth
    assert found.first == 50
    assert found.last == pytest.approx(10 + 1950 / 500)
    assert found.slope == pytest.approx(2)
    with pytest.raises(InputError, match="at least 10 values"):
        step.trend([1], [1.0])


def test_interrupted_stream_keeps_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([100.0] * 12)

    def resident() -> float:
        value = next(values, None)
        if value is None:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(step, "resident_mib", resident)
    found = step.long_stream(20, print)
    assert found["steps"] == 12
    assert found["resident_mib"] == {"first": 100.0, "last": 100.0, "slope": 0.0}
    assert "12 steps" in step.stream_text(found)


# ---- foa.py, export_parity.py, memory.py, cluster.py


def test_both_searches_of_foa_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cma = pytest.importorskip("cma")
    ask = cma.CMAEvolutionStrategy.ask
    monkeypatch.setattr(foa.deit, "WEIGHTS", tmp_path / "missing")
    full, diagonal = foa.compare(8, print)
    assert (full["diagonal"], diagonal["diagonal"]) == (False, True)
    for row in (full, diagonal):
        assert 0 < row["search_share"] < 1
        assert 0 <= row["top1"] <= 1
        assert foa.cells(row)[0].startswith("embedded, tome:8")
    assert cma.CMAEvolutionStrategy.ask is ask


def test_too_few_images_for_the_table_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "need 24 images, got 20" in refusal("export_parity", monkeypatch, capsys, "embedded", "--count", "20")


def test_memory_of_a_step_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("memory", monkeypatch, "test_vit", "8", "tent", "none")
    assert "GiB" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("gpu_check", monkeypatch)
    assert ended.value.code == 1
    assert capsys.readouterr().out.count("\n") == 1


def test_gpu_check_on_a_cpu_compares_steps_and_counts_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that fails is reported, and the others go on."""

    def fail(*_: object) -> list[str]:
        raise ValueError("broken")

    monkeypatch.setattr(gpu_check, "STEPS", 2)
    monkeypatch.setattr(gpu_check, "IMAGES", 8)
    monkeypatch.setattr(gpu_check, "logits_parity", fail)
    monkeypatch.setattr(navia, "list_methods", lambda: ["navia", "tent", "nosuch"])
    with pytest.raises(SystemExit) as ended:
        run("gpu_check", monkeypatch, "--device", "cpu")
    assert ended.value.code == 1
    told = capsys.readouterr().out
    assert "failed: ValueError: broken" in told
    assert "| navia | 0.0e+00, 0.0e+00 | 8, 8 | ok |" in told
    assert "| tent | 1 | 0 |" in told
    assert "| nosuch | failed: SpecError: unknown method 'nosuch'" in told


def test_gpu_check_times_every_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the calls of the GPU, but without its clock."""

    def call_all(calls: list[Any], rounds: int) -> list[float]:
        for call in calls:
            call()
        return [2.0, 1.0, 3.0]

    monkeypatch.setattr(gpu_check, "event_times", call_all)
    cpu = torch.device("cpu")
    told = [*gpu_check.speed(cpu, "test_vit", 8, 1), *gpu_check.memory(cpu, "test_vit", 8)]
    for precision in ("float32", "bfloat16", "float16"):
        assert f"| {precision} | 2.00 | 0.50 | 1.50 |" in told
    assert not any("failed" in line for line in told)


def test_expected_speed_of_a_cluster_is_that_of_the_docs() -> None:
    pytest.importorskip("ray")
    told = subprocess.run([sys.executable, BENCHMARKS / "cluster.py", "expect"], capture_output=True, text=True, check=True)
    simulated = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.stdout.splitlines()[2:]]
    times = {(seeds, workers): (first, plain) for seeds, workers, first, _, plain in simulated}
    page = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text()
    for workers in ("8", "64", "1,000"):
        one, (three, plain) = times["1", workers][0], times["3", workers]
        assert f"| {workers} | {one} | {three} | {plain} |" in page


# ---- stream.py


def test_a_stream_in_several_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All see the same batches; finished streams are not run again."""
    small = ("--batch", "8", "--batches", "6", "--threads", "1", "--severity", "3", "--json", str(tmp_path / "lines.jsonl"))
    settings = ("--setting", "float32", "--setting", "int8,3", "--setting", 'float32,method="none",center=true')
    run("stream", monkeypatch, *small, *settings, "--corruption", "fog", "--then", "contrast")
    (line,) = (tmp_path / "lines.jsonl").read_text().splitlines()
    always, sparse, forward_only = json.loads(line)["results"]
    assert (always["share"], always["noticed"], forward_only["share"], forward_only["noticed"]) == (1.0, 0, 0.0, None)
    assert (sparse["updated"], sparse["noticed"]) == ([0, 3], 0)
    for found in (always, sparse, forward_only):
        assert found["top1"] == pytest.approx(100 * sum(found["right"]) / 48)
        assert found["ratio"] > 0
    printed = capsys.readouterr().out
    assert "fog then contrast, seed 0:" in printed
    assert "all 1 streams:" in printed
    run("stream", monkeypatch, *small, *settings, "--corruption", "fog", "--then", "contrast")
    assert capsys.readouterr().out == printed
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 1
