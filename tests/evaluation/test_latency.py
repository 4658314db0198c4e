"""Reduction is left out where it costs more time than it saves, and only there."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

import navia
from navia.bench.predictions import settings_of
from navia.cli.main import app
from navia.evaluation.latency import SMALL_BATCH, ReductionTiming, faster_reducer, time_reduction
from navia.reduction import NoReduction, ToMe


def test_both_ways_are_timed_and_the_faster_one_is_chosen() -> None:
    vit = navia.load("embedded")
    measured = time_reduction(vit, "tome:16", batch_size=1, rounds=2)
    assert measured.reduced_ms > 0
    assert measured.dense_ms > 0
    assert measured.saves_time == (measured.reduced_ms <= measured.dense_ms)
    chosen, again = faster_reducer(vit, "tome:16", 1)
    assert again is not None
    assert chosen == (ToMe(16) if again.saves_time else NoReduction())


@pytest.mark.parametrize(("reduce", "batch"), [("tome:16", SMALL_BATCH + 1), ("none", 1), ("tome:0", 1)])
def test_nothing_is_timed_where_the_result_is_known(reduce: str, batch: int) -> None:
    chosen, measured = faster_reducer(navia.load("embedded"), reduce, batch)
    assert str(chosen) == reduce
    assert measured is None


def test_text_has_both_times() -> None:
    slower = "does not save time at batch 1: 3.0 ms with it, 2.0 without"
    assert slower in str(ReductionTiming("tome:8", 1, 3.0, 2.0))
    assert "tome:8 saves time" in str(ReductionTiming("tome:8", 1, 2.0, 3.0))


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: ReductionTiming, *more: str) -> str:
    monkeypatch.setattr("navia.evaluation.latency.time_reduction", lambda *_, **__: timing)
    command = ["run", "embedded", "-m", "embedded", "--method", "tent", "-r", "tome:16", "--batch", "1", "--limit", "3"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "p.csv"), *more])
    assert result.exit_code == 0, result.output
    return result.output


def test_run_leaves_out_a_reduction_that_saves_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower, faster = ReductionTiming("tome:16", 1, 3.0, 2.0), ReductionTiming("tome:16", 1, 2.0, 3.0)
    assert "does not save time" in _run(tmp_path, monkeypatch, slower)
    assert settings_of(tmp_path / "p.csv")["reduce"] == "none"
    assert settings_of(tmp_path / "p.csv")["reduce asked"] == "tome:16"
    first = (tmp_path / "p.csv").read_text()
    _run(tmp_path, monkeypatch, faster)  # a continued run keeps its choice
    assert (tmp_path / "p.csv").read_text() == first
    assert "does not save time" not in _run(tmp_path, monkeypatch, slower, "--keep-reduction", "--restart")
    assert settings_of(tmp_path / "p.csv")["reduce"] == "tome:16"
    with (tmp_path / "p.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
