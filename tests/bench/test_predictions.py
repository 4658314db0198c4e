"""Answers on disk: the same bytes whether a run was disturbed or not, and nothing foreign overwritten."""

import contextlib
import dataclasses
import functools
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import navia
from navia.bench.predictions import Predictions
from navia.bench.run import predict_and_adapt, run_stream
from navia.data.loader import Loader
from navia.data.sources import ArrayImages, Domain
from navia.data.streams import make_stream
from navia.errors import InputError
from navia.evaluation.metrics import ece, top_k

pytestmark = pytest.mark.slow

NAMES = [f"class {i}" for i in range(10)]


@pytest.fixture
def stream_pixels(golden_inputs: dict[str, np.ndarray]) -> ArrayImages:
    """Stream A of the golden inputs as pictures, with their labels."""
    levels = (golden_inputs["x_A"].reshape(-1, 28, 28) * 0.3530 + 0.2860) * 255
    return ArrayImages(levels.round().clip(0, 255).astype(np.uint8), [int(y) for y in golden_inputs["y_A"].reshape(-1)], "A")


@pytest.fixture
def source(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> navia.SourceStatistics:
    images = torch.from_numpy(golden_inputs["source_images"])
    return navia.SourceStatistics.measure(golden_vit, images, "tome:2", fisher=True, batch_size=32)


def loader(vit: navia.ViT, pixels: ArrayImages, batch: int = 32) -> Loader:
    domains = [Domain("clean", pixels), Domain("dark", pixels, "contrast", 2)]
    return Loader(make_stream(domains, seed=1, limit=96), vit.preprocessing, batch)


class StoppedError(Exception):
    pass


def write_all(path: Path, adapter: navia.Adapter, stream: Loader, stop_after: int | None = None) -> Predictions:
    """The whole stream, or as a killed process would leave it: rows after the last saved state, nothing closed in order."""
    predictions = Predictions(path, {"method": "m"}, NAMES, every=1e9).begin(adapter)
    stream.start = predictions.progress.batches
    for count, answered in enumerate(run_stream(adapter, stream), 1):
        predictions.add(answered)
        if count == stop_after:
            predictions.save()
        if stop_after is not None and count == stop_after + 1:
            predictions.file.flush()
            predictions.close()
            raise StoppedError
    predictions.finish()
    predictions.close()
    return predictions


@pytest.mark.parametrize("method", navia.list_methods())
def test_a_killed_run_goes_on_to_the_same_bytes(
    method: str, golden_vit: navia.ViT, source: navia.SourceStatistics, stream_pixels: ArrayImages, tmp_path: Path
) -> None:
    options = {"population": 4} if method == "foa" else {}

    def fresh() -> navia.Adapter:
        return navia.adapt(golden_vit, method, "tome:2", source, **options)

    whole = tmp_path / "whole.csv"
    write_all(whole, fresh(), loader(golden_vit, stream_pixels))
    disturbed = tmp_path / "disturbed.csv"
    with pytest.raises(StoppedError):
        write_all(disturbed, fresh(), loader(golden_vit, stream_pixels), stop_after=2)
    assert disturbed.read_bytes() != whole.read_bytes()
    assert len(disturbed.read_bytes().splitlines()) == 1 + 3 * 32
    write_all(disturbed, fresh(), loader(golden_vit, stream_pixels))
    assert disturbed.read_bytes() == whole.read_bytes()


@pytest.fixture
def finished(
    golden_vit: navia.ViT, source: navia.SourceStatistics, stream_pixels: ArrayImages, tmp_path: Path
) -> Predictions:
    adapter = navia.adapt(golden_vit, "tent", "tome:2")
    return write_all(tmp_path / "p.csv", adapter, loader(golden_vit, stream_pixels))


def test_scores_are_those_of_the_logits(golden_vit: navia.ViT, stream_pixels: ArrayImages, tmp_path: Path) -> None:
    adapter = navia.adapt(golden_vit, "none")
    stream = loader(golden_vit, stream_pixels)
    answers = list(run_stream(navia.adapt(golden_vit, "none"), stream))
    logits, labels = torch.cat([a.logits for a in answers]), torch.cat([a.batch.labels for a in answers])
    predictions = Predictions(tmp_path / "p.csv", {}, None).begin(adapter)
    for answered in answers:
        predictions.add(answered)
    scores = predictions.finish()
    predictions.close()
    assert list(scores) == ["clean", "dark", ""]
    judged = scores[""].judged
    assert judged is not None
    assert judged.top1 == pytest.approx(top_k(logits, labels))
    assert judged.ece == pytest.approx(ece(logits, labels), abs=1e-5)
    half = scores["clean"].judged
    assert half is not None
    assert half.top1 == pytest.approx(top_k(logits[:96], labels[:96]))
    assert half.low < half.top1 < half.high


def test_unlabelled_pictures_have_answers_and_no_accuracy(
    golden_vit: navia.ViT, stream_pixels: ArrayImages, tmp_path: Path
) -> None:
    adapter = navia.adapt(golden_vit, "none")
    predictions = Predictions(tmp_path / "p.csv", {}, None).begin(adapter)
    for answered in run_stream(adapter, loader(golden_vit, ArrayImages(stream_pixels.images))):
        predictions.add(answered)
    scores = predictions.finish()
    predictions.close()
    assert all(score.judged is None for score in scores.values())
    assert scores[""].images == 192


def test_a_finished_run_is_not_made_again(finished: Predictions, golden_vit: navia.ViT, stream_pixels: ArrayImages) -> None:
    before = finished.path.read_bytes()
    again = Predictions(finished.path, {"method": "m"}, NAMES).begin(navia.adapt(golden_vit, "tent", "tome:2"))
    assert again.progress.finished
    stream = loader(golden_vit, stream_pixels)
    stream.start = again.progress.batches
    assert list(stream) == []
    again.close()
    assert finished.path.read_bytes() == before


def test_other_settings_and_foreign_files_are_refused(finished: Predictions, golden_vit: navia.ViT) -> None:
    adapter = navia.adapt(golden_vit, "tent", "tome:2")
    before = finished.path.read_bytes()
    with pytest.raises(InputError, match=r"made with method 'm' \(now 'other'\)"):
        Predictions(finished.path, {"method": "other"}, NAMES).begin(adapter)
    finished.state_path.write_bytes(finished.state_path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        Predictions(finished.path, {"method": "m"}, NAMES).begin(adapter)
    finished.state_path.unlink()
    with pytest.raises(InputError, match="without a state to continue from"):
        Predictions(finished.path, {"method": "m"}, NAMES).begin(adapter)
    assert finished.path.read_bytes() == before
    finished.path.write_text("my own table\n")
    with pytest.raises(InputError, match="without a state to continue from"):
        Predictions(finished.path, {"method": "m"}, NAMES).begin(adapter)
    assert finished.path.read_text() == "my own table\n"
    Predictions(finished.path, {"method": "m"}, NAMES).begin(adapter, restart=True).close()
    assert finished.path.read_text().startswith("path,label,name")


def test_a_file_that_lost_rows_is_refused(finished: Predictions, golden_vit: navia.ViT) -> None:
    finished.path.write_bytes(finished.path.read_bytes()[:-200])
    with pytest.raises(InputError, match="shorter"):
        Predictions(finished.path, {"method": "m"}, NAMES).begin(navia.adapt(golden_vit, "tent", "tome:2"))


def test_a_place_that_cannot_be_written_is_named(golden_vit: navia.ViT, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*p\.csv"):
        Predictions(tmp_path / "file" / "p.csv", {}, None).begin(navia.adapt(golden_vit, "none"))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files of this process cannot grow past 8 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_what_was_answered(
    golden_vit: navia.ViT, stream_pixels: ArrayImages, tmp_path: Path, small_disk: None
) -> None:
    adapter = navia.adapt(golden_vit, "none")
    predictions = Predictions(tmp_path / "p.csv", {}, NAMES, every=1e9).begin(adapter)
    with pytest.raises(InputError, match=r"cannot write .*File too large.* kept"):  # noqa: PT012
        for answered in run_stream(adapter, loader(golden_vit, stream_pixels)):
            predictions.add(answered)
            predictions.save()
    with contextlib.suppress(OSError):  # there is still no room for what it holds back
        predictions.close()
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert len(lines) > 32


def take_all(path: Path, adapter: navia.Adapter, stream: Loader) -> None:
    with Predictions(path, {"method": "m"}, NAMES, every=1e9).begin(adapter) as predictions:
        stream.start = predictions.progress.batches
        for batch in stream:
            predictions.take(functools.partial(predict_and_adapt, adapter, batch))
        predictions.finish()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_within_a_step_cuts_nothing_in_two(
    times: int, golden_vit: navia.ViT, stream_pixels: ArrayImages, tmp_path: Path
) -> None:
    """Once: the batch is finished first. Twice: at once, and the half-made batch leaves no trace in the state."""

    def fresh() -> navia.Adapter:
        return navia.adapt(golden_vit, "tent", "tome:2", lr=0.05)

    whole, disturbed = tmp_path / "whole.csv", tmp_path / "disturbed.csv"
    take_all(whole, fresh(), loader(golden_vit, stream_pixels))
    adapter, steps = fresh(), []

    def interrupt(*_: Any) -> None:
        """The parameters have moved, and the rows of the batch are not yet written."""
        steps.append(1)
        if len(steps) == 2:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    assert adapter.method.optimizer is not None
    adapter.method.optimizer.register_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        take_all(disturbed, adapter, loader(golden_vit, stream_pixels))
    assert len(steps) == 2
    kept = torch.load(disturbed.with_name("disturbed.csv.state"), weights_only=True)
    assert kept["progress"]["batches"] == (2 if times == 1 else 0)
    take_all(disturbed, fresh(), loader(golden_vit, stream_pixels))
    assert disturbed.read_bytes() == whole.read_bytes()
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_rows_that_could_not_be_written_leave_no_state_behind_that_is_ahead_of_them(
    golden_vit: navia.ViT, stream_pixels: ArrayImages, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    take_all(whole, navia.adapt(golden_vit, "tent"), loader(golden_vit, stream_pixels))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    adapter = navia.adapt(golden_vit, "tent")

    def until_the_disk_is_full(predictions: Predictions) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            for batch in loader(golden_vit, stream_pixels):
                predictions.take(functools.partial(predict_and_adapt, adapter, batch))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    predictions = Predictions(cut, {"method": "m"}, NAMES, every=1e9).begin(adapter)
    with pytest.raises(InputError, match="File too large"), predictions:
        until_the_disk_is_full(predictions)
    take_all(cut, navia.adapt(golden_vit, "tent"), loader(golden_vit, stream_pixels))
    assert cut.read_bytes() == whole.read_bytes()


def test_two_runs_into_one_file_are_refused(golden_vit: navia.ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("navia.bench.predictions.LOCK_TIMEOUT", 0.1)
    adapter = navia.adapt(golden_vit, "none")
    with Predictions(tmp_path / "p.csv", {}, None).begin(adapter):
        before = (tmp_path / "p.csv").read_bytes()
        with pytest.raises(InputError, match=r"another run writes to .*p\.csv"):
            Predictions(tmp_path / "p.csv", {}, None).begin(adapter, restart=True)
        assert (tmp_path / "p.csv").read_bytes() == before


def test_a_finished_run_that_gets_more_pictures_saves_them_when_it_is_stopped(
    finished: Predictions, golden_vit: navia.ViT, stream_pixels: ArrayImages
) -> None:
    adapter = navia.adapt(golden_vit, "tent", "tome:2")
    again = Predictions(finished.path, {"method": "m"}, NAMES, every=1e9).begin(adapter)
    done = again.progress.batches
    more = next(iter(loader(golden_vit, stream_pixels)))

    def stopped_after_one_more() -> None:
        with again:
            again.add(predict_and_adapt(adapter, dataclasses.replace(more, number=done, reset=False)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_after_one_more()
    kept = torch.load(finished.state_path, weights_only=True)["progress"]
    assert (kept["batches"], kept["finished"]) == (done + 1, False)
