"""The benchmark of speed on a small model: what it calls, what its rows hold, what it writes. No time is asserted."""

import importlib
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import navia
from navia.errors import InputError, SpecError
from navia.evaluation.computer import available_mib, computer
from navia.evaluation.latency import random_images
from navia.evaluation.memory import allocated, in_fresh_process, measure_memory, needed_mib
from navia.evaluation.speed import (
    DENSE,
    PLAIN_STEP,
    Case,
    Row,
    Setting,
    check_case,
    compare,
    load,
    runner,
    spread,
    still,
)
from navia.evaluation.trend import trend
from navia.report.speed import COLUMNS, cell_text, foa_texts, read_speed, stream_text

pytestmark = pytest.mark.slow

SMALL = Setting("embedded", 2)
STEP = Case("step", "navia", "tome:16")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare(SMALL, [Case("forward", reduce="tome:16"), PLAIN_STEP, STEP], rounds=2)


# ---- calls


@pytest.fixture(scope="module")
def vit() -> navia.ViT:
    return load(SMALL)


def test_library_and_navia_answer_alike(vit: navia.ViT) -> None:
    images = random_images(vit, 2)
    theirs, ours = (runner(vit, case)(images) for case in (DENSE, Case("forward")))
    assert isinstance(ours, Tensor)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert not ours.requires_grad


def test_the_librarys_step_leaves_the_model_alone(vit: navia.ViT) -> None:
    before = {name: value.clone() for name, value in vit.model.state_dict().items()}
    runner(vit, PLAIN_STEP)(random_images(vit, 2))
    assert all(torch.equal(value, before[name]) for name, value in vit.model.state_dict().items())
    assert all(p.grad is None for p in vit.model.parameters())


@pytest.mark.parametrize("method", navia.list_methods())
def test_methods_do_their_whole_work_and_end_where_they_began(vit: navia.ViT, method: str) -> None:
    """On images of which the model can make nothing, every method that updates at all does so."""
    made = runner(vit, Case("step", method, "tome:16"))
    assert made.adapter is not None
    before = {name: p.clone() for name, p in made.adapter.method.parameters.items()}
    images = random_images(vit, 4)
    made.warm_up(images)
    made(images)
    assert made.adapter.last is not None
    assert (made.adapter.last.kept > 0) == (method not in ("none", "lame"))
    for name, parameter in made.adapter.method.parameters.items():
        torch.testing.assert_close(parameter, before[name])


def test_options_that_keep_a_method_still_are_its_own() -> None:
    assert still("navia") == {"lr": 0.0, "eta_delta": 0.0, "eta_delta_l": 0.0}
    assert still("lame") == {}


def test_cases_that_do_not_exist_are_refused() -> None:
    check_case(STEP)
    for case in (Case("step", "nosuch"), Case("forward", reduce="nosuch:2"), Case("forward", "timm", "tome:8")):
        with pytest.raises(SpecError):
            check_case(case)


# ---- rows


def test_rows_hold_every_case_beside_the_dense_forward(rows: list[Row]) -> None:
    assert [row.name for row in rows] == ["timm forward", "forward, tome:16", "timm step", "navia, tome:16"]
    dense, merged, plain, step = rows
    assert dense.ratio == dense.best == dense.macs == dense.products == 1
    assert merged.macs == pytest.approx(navia.cost(load(SMALL), "tome:16").gmacs / navia.cost(load(SMALL)).gmacs)
    assert merged.products < merged.macs  # the last block is computed in part
    assert plain.products > 2 * dense.products
    assert merged.products < step.products < plain.products
    assert (dense.kept, step.kept, step.guard) == (None, 2, None)
    for row in rows:
        assert row.rounds == 2
        assert row.share == pytest.approx(row.gflops / row.gflops_bare)
        numbers = (row.ms_per_image, row.ratio, row.low, row.high, row.best, row.gflops, row.gflops_bare)
        assert all(math.isfinite(number) and number > 0 for number in numbers)


def test_rows_have_all_columns_of_the_table(rows: list[Row]) -> None:
    row = asdict(rows[0])
    assert [cell_text(row, column) for column in COLUMNS if column.key == "ratio"] == ["1.00"]
    assert all(cell_text(row, column) for column in COLUMNS)
    json.dumps(row, allow_nan=False)


def test_spread_compares_rounds() -> None:
    assert spread([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == (2.0, 2.0, 2.5)
    assert spread([3.0], [2.0]) == (1.5, 1.5, 1.5)


# ---- memory


def test_memory_is_measured_in_another_process() -> None:
    found = in_fresh_process(measure_memory, Setting("embedded", 8), STEP, 1)
    assert found is not None
    peak, total = found
    assert 0 <= peak < 4000
    assert total > 10


def test_a_process_that_is_ended_gives_nothing() -> None:
    assert in_fresh_process(_end) is None


def _end() -> None:
    import os

    os._exit(9)


def test_allocations_are_summed_however_short_they_live() -> None:
    def call() -> None:
        for _ in range(3):
            torch.ones(2**18)  # 1 MiB

    assert allocated(call) == pytest.approx(3, abs=0.01)


def test_needs_are_told_before_anything_is_made() -> None:
    base = Setting("vit_base_patch16_224", 64)
    step = needed_mib(base, Case("step", "align"))
    assert 4000 < step < 8000  # measured: 5,060
    assert needed_mib(base, DENSE) < step / 10
    assert needed_mib(base, PLAIN_STEP) == step
    for method in ("none", "lame", "foa"):  # these make no backward pass
        assert needed_mib(base, Case("step", method)) == needed_mib(base, DENSE)
    assert (available_mib() or 1) > 0


def test_the_computer_is_named() -> None:
    found = computer()
    assert found["cpu"]
    assert found["threads"] == torch.get_num_threads()
    assert {"navia", "torch", "timm", "python"} <= found["versions"].keys()


# ---- trend


def test_a_trend_has_both_ends_and_a_slope() -> None:
    steps = list(range(100, 2100, 100))
    found = trend(steps, [50.0, 50.0] + [10 + step / 500 for step in steps[2:]])  # the first tenth is another matter
    assert found.first == 50
    assert found.last == pytest.approx(10 + 1950 / 500)
    assert found.slope == pytest.approx(2)
    with pytest.raises(InputError, match="at least 10 values"):
        trend([1], [1.0])


# ---- the script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("speed")


def run_script(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["speed.py", "--threads", "1", *arguments])
    script.main()


def test_the_script_writes_table_json_and_plot(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        "--model",
        "embedded",
        "--batch",
        "2",
        "--method",
        "tent",
        "--reduce",
        "tome:16",
        "--rounds",
        "1",
        "--no-memory",
    ]
    run_script(script, monkeypatch, *small, "--json", str(tmp_path / "speed.json"), "--plot", str(tmp_path))
    found = read_speed(tmp_path / "speed.json")
    assert [row["name"] for row in found["rows"]] == ["timm forward", "forward, tome:16", "timm step", "tent, tome:16"]
    assert {"versions", "cpu", "threads", "command"} <= found.keys()
    assert {path.name for path in tmp_path.iterdir()} == {"speed.json", "speed.png", "speed.svg"}
    assert "tent, tome:16" in capsys.readouterr().out


def test_every_call_is_shown_once_however_many_there_are(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """More reducers than are timed together: the library's step comes with the second lot, its forward with both."""
    reducers = [argument for r in range(1, script.TOGETHER + 1) for argument in ("--reduce", f"tome:{r}")]
    small = ("--model", "embedded", "--batch", "1", "--method", "none", *reducers, "--rounds", "1", "--no-memory")
    run_script(script, monkeypatch, *small, "--json", str(tmp_path / "speed.json"))
    names = [row["name"] for row in read_speed(tmp_path / "speed.json")["rows"]]
    assert names.count("timm step") == names.count("timm forward") == 1
    assert len(set(names)) == len(names) == 2 + 2 * script.TOGETHER


def test_no_threads_are_refused_in_one_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_script(script, monkeypatch, "--threads", "0")
    assert "threads, images and batch must be at least 1" in capsys.readouterr().err


def test_what_was_finished_stays_when_it_is_stopped(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Row]
) -> None:
    def compare_once(setting: Setting, *_: Any) -> list[Row]:
        if setting.batch == 8:
            raise KeyboardInterrupt
        return rows

    monkeypatch.setattr(script, "compare", compare_once)
    path = tmp_path / "rows" / "speed.json"
    run_script(
        script, monkeypatch, "--model", "embedded", "--batch", "2", "--batch", "8", "--no-memory", "--json", str(path)
    )
    assert [row["name"] for row in read_speed(path)["rows"]] == [row.name for row in rows]


@pytest.mark.parametrize("preset", ["quick", "methods", "sizes", "scale", "all"])
def test_presets_name_what_exists(script: ModuleType, preset: str) -> None:
    plans = script.plans(script.parser().parse_args(["--preset", preset]))
    assert plans
    for plan in plans:
        for case in plan.cases:
            check_case(case)
    steps = {case.method for plan in plans for case in plan.cases if case.call == "step"}
    assert preset not in ("methods", "all") or steps == {"timm", *navia.list_methods()}


def test_a_short_stream_has_a_trend(script: ModuleType) -> None:
    found = script.speed_stream.long_stream(10, print)
    assert found["steps"] == 10
    assert found["resident_mib"]["last"] > 50
    assert "10 steps" in stream_text(found)


def test_a_stream_that_is_stopped_keeps_what_it_has(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([100.0] * 12)

    def resident() -> float:
        value = next(ends, None)
        if value is None:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(script.speed_stream, "resident_mib", resident)
    found = script.speed_stream.long_stream(20, print)
    assert found["steps"] == 12
    assert found["resident_mib"] == {"first": 100.0, "last": 100.0, "slope": 0.0}


def test_both_searches_of_foa_are_timed(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cma = pytest.importorskip("cma")
    ask = cma.CMAEvolutionStrategy.ask
    monkeypatch.setattr(script.speed_foa.deit, "WEIGHTS", tmp_path / "not there")
    full, diagonal = script.speed_foa.compare(8, print)
    assert (full["diagonal"], diagonal["diagonal"]) == (False, True)
    for row in (full, diagonal):
        assert 0 < row["search_share"] < 1
        assert 0 <= row["top1"] <= 1
        assert foa_texts(row)[0].startswith("embedded, tome:8")
    assert cma.CMAEvolutionStrategy.ask is ask
