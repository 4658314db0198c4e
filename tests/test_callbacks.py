"""Callbacks: every step is reported once; failures do not stop adaptation; loggers' files are read back."""

import json
import logging
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import navia
from navia.adaptation.step import Step
from navia.errors import NaviaError, SpecError
from navia.integrations.loggers import MLflow, TensorBoard, WandB, from_spec, step_metrics
from tests.families import build, images_for
from tests.test_cli import invoke
from tests.test_cli_run import run_arguments

pytestmark = pytest.mark.slow


class Remember(navia.Callback):
    def __init__(self) -> None:
        self.adapter: navia.Adapter | None = None
        self.steps: list[Step] = []

    def start(self, adapter: navia.Adapter) -> None:
        self.adapter = adapter

    def step(self, step: Step) -> None:
        self.steps.append(step)


class Fails(navia.Callback):
    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0

    def step(self, step: Step) -> None:
        self.calls += 1
        self.left -= 1
        if self.left >= 0:
            raise ConnectionError("no route to the server")


def adapted(callbacks: list[navia.Callback], steps: int = 3, **options: Any) -> tuple[navia.Adapter, list[torch.Tensor]]:
    vit = build("timm plain")
    adapter = navia.adapt(vit, "tent", "tome:2", callbacks=callbacks, **options)
    return adapter, [adapter(images_for(vit, 4, seed)) for seed in range(steps)]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself would draw from a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


# ---- the protocol


def test_a_callback_gets_every_step_as_the_adapter_reports_it() -> None:
    remember = Remember()
    adapter, _ = adapted([remember])
    assert remember.adapter is adapter
    assert [step.number for step in remember.steps] == [1, 2, 3]
    assert remember.steps[-1] is adapter.last
    adapter.predict(images_for(adapter.source_vit))
    assert len(remember.steps) == 3  # nothing adapted, nothing to report


def test_a_callback_that_fails_three_times_is_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, undisturbed = adapted([], steps=5)
    broken, remember = Fails(times=99), Remember()
    with caplog.at_level(logging.WARNING, "navia.callbacks"):
        adapter, answers = adapted([broken, remember], steps=5)
    assert all(torch.equal(a, b) for a, b in zip(answers, undisturbed, strict=True))
    assert adapter.steps == len(remember.steps) == 5
    assert broken.calls == 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "callback Fails failed, adaptation continues: ConnectionError: no route to the server"
    assert messages[-1] == "callback Fails failed 3 times in a row and is removed"


def test_failures_that_pass_are_forgiven() -> None:
    flaky = Fails(times=2)
    adapted([flaky], steps=5)
    assert flaky.calls == 5


def test_ctrl_c_in_a_callback_still_stops_the_program() -> None:
    class Interrupted(navia.Callback):
        def step(self, step: Step) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapted([Interrupted()])


def test_metrics_leave_out_what_a_method_does_not_have() -> None:
    step = Step(3, 4, 0.5, None, None, 0, "the loss is not finite; restored the source", None, 0.1, 0.2)
    assert step_metrics(step) == {
        "navia/entropy": 0.5, "navia/images": 4.0, "navia/kept": 0.0, "navia/guard": 1.0,
        "navia/seconds_predict": 0.1, "navia/seconds_update": 0.2,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["tensorboard", "tensorboard:", "comet:project", ""])
def test_unknown_logs_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(SpecError, match="a log is tensorboard:DIR, wandb:PROJECT or mlflow:URI"):
        from_spec(text)


@pytest.mark.parametrize(
    ("module", "made", "advice"),
    [
        ("tensorboard", "TensorBoard('logs')", "pip install 'navia[log]'"),
        ("wandb", "WandB('project')", "pip install wandb"),
        ("mlflow", "MLflow('file:///nowhere')", "pip install mlflow"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(module: str, made: str, advice: str) -> None:
    """In an interpreter where the import fails as if nothing were installed."""
    code = f"import sys; sys.modules[{module!r}] = None\nfrom navia.integrations.loggers import *\n{made}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("navia.errors.NaviaError"), done.stderr
    assert advice in done.stderr.splitlines()[-1]


def test_importing_the_callbacks_loads_no_tracker() -> None:
    trackers = ("torch", "tensorboard", "wandb", "mlflow")
    code = f"import sys, navia.integrations.loggers; print([m for m in {trackers} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- TensorBoard


def test_tensorboard_draws_what_the_steps_said(tmp_path: Path) -> None:
    remember = Remember()
    with TensorBoard(tmp_path / "logs") as board:
        adapted([board, remember], steps=4)
    found = scalars(tmp_path / "logs")
    assert found["navia/entropy"] == [(s.number, pytest.approx(s.entropy, rel=1e-6)) for s in remember.steps]
    assert found["navia/loss"] == [(s.number, pytest.approx(s.loss, rel=1e-6)) for s in remember.steps]
    assert found["navia/kept"] == [(i, 4.0) for i in range(1, 5)]
    assert "navia/discrepancy" not in found  # tent has none


def test_tensorboard_goes_on_after_a_reset_of_the_adapter(tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as board:
        adapter, _ = adapted([board], steps=3)
        adapter.reset()
        adapter(images_for(adapter.source_vit, 4))
        adapter(images_for(adapter.source_vit, 4))
    assert [place for place, _ in scalars(tmp_path)["navia/entropy"]] == [1, 2, 3, 4, 5]


def test_tensorboard_shows_a_guards_verdict(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoard(tmp_path) as board:
        adapter, _ = adapted([board], steps=1)
        with torch.no_grad():
            next(iter(adapter.method.parameters.values())).fill_(float("nan"))
        adapter(images_for(adapter.source_vit, 4))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert scalars(tmp_path)["navia/guard"] == [(1, 0.0), (2, 1.0)]
    (verdict,) = events.Tensors("navia/guard/text_summary")
    assert b"not finite" in verdict.tensor_proto.string_val[0]
    (settings,) = events.Tensors("navia/settings/text_summary")
    assert b"method: tent" in settings.tensor_proto.string_val[0]


def test_what_nobody_finished_is_written_when_the_program_ends(tmp_path: Path) -> None:
    code = (
        "import navia; from navia.integrations.loggers import TensorBoard; from tests.families import build, images_for\n"
        f"vit = build('timm plain'); adapter = navia.adapt(vit, 'tent', callbacks=[TensorBoard({str(tmp_path)!r})])\n"
        "adapter(images_for(vit))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], env=environment)
    assert len(scalars(tmp_path)["navia/entropy"]) == 1


def test_tensorboard_refuses_a_folder_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot write TensorBoard's files"):
        adapted([TensorBoard(tmp_path / "file" / "logs")])


def test_run_logs_the_whole_stream_and_a_second_run_into_the_same_folder_replaces_it(
    clothes_by_class: Path, clothes: Path, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    shifts = ("--corruption", "contrast", "--corruption", "brightness", "--limit", "32", "-b", "16")
    shifts += ("--source", str(clothes), "--log", f"tensorboard:{logs}")
    for out in ("first.csv", "second.csv"):
        result = invoke(*run_arguments(clothes_by_class, tmp_path / out, *shifts))
        assert result.exit_code == 0, result.output
    found = scalars(logs)
    assert [place for place, _ in found["navia/discrepancy"]] == [1, 2, 3, 4]  # two batches of each shift, reset between
    assert {value for _, value in found["navia/images"]} == {16.0}


def test_run_refuses_an_unknown_log_before_it_starts(clothes_by_class: Path, tmp_path: Path) -> None:
    result = invoke(*run_arguments(clothes_by_class, tmp_path / "a.csv", "--log", "paper:trail"))
    assert isinstance(result.exception, SpecError)
    assert not (tmp_path / "a.csv").exists()


# ---- MLflow and Weights & Biases, without a server


def test_mlflow_keeps_metrics_and_settings_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    remember = Remember()
    uri = (tmp_path / "mlruns").as_uri()
    with MLflow(uri) as flow:
        adapted([flow, remember])
        client, run_id = flow.client, flow.run_id
        assert run_id is not None
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "tent"
    assert run.data.params["reduce"] == "tome:2"
    history = client.get_metric_history(run_id, "navia/entropy")
    assert [(m.step, m.value) for m in history] == [(s.number, s.entropy) for s in remember.steps]


def test_weights_and_biases_writes_offline_what_the_steps_said(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    remember = Remember()
    with WandB("navia-tests", mode="offline", dir=str(tmp_path)) as tracker:
        adapted([tracker, remember])
    (file,) = tmp_path.rglob("*.wandb")
    history = [r.history for r in map(Record.FromString, level_log(file)) if r.WhichOneof("record_type") == "history"]
    rows = [{"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row.item} for row in history]
    assert [row["navia/entropy"] for row in rows] == [pytest.approx(s.entropy) for s in remember.steps]
    assert [row["_step"] for row in rows] == [1, 2, 3]


def level_log(path: Path) -> list[bytes]:
    """Records of a W&B run file: seven bytes of header, then LevelDB's log format in blocks of 32 KiB."""
    data, place, records, begun = path.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no record starts in the last six bytes of a block
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        begun += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(begun)
            begun = b""
    return records


def test_mlflow_says_why_it_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(NaviaError, match=r"MLflow cannot write to 'file:.*MLFLOW_ALLOW_FILE_STORE"):
        adapted([MLflow((tmp_path / "mlruns").as_uri())])


def test_a_tracker_that_cannot_start_says_so_at_once(tmp_path: Path) -> None:
    class Refused(navia.Callback):
        def start(self, adapter: navia.Adapter) -> None:
            raise NaviaError("no key")

        def step(self, step: Step) -> None: ...

    with pytest.raises(NaviaError, match="no key"):
        adapted([Refused()])
