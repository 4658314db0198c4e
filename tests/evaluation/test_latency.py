"""What is timed is the whole step; reduction is left out where it costs more time than it saves, and only there."""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import navia
from navia.bench.predictions import settings_of
from navia.cli.main import app
from navia.evaluation import latency
from navia.evaluation.latency import (
    SMALL_BATCH,
    ReductionTiming,
    faster_reducer,
    measure_steps,
    random_images,
    time_in_turn,
    time_reduction,
)
from navia.methods.base import METHODS
from navia.reduction import NoReduction, ToMe
from tests.families import build

DENSE = NoReduction()
STATIC = ("none", "lame")  # nothing changes from batch to batch: the step is the prediction


# ---- whole steps


def parameters_of(vit: navia.ViT) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in vit.named_parameters()}


@pytest.mark.parametrize("method", navia.list_methods())
def test_the_timed_step_has_the_update_of_every_method(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense and reduced, with predictions near the uniform one, as of weights that were never trained: methods of reliable
    images would use none. The given model does not change."""
    vit = build("timm plain")
    with torch.no_grad():
        vit.model.head.weight.mul_(0.01)  # type: ignore[union-attr, operator]
    before, made, after = parameters_of(vit), [], []
    usual = latency.time_in_turn

    def watched(steps: Any, rounds: int, *more: Any, **others: Any) -> list[list[float]]:
        """The states before the timed steps and after them."""
        made.extend({k: v.clone() for k, v in step.adapter.tensors().items()} for step in steps)
        seconds = usual(steps, rounds, *more, **others)
        after.extend(step.adapter.tensors() for step in steps)
        return seconds

    monkeypatch.setattr(latency, "time_in_turn", watched)
    dense, reduced = measure_steps(vit, [(method, {}, DENSE), (method, {}, ToMe(8))], batch_size=8, rounds=2)
    assert dense.updated == reduced.updated == (method not in STATIC)
    assert dense.of_dense_step == 1
    steps = 2 if method == "none" else 3  # and the dense forward
    assert len(made) == len(after) == steps
    moved = [any(not torch.equal(old[name], new[name]) for name in old) for old, new in zip(made, after, strict=True)]
    assert sum(moved) == (0 if method in STATIC else 2)
    assert all(value.isfinite().all() for tensors in after for value in tensors.values())
    for name, value in vit.named_parameters():
        assert torch.equal(value, before[name])
        assert value.grad is None


@pytest.mark.parametrize(
    ("method", "backwards"), [("none", 0), ("lame", 0), ("foa", 0), ("tent", 1), ("eata", 1), ("deyo", 1), ("navia", 1)]
)
def test_every_timed_call_has_its_backward_pass(method: str, backwards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, counts = METHODS.get(method), []
    usual = kind.backward
    monkeypatch.setattr(kind, "backward", lambda self, loss: (counts.append(1), usual(self, loss)))
    measure_steps(build("timm plain"), [(method, {}, ToMe(2))], batch_size=8, rounds=3)
    assert len(counts) == backwards * 2 * (1 + 1 + 3)  # reduced and dense: the first, the warm-up, three rounds


def test_a_step_that_makes_no_update_says_so() -> None:
    """The options that are given count, also where they keep no image."""
    kept, none_kept = measure_steps(
        build("timm plain"), [("sar", {}, DENSE), ("sar", {"margin": 0.0}, DENSE)], batch_size=8, rounds=1
    )
    assert (kept.updated, none_kept.updated) == (True, False)


def test_small_batches_are_timed_once_there_are_enough_images_for_an_update() -> None:
    (timing,) = measure_steps(build("timm plain"), [("navia", {}, ToMe(2))], batch_size=1, rounds=2)
    assert timing.updated


def test_every_round_starts_from_the_same_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a learning rate that would end in NaN within a few steps."""
    losses: list[float] = []
    usual = navia.Adapter.update
    monkeypatch.setattr(navia.Adapter, "update", lambda self, given: losses.append(usual(self, given).loss))
    options = {"lr": 1e3}
    measure_steps(build("timm plain"), [("align", options, DENSE)], batch_size=8, rounds=12)
    assert len(losses) == 14
    assert len(set(losses[1:])) == 1


def test_times_and_ratios_are_those_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds per image of 2 images; ratios within a round, so that a slow round changes none."""
    seconds = {"tent tome": [0.3, 0.6, 3.0], "none": [0.1, 0.2, 1.0], "tent": [0.4, 0.8, 4.0], "none tome": [0.1, 0.1, 0.1]}
    monkeypatch.setattr(latency, "time_in_turn", lambda *_, **__: list(seconds.values()))
    runs: list[latency.Run] = [("tent", {}, ToMe(2)), ("none", {}, ToMe(2)), ("tent", {}, NoReduction())]
    tent, none, dense = measure_steps(build("timm plain"), runs, batch_size=2, rounds=3)
    assert (tent.low, tent.ms_per_image, tent.high) == pytest.approx((225, 300, 900))
    assert (tent.of_dense_forward, tent.of_dense_step) == pytest.approx((3, 0.75))
    assert (none.of_dense_forward, none.of_dense_step) == pytest.approx((0.5, 0.5))
    assert (dense.of_dense_forward, dense.of_dense_step) == pytest.approx((4, 1))
    assert (tent.batch, tent.rounds, tent.device) == (2, 3, "cpu")


def test_the_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts once the device has finished what came before, and stops once it has finished the call."""
    events: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append(f"wait for {device}"))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: events.append("clock") or 0.0)
    calls, before = ([partial(events.append, f"{what} {n}") for n in "ab"] for what in ("call", "prepare"))
    time_in_turn(calls, 1, torch.device("cuda"), before=before)
    wait = "wait for cuda"
    one_round = [e for n in "ab" for e in (f"prepare {n}", wait, "clock", f"call {n}", wait, "clock")]
    assert events == ["clock", *one_round, "clock", *one_round]  # the warm-up and one round


def test_the_warm_up_lasts_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def call() -> None:
        now[0] += 0.5

    monkeypatch.setattr(latency.time, "perf_counter", lambda: now[0])
    assert time_in_turn([call], 3, warm_up=1.9) == [[0.5, 0.5, 0.5]]
    assert now[0] == 0.5 * (4 + 3)


def test_images_are_equal_every_time_and_draw_no_global_random_numbers() -> None:
    vit, state = build("timm plain"), torch.get_rng_state()
    assert torch.equal(random_images(vit, 3), random_images(vit, 3))
    assert not torch.equal(random_images(vit, 3), random_images(vit, 3, seed=1))
    assert torch.equal(torch.get_rng_state(), state)


# ---- whether reduction saves time


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
