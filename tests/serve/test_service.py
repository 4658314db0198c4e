"""The service without HTTP: predictions, the adaptation in the background, and failures of both."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import navia
from navia.adaptation.delta import DeltaError, read_delta
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain
from navia.errors import InputError
from navia.io import write_tensors
from navia.models.device import use_threads
from navia.serve.adaptation_worker import Checkpoints
from navia.serve.app import _result
from navia.serve.predictor import AdaptedState, BusyError, RequestOutput
from navia.serve.service import Service
from navia.serve.settings import Batching, Limits, ServiceSettings
from tests.serve.server import full_disk, until

VIT = navia.load("embedded")
BATCHING = Batching(batch_size=4, batch_timeout=0.001, adapt_batch=8, adapt_wait=1000)


@pytest.fixture(scope="module")
def source() -> navia.SourceStatistics:
    clean = Domain("clean", source_images())
    return navia.SourceStatistics.measure(VIT, clean.tensors(range(64), VIT.preprocessing), "tome:24")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return Domain("shifted", unseen_images(), "contrast", 2).tensors(range(48), VIT.preprocessing)


@pytest.fixture
def make(source: navia.SourceStatistics) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def build(
        method: str = "navia",
        batching: Batching = BATCHING,
        state: Path | None = None,
        every: int = 2,
        queue: int = 256,
        seconds: float = 30.0,
        **options: object,
    ) -> Service:
        limits = Limits(queue_size=queue, timeout=seconds)
        settings = ServiceSettings(batching=batching, limits=limits, keep_images=3, checkpoint_every=every)
        made.append(Service(VIT, method, "tome:24", source, settings=settings, state=state, **options))
        made[-1].start()
        return made[-1]

    yield build
    for service in made:
        service.stop()


def predict(service: Service, images: Tensor) -> Tensor:
    return service.predictor.submit(images).result(timeout=60).probabilities


# ---- answers


def test_answers_are_those_of_the_adapter(
    make: Callable[..., Service], source: navia.SourceStatistics, images: Tensor
) -> None:
    """Step by step: the first batch by the model as it came, the next by what one step of the adapter makes of it."""
    service = make()
    alone = navia.adapt(VIT, "navia", "tome:24", source)
    torch.testing.assert_close(predict(service, images[:8]), alone.predict(images[:8]).softmax(dim=1), atol=1e-5, rtol=1e-4)
    until(lambda: service.predictor.step == 1)
    alone(images[:8])
    torch.testing.assert_close(
        predict(service, images[8:12]), alone.predict(images[8:12]).softmax(dim=1), atol=1e-5, rtol=1e-4
    )


def test_requests_are_answered_together_and_each_gets_its_own(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none", batching=Batching(batch_size=8, batch_timeout=60))
    futures = [service.predictor.submit(images[i : i + 1]) for i in range(8)]
    outputs = [future.result(timeout=60) for future in futures]
    assert len({output.predict_seconds for output in outputs}) == 1  # one batch
    expected = navia.adapt(VIT, "none", "tome:24").predict(images[:8]).softmax(dim=1)
    torch.testing.assert_close(torch.cat([output.probabilities for output in outputs]), expected, atol=1e-5, rtol=1e-4)


def test_a_request_larger_than_a_batch_is_answered_whole(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none")
    expected = navia.adapt(VIT, "none", "tome:24").predict(images[:11]).softmax(dim=1)
    torch.testing.assert_close(predict(service, images[:11]), expected, atol=1e-5, rtol=1e-4)


def test_a_full_queue_refuses(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none", queue=4)
    with hold(service):
        service.predictor.submit(images[:1])
        until(lambda: service.predictor.waiting == 0)  # taken: it is being held
        service.predictor.submit(images[:4])
        with pytest.raises(BusyError, match="4 images are waiting"):
            service.predictor.submit(images[:1])


def test_what_nobody_waits_for_is_not_answered(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none")
    with hold(service):
        service.predictor.submit(images[:1])
        until(lambda: service.predictor.waiting == 0)
        late = service.predictor.submit(images[:4])
        assert late.cancel()
    assert predict(service, images[:1]).shape == (1, 10)
    with pytest.raises(CancelledError):
        late.result()
    until(lambda: len(service.recent_images(0)) == 2)


class hold:  # noqa: N801 (reads as a verb)
    """Keeps the model from answering for a while."""

    def __init__(self, service: Service) -> None:
        self.method, self.go_on = service.predictor.method, threading.Event()

    def __enter__(self) -> None:
        self.predict = self.method.predict

        def wait_first(images: Tensor) -> Tensor:
            self.go_on.wait(60)
            return self.predict(images)

        self.method.predict = wait_first  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self.method.predict = self.predict  # type: ignore[method-assign]
        self.go_on.set()


# ---- bulkheads


def test_one_request_that_breaks_the_model_does_not_take_others_with_it(
    make: Callable[..., Service], images: Tensor
) -> None:
    service = make("none", batching=Batching(batch_size=4, batch_timeout=0.5))
    good, bad = service.predictor.submit(images[:1]), service.predictor.submit(images[:1, :, :5, :5])
    assert good.result(timeout=60).probabilities.shape == (1, 10)
    with pytest.raises(Exception, match=r"."):
        bad.result(timeout=60)
    assert predict(service, images[:2]).shape == (2, 10)


def test_a_broken_state_is_not_answered_with(make: Callable[..., Service], images: Tensor) -> None:
    service = make()
    broken = {name: torch.full_like(value, torch.nan) for name, value in service.predictor.source.tensors.items()}
    service.predictor.publish(AdaptedState(7, broken))
    expected = navia.adapt(VIT, "none", "tome:24").predict(images[:2]).softmax(dim=1)
    torch.testing.assert_close(predict(service, images[:2]), expected, atol=1e-5, rtol=1e-4)
    assert any("not finite" in event.text for event in service.status().events)
    until(lambda: service.predictor.step == 0)


def test_images_without_a_finite_answer_are_refused_and_the_state_stays(
    make: Callable[..., Service], images: Tensor
) -> None:
    service = make()
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    expected = predict(service, images[:2])
    with pytest.raises(navia.NaviaError, match="no finite prediction"):
        predict(service, images[:2] * torch.inf)
    torch.testing.assert_close(predict(service, images[:2]), expected, atol=1e-5, rtol=1e-4)
    assert not any(event.kind == "error" for event in service.status().events)


def test_a_bad_update_is_rolled_back_and_answers_go_on(make: Callable[..., Service], images: Tensor) -> None:
    """A learning rate that blows the parameters up: the guard restores them, and nothing of it is seen."""
    service = make(lr=1e6)
    for start in range(0, 40, 8):
        assert bool(predict(service, images[start : start + 8]).isfinite().all())
        until(lambda: service.worker.waiting == 0 and not service.worker._busy)
    now = service.status()
    assert now.adaptation.guard_events >= 1
    assert any(event.kind == "guard" and "restored" in event.text for event in now.events)


def test_a_step_that_fails_is_given_up(make: Callable[..., Service], images: Tensor) -> None:
    service = make()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory at /some/path")

    service.worker.adapter.method.update = fail  # type: ignore[method-assign, assignment]
    for start in range(0, 24, 8):
        predict(service, images[start : start + 8])
        until(lambda n=start // 8 + 1: sum(e.kind == "error" for e in service.status().events) == n)
    until(lambda: service.worker.mode == "paused")
    assert predict(service, images[:2]).shape == (2, 10)
    assert service.alive
    assert not any("/some/path" in event.text for event in service.status().events)


def test_a_full_disk_does_not_end_the_adaptation(make: Callable[..., Service], images: Tensor, tmp_path: Path) -> None:
    service = make(state=tmp_path, every=1)
    with full_disk():
        predict(service, images[:8])
        until(lambda: any("no checkpoint" in event.text for event in service.status().events))
    assert service.alive
    assert "navia_checkpoint_failures_total 1.0" in service.metrics().decode()
    assert "navia_checkpoint_age_seconds" not in service.metrics().decode()  # there is none
    told = service.status().checkpoint
    assert told is not None
    assert (told.failures, told.seconds_ago) == (1, None)
    assert not list(tmp_path.glob("*.safetensors*"))
    predict(service, images[8:16])
    until(lambda: service.checkpoints is not None and service.checkpoints.step == 2)
    assert re.search(r"^navia_checkpoint_age_seconds \d", service.metrics().decode(), re.MULTILINE)
    assert "navia_checkpoint_failures_total 1.0" in service.metrics().decode()


def test_a_checkpoint_is_written_some_time_after_a_step(
    make: Callable[..., Service], images: Tensor, tmp_path: Path
) -> None:
    service, now = make(state=tmp_path, every=1000), [0.0]
    service.worker.clock = lambda: now[0]
    assert service.checkpoints is not None
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)

    def later(seconds: float) -> int | None:
        now[0] += seconds
        for _ in range(2):  # the worker checks once more after each
            service.worker.call(lambda: None).result(60)
        assert service.checkpoints is not None
        return service.checkpoints.step

    assert later(59.0) is None
    assert later(1.5) == 1
    first = service.checkpoints.current.read_bytes()
    later(1000)  # nothing moved since
    assert service.checkpoints.current.read_bytes() == first
    assert not service.checkpoints.previous.exists()


def test_an_idle_restart_pushes_no_checkpoint_out(make: Callable[..., Service], images: Tensor, tmp_path: Path) -> None:
    service = make(state=tmp_path, every=1)
    for start in (0, 8):
        predict(service, images[start : start + 8])
        until(lambda n=start // 8 + 1: service.predictor.step == n)
    service.stop()
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    assert len(files) == 2
    again = make(state=tmp_path)
    assert again.predictor.step == 2
    predict(again, images[:4])  # too few for a step
    again.stop()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == files


def test_a_stop_gives_up_the_step_and_writes_the_checkpoint(
    make: Callable[..., Service], images: Tensor, tmp_path: Path
) -> None:
    """However long the step: what ends is the step, not the wait for it. The folder is free only when all is written."""
    service, under_way, go_on, calls = make(state=tmp_path, every=1000), threading.Event(), threading.Event(), []
    worker, method = service.worker, service.worker.adapter.method
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    kept = safetensors.torch.load(service.delta().result(60))
    rest = method.on_block
    assert rest is not None

    def wait() -> None:
        calls.append(torch.is_grad_enabled())
        if len(calls) == 20:  # in the middle of the step
            under_way.set()
            assert go_on.wait(60)
        rest()

    method.on_block = wait
    predict(service, images[8:16])
    assert under_way.wait(60)
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    until(lambda: worker._stopping)
    with pytest.raises(InputError, match="another service"):
        Checkpoints(tmp_path).lock()
    assert stopping.is_alive()
    go_on.set()
    stopping.join(60)
    assert not worker.is_alive()
    assert len(calls) == 20  # not one block more
    written = navia.adapt(VIT, "navia", "tome:24", worker.adapter.method.source)
    free = Checkpoints(tmp_path)
    lock = free.lock()
    free.restore(written)
    lock.close()
    assert written.steps == 1
    assert all(torch.equal(written.method.tensors()[name], value) for name, value in kept.items())


def test_a_step_given_up_leaves_nothing_behind(make: Callable[..., Service], images: Tensor) -> None:
    """A method may change its tensors more than once in a step: the checkpoint holds whole steps only."""
    service = make("align", shift=True)
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    kept = safetensors.torch.load(service.delta().result(60))
    service.worker.pause(True)
    for name, value in service.worker.adapter.method.tensors().items():
        if name.startswith("memory."):
            value.add_(1)  # what a step has done so far
    service.worker.adapter.method.memory["later"] = torch.ones(1)
    with service.worker._changed:
        service.worker._stopping = True
    service.worker._adapt(images[8:16])
    again = {name: value for name, value in service.worker.adapter.method.tensors().items() if name in kept}
    assert all(torch.equal(value, kept[name]) for name, value in again.items())
    assert "later" not in service.worker.adapter.method.memory


# ---- load


def test_adaptation_gets_its_share_while_predictions_never_end(
    source: navia.SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of a step works for a second; the clock moves by work and by waiting alone."""
    worker = Service(VIT, "navia", "tome:24", source, settings=ServiceSettings(batching=BATCHING)).worker
    now, waits = [0.0], []

    def wait(seconds: float | None = None) -> bool:
        if not worker.predictor.idle.is_set():
            assert seconds is not None
            now[0] += seconds
            waits.append(seconds)
        return True

    def work(_: Tensor) -> None:
        for _ in range(10):
            now[0] += 1
            worker._on_block()
        raise RuntimeError("the end of the step")

    work.device, work.schedule = torch.device("cpu"), worker.adapter.schedule  # type: ignore[attr-defined]
    worker.clock, worker._since = lambda: now[0], 0.0
    monkeypatch.setattr(worker.predictor.idle, "wait", wait)
    monkeypatch.setattr(worker, "adapter", work)
    monkeypatch.setattr(worker, "overloaded", lambda: True)
    monkeypatch.setattr(worker, "_recover", lambda _: None)
    worker.predictor.idle.clear()
    images = torch.zeros(8, 1, 28, 28)
    for step in range(1, 4):
        worker.offer(images)
        while not worker._ready():
            now[0] += 0.25
        worker._take()
        worker._adapt(images)
        assert now[0] == pytest.approx(10 * step / 0.2, abs=0.5)
    worker.predictor.idle.set()
    waited = len(waits)
    worker._adapt(images)
    assert len(waits) == waited  # idle: no wait


def test_steady_load_does_not_end_the_adaptation(make: Callable[..., Service], images: Tensor) -> None:
    """Answers always under way, and always more waiting: steps are made all the same."""
    service = make()
    service.worker.overloaded = lambda: True
    service.predictor.idle.clear()
    for start in range(0, 24, 8):
        service.worker.offer(images[start : start + 8])
        until(lambda n=start // 8 + 1: service.worker.adapter.steps == n)


def test_without_a_share_adaptation_waits_for_a_quiet_moment(make: Callable[..., Service], images: Tensor) -> None:
    service = make(batching=replace(BATCHING, adapt_share=0.0))
    service.worker.overloaded = lambda: True
    service.worker.offer(images[:8])
    service.worker.call(lambda: None).result(60)
    service.worker.call(lambda: None).result(60)
    assert service.worker.waiting == 8
    service.worker.overloaded = lambda: False
    until(lambda: service.predictor.step == 1)


def test_batches_that_are_not_due_are_not_adapted_to(make: Callable[..., Service], images: Tensor) -> None:
    service = make(adapt_every=3)
    for start in range(0, 32, 8):
        service.worker.offer(images[start : start + 8])
        until(lambda n=start // 8 + 1: service.worker.adapter.schedule.batches == n)
    until(lambda: service.predictor.step == 2)  # the first and the fourth batch
    now = service.status().adaptation
    assert (now.images_adapted, now.images_skipped, now.update_share) == (16, 16, 0.5)
    assert b"navia_images_skipped_total 16.0" in service.metrics()
    assert "One batch in 3" in now.policy


def test_a_service_without_gradients_follows_its_stream(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none", center=True)
    assert service.worker.mode != "off"
    service.worker.offer(images[:8])
    until(lambda: service.predictor.step == 1)
    expected = navia.adapt(VIT, "none", "tome:24", center=True)
    expected(images[:8])
    torch.testing.assert_close(predict(service, images[8:10]), expected.predict(images[8:10]).softmax(dim=1))


def test_adaptation_is_shed_before_answers(make: Callable[..., Service], images: Tensor) -> None:
    """While more than a batch waits no step begins; what is answered meanwhile pushes the oldest images out."""
    service = make(batching=Batching(batch_size=2, batch_timeout=0, adapt_batch=4, adapt_share=0))
    with hold(service):
        futures = [service.predictor.submit(images[i : i + 1]) for i in range(30)]
        assert service.worker.mode == "shedding"
        assert service.worker.adapter.steps == 0
    assert all(future.result(timeout=60).probabilities.shape == (1, 10) for future in futures)
    until(lambda: service.worker.waiting < 4 and not service.worker._busy)
    now = service.status().adaptation
    assert now.images_shed > 0
    assert now.images_adapted + now.images_shed + now.images_waiting == 30


def test_a_paused_service_answers_and_does_not_adapt(make: Callable[..., Service], images: Tensor) -> None:
    service = make()
    assert service.pause(True).state == "paused"
    predict(service, images[:16])
    assert (service.worker.waiting, service.worker.adapter.steps) == (0, 0)
    assert service.pause(False).state == "waiting"
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)


def test_few_images_are_adapted_to_after_a_while(make: Callable[..., Service], images: Tensor) -> None:
    service, now = make(batching=Batching(batch_size=8, batch_timeout=0, adapt_batch=32, adapt_wait=30)), [0.0]
    service.worker.clock = lambda: now[0]

    def let_it_check() -> None:
        for _ in range(2):  # it checks once more after each
            service.worker.call(lambda: None).result(60)

    predict(service, images[:7])
    now[0] = 31.0
    let_it_check()
    assert service.worker.waiting == 7  # too few
    predict(service, images[7:8])
    until(lambda: service.predictor.step == 1)


def test_methods_without_adaptation_are_off(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none")
    predict(service, images[:16])
    assert service.status().adaptation.state == "off"
    assert service.pause(True).state == "off"


# ---- control


def test_reset_rollback_and_delta(make: Callable[..., Service], images: Tensor) -> None:
    service = make(every=2)
    for start in range(0, 40, 8):
        predict(service, images[start : start + 8])
        until(lambda n=start // 8 + 1: service.predictor.step == n)
    adapted = service.delta().result(60)
    assert service.rollback().result(60) == "back to step 4"
    assert service.rollback().result(60) == "back to step 2"
    assert service.rollback().result(60) == "back to step 0"
    assert service.rollback().result(60) == "back to the source model"
    assert service.load_delta(adapted).result(60) == "resumed from the delta of step 5"
    again = safetensors.torch.load(service.delta().result(60))
    assert all(torch.equal(again.pop(name), value) for name, value in safetensors.torch.load(adapted).items())
    assert not again
    assert service.reset().result(60) == "back to the source model"
    fresh = navia.adapt(VIT, "none", "tome:24").predict(images[:4]).softmax(dim=1)
    torch.testing.assert_close(predict(service, images[:4]), fresh, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("method", "options"), [("foa_bp", {}), ("align", {"shift": True})])
def test_after_a_reset_nothing_of_the_stream_is_left(
    make: Callable[..., Service], images: Tensor, method: str, options: dict[str, object]
) -> None:
    """The activation shift comes with the first batch: the source has none."""
    service = make(method, **options)
    before = predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    assert not torch.allclose(predict(service, images[:4]), before[:4], atol=1e-3)
    service.reset().result(60)
    torch.testing.assert_close(predict(service, images[:4]), before[:4], atol=1e-5, rtol=1e-4)


def test_a_command_that_was_given_up_is_not_carried_out(make: Callable[..., Service]) -> None:
    service, under_way, go_on = make(), threading.Event(), threading.Event()

    def wait() -> bool:
        under_way.set()
        return go_on.wait(60)

    first = service.worker.call(wait)
    assert under_way.wait(60)
    for command in (first, service.reset()):
        with pytest.raises(TimeoutError):
            asyncio.run(_result(command, 0.1))
    go_on.set()
    assert first.result(60)  # it had begun
    service.delta().result(60)  # comes after both
    assert service.alive
    assert not any(event.kind == "reset" for event in service.status().events)


def test_a_stop_passes_over_what_was_given_up(make: Callable[..., Service], images: Tensor) -> None:
    service = make("none")
    with hold(service):
        service.predictor.submit(images[:1])
        until(lambda: service.predictor.waiting == 0)
        late, last = service.predictor.submit(images[:4]), service.predictor.submit(images[:4])
        assert late.cancel()
        service.predictor.stop()
    with pytest.raises(BusyError, match="shutting down"):
        last.result(60)


@pytest.mark.parametrize("content", [b"", b"\x80\x04no pickle either", b"x" * 1000])
def test_only_a_delta_is_a_delta(make: Callable[..., Service], content: bytes) -> None:
    with pytest.raises(navia.NaviaError, match="delta"):
        make().load_delta(content).result(60)


def test_a_delta_that_would_break_the_state_is_refused(make: Callable[..., Service], images: Tensor, tmp_path: Path) -> None:
    """One bit that differs, values that are no numbers, names and shapes of others."""
    service = make()
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    path, whole = tmp_path / "delta", service.delta().result(60)
    path.write_bytes(whole)
    tensors, notes = read_delta(path)
    notes = {name: text for name, text in notes.items() if name not in ("navia", "version", "digest")}
    name = next(iter(tensors))
    for changed, words in (
        ({name: tensors[name] * torch.nan}, "NaN or infinite"),
        ({name: tensors[name][:-1]}, "does not tune"),
        ({"head.weight": torch.ones(2)}, "does not tune"),
    ):
        write_tensors(path, "delta", {**tensors, **changed}, notes)
        with pytest.raises(DeltaError, match=words):
            service.load_delta(path.read_bytes()).result(60)
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    with pytest.raises(DeltaError, match="damaged"):
        service.load_delta(bytes(flipped)).result(60)
    kept = safetensors.torch.load(service.delta().result(60))
    assert all(torch.equal(kept[name], value) for name, value in tensors.items())
    assert service.load_delta(whole).result(60) == "resumed from the delta of step 1"


def test_status_and_pictures(make: Callable[..., Service], images: Tensor) -> None:
    service = make()
    predict(service, images[:8])
    until(lambda: service.predictor.step == 1)
    now = service.status()
    assert now.ready
    assert sum(found.count for found in now.classes) == 8
    assert now.adaptation.images_adapted == 8
    assert now.adaptation.drift > 0
    shown = service.recent_images(0)
    assert [picture.number for picture in shown] == [8, 7, 6]
    assert service.recent_images(7)[0].number == 8
    assert service.recent_images(8) == []
    until(lambda: len(service.status().series.time) >= 2)
    series = service.status().series
    assert len({len(values) for values in series.model_dump().values()}) == 1
    assert sum(series.images_per_second) == 8


def test_no_picture_is_kept_where_that_is_asked(source: navia.SourceStatistics, images: Tensor) -> None:
    service = Service(VIT, "none", "tome:24", source, settings=ServiceSettings(keep_images=0))
    service.start()
    predict(service, images[:4])
    assert service.recent_images(0) == []
    service.stop()
    with pytest.raises(BusyError, match="shutting down"):
        service.predictor.submit(images[:1])


def test_answers_keep_their_threads_though_the_learner_asks_for_one(make: Callable[..., Service], images: Tensor) -> None:
    """torch hands the number that was set last to every thread that has not computed yet."""
    before, seen = torch.get_num_threads(), []
    use_threads(3)
    try:
        service = make(batching=replace(BATCHING, adapt_threads=1))
        told = service.predictor.on_predicted

        def notice(batch: Tensor, given: RequestOutput) -> None:
            seen.append(torch.get_num_threads())
            told(batch, given)

        service.predictor.on_predicted = notice
        service.worker.call(lambda: None).result(60)  # the learner has asked by now
        predict(service, images[:4])
        until(lambda: bool(seen))
    finally:
        use_threads(before)
    assert seen[0] == 3
