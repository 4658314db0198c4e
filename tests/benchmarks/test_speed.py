"""benchmarks/speed.py on a small model: its calls, rows and files. No time is asserted."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import navia
import speed
from cases import (
    DENSE,
    PLAIN_STEP,
    Case,
    Row,
    Setting,
    available_mib,
    check_case,
    compare,
    computer,
    fixed_options,
    load,
    runner,
    spread,
)
from memory import allocated, in_fresh_process, measure_memory, needed_mib
from navia.errors import SpecError
from navia.evaluation.latency import random_images
from speed import COLUMNS, cell_text

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


def test_library_and_navia_predict_the_same(vit: navia.ViT) -> None:
    images = random_images(vit, 2)
    theirs, ours = (runner(vit, case)(images) for case in (DENSE, Case("forward")))
    assert isinstance(ours, Tensor)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert not ours.requires_grad


def test_plain_tome_predicts_what_navia_does(vit: navia.ViT) -> None:
    """So that their times can be compared."""
    images = random_images(vit, 4)
    plain, ours = (runner(vit, Case("forward", name, "tome:16"))(images) for name in ("timm", "none"))
    assert isinstance(ours, Tensor)
    torch.testing.assert_close(plain, ours, atol=1e-4, rtol=1e-4)


def test_steps_without_an_update_and_plain_steps_run(vit: navia.ViT) -> None:
    images = random_images(vit, 8)
    made = runner(vit, Case("step", "navia", "tome:16", "int8", updated=False))
    made.warm_up(images)
    made(images)
    assert made.adapter is not None
    assert made.adapter.last is not None
    assert made.adapter.last.kept == 0
    assert isinstance(runner(vit, Case("step", "timm", "tome:16", "bfloat16"))(images), Tensor)
    assert isinstance(runner(vit, Case("forward", "timm", precision="int8"))(images), Tensor)


def test_step_of_the_library_leaves_the_model_unchanged(vit: navia.ViT) -> None:
    before = {name: value.clone() for name, value in vit.model.state_dict().items()}
    runner(vit, PLAIN_STEP)(random_images(vit, 2))
    assert all(torch.equal(value, before[name]) for name, value in vit.model.state_dict().items())
    assert all(p.grad is None for p in vit.model.parameters())


@pytest.mark.parametrize("method", navia.list_methods())
def test_methods_do_their_full_work_and_keep_their_parameters(vit: navia.ViT, method: str) -> None:
    """Also on random images every method that adapts makes an update."""
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


def test_fixed_options_are_options_of_the_method() -> None:
    assert fixed_options("navia") == {"lr": 0.0, "eta_delta": 0.0, "eta_delta_l": 0.0}
    assert fixed_options("lame") == {}


def test_unknown_cases_are_refused() -> None:
    check_case(STEP)
    for case in (Case("step", "nosuch"), Case("forward", reduce="nosuch:2"), Case("forward", "timm", "evit:8")):
        with pytest.raises(SpecError):
            check_case(case)


# ---- rows


def test_rows_of_every_case_and_the_dense_forward(rows: list[Row]) -> None:
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
    assert [cell_text(row, column) for column in COLUMNS if column.key == "ratio"] == ["1.00 [1.00, 1.00]"]
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


def test_killed_process_gives_none() -> None:
    assert in_fresh_process(_end) is None


def _end() -> None:
    import os

    os._exit(9)


def test_allocations_are_summed_also_when_freed() -> None:
    def call() -> None:
        for _ in range(3):
            torch.ones(2**18)  # 1 MiB

    assert allocated(call) == pytest.approx(3, abs=0.01)


def test_memory_is_estimated_without_allocating() -> None:
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
    assert ("avx512_vnni" in found["instructions"]) <= torch.cpu._is_vnni_supported()
    assert {"navia", "torch", "timm", "python"} <= found["versions"].keys()


# ---- the script


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["speed.py", "--threads", "1", *arguments])
    speed.main()


def names_in(path: Path) -> list[str]:
    return [row["name"] for row in json.loads(path.read_text())["rows"]]


def test_script_writes_table_json_and_plot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    run_script(monkeypatch, *small, "--json", str(tmp_path / "speed.json"), "--plot", str(tmp_path))
    assert names_in(tmp_path / "speed.json") == ["timm forward", "forward, tome:16", "timm step", "tent, tome:16"]
    assert {"versions", "cpu", "threads", "command"} <= json.loads((tmp_path / "speed.json").read_text()).keys()
    assert {path.name for path in tmp_path.iterdir()} == {"speed.json", "speed.png", "speed.svg"}
    assert b"tent, tome:16" in (tmp_path / "speed.svg").read_bytes()
    assert "tent, tome:16" in capsys.readouterr().out


def test_every_call_is_shown_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also with more reducers than are timed in one round."""
    reducers = [argument for r in range(1, speed.PER_ROUND + 1) for argument in ("--reduce", f"tome:{r}")]
    small = ("--model", "embedded", "--batch", "1", "--method", "none", *reducers, "--rounds", "1", "--no-memory")
    run_script(monkeypatch, *small, "--json", str(tmp_path / "speed.json"))
    names = names_in(tmp_path / "speed.json")
    assert names.count("timm step") == names.count("timm forward") == 1
    assert len(set(names)) == len(names) == 2 + 2 * speed.PER_ROUND


def test_zero_threads_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "--threads", "0")
    assert "threads and batch must be at least 1" in capsys.readouterr().err


def test_finished_rows_are_kept_after_an_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[Row]) -> None:
    def compare_once(setting: Setting, *_: Any) -> list[Row]:
        if setting.batch == 8:
            raise KeyboardInterrupt
        return rows

    monkeypatch.setattr(speed, "compare", compare_once)
    path = tmp_path / "rows" / "speed.json"
    small = ["--model", "embedded", "--batch", "2", "--batch", "8", "--no-memory"]
    run_script(monkeypatch, *small, "--json", str(path))
    assert names_in(path) == [row.name for row in rows]


@pytest.mark.parametrize("preset", ["quick", "methods", "sizes", "scale", "precision", "all"])
def test_presets_name_known_methods_and_reducers(preset: str) -> None:
    plans = speed.plans(speed.parser().parse_args(["--preset", preset]))
    assert plans
    for plan in plans:
        for case in plan.cases:
            check_case(case)
    steps = {case.method for plan in plans for case in plan.cases if case.call == "step"}
    assert preset not in ("methods", "all") or steps == {"timm", *navia.list_methods()}
