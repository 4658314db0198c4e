"""Reduction is left out where it costs more time than it saves, and only there."""

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

import navia
from navia.bench.predictions import settings_of
from navia.cli.main import app
from navia.evaluation.pays import SMALL_BATCH, Pays, pays, reducer_that_pays
from navia.reduction import NoReduction, ToMe


def test_both_ways_are_timed_and_the_quicker_one_wins() -> None:
    vit = navia.load("embedded")
    measured = pays(vit, "tome:16", batch=1, rounds=2)
    assert measured.with_ms > 0
    assert measured.without_ms > 0
    assert bool(measured) == (measured.with_ms <= measured.without_ms)
    chosen, again = reducer_that_pays(vit, "tome:16", 1)
    assert again is not None
    assert chosen == (ToMe(16) if again else NoReduction())


@pytest.mark.parametrize(("reduce", "batch"), [("tome:16", SMALL_BATCH + 1), ("none", 1), ("tome:0", 1)])
def test_nothing_is_measured_where_there_is_no_doubt(reduce: str, batch: int) -> None:
    chosen, measured = reducer_that_pays(navia.load("embedded"), reduce, batch)
    assert str(chosen) == reduce
    assert measured is None


def test_the_verdict_says_its_figures() -> None:
    assert "does not pay at batch 1: 3.0 ms with it, 2.0 ms without" in str(Pays("tome:8", 1, 3.0, 2.0))
    assert "tome:8 pays" in str(Pays("tome:8", 1, 2.0, 3.0))


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Pays, *more: str) -> str:
    monkeypatch.setattr("navia.evaluation.pays.pays", lambda *_, **__: verdict)
    command = ["run", "embedded", "-m", "embedded", "--method", "tent", "-r", "tome:16", "--batch-size", "1", "--limit", "3"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "p.csv"), *more])
    assert result.exit_code == 0, result.output
    return result.output


def test_run_leaves_a_reduction_out_that_does_not_pay_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower, quicker = Pays("tome:16", 1, 3.0, 2.0), Pays("tome:16", 1, 2.0, 3.0)
    assert "does not pay" in _run(tmp_path, monkeypatch, slower)
    assert settings_of(tmp_path / "p.csv")["reduce"] == "none"
    assert settings_of(tmp_path / "p.csv")["reduce asked"] == "tome:16"
    first = (tmp_path / "p.csv").read_text()
    _run(tmp_path, monkeypatch, quicker)  # the same run goes on: what was chosen stays
    assert (tmp_path / "p.csv").read_text() == first
    assert "does not pay" not in _run(tmp_path, monkeypatch, slower, "--keep-reduction", "--restart")
    assert settings_of(tmp_path / "p.csv")["reduce"] == "tome:16"
    with (tmp_path / "p.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
