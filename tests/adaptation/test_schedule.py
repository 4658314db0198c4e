"""Sparse adaptation: which batches are due, what a batch that is not due costs, and that streams can be resumed."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

import navia
import navia.methods.base
from navia.adaptation.schedule import ChangeDetector, Schedule, noise_floor
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain
from navia.errors import SpecError

VIT = navia.load("embedded")


def pattern(schedule: Schedule, batches: int, signal: float = 1.0, floor: float = 0.0, changed_at: int = -1) -> str:
    """U for every batch that is due."""
    found = ""
    for number in range(batches):
        found += "U" if schedule.due else "."
        schedule.record(schedule.due, signal, floor, number == changed_at, loss=1.0)
    return found


# ---- decisions


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "always", None])
def test_other_intervals_are_refused(every: Any) -> None:
    with pytest.raises(SpecError, match="adapt_every"):
        Schedule(every)


@pytest.mark.parametrize(("every", "expected"), [(1, "UUUUUU"), (2, "U.U.U."), (4, "U...U.")])
def test_every_nth_batch_is_due(every: int, expected: str) -> None:
    assert pattern(Schedule(every), 6) == expected


def test_auto_adapts_to_all_batches_first_and_then_to_fewer_and_fewer() -> None:
    found = pattern(Schedule("auto"), 120)
    gaps = [len(gap) + 1 for gap in found.rstrip(".").lstrip("U").split("U")[:-1]]
    assert found.startswith("U" * 24 + ".")
    assert gaps == sorted(gaps)
    assert gaps[:3] == [2, 4, 8]
    assert found.count("U") <= 0.3 * 120


@pytest.mark.parametrize(("fall", "updates"), [(0.0, 24), (0.005, 24), (0.02, 40)])
def test_auto_goes_on_while_the_loss_falls(fall: float, updates: int) -> None:
    """By more than 8 % in 8 batches, 1 % in one; never for more than 40 batches."""
    schedule, due = Schedule("auto"), 0
    for number in range(60):
        due += schedule.interval == 1
        schedule.record(schedule.due, signal=1.0, loss=(1 - fall) ** number)
    assert due == updates


def test_auto_needs_fewer_updates_at_the_noise_floor() -> None:
    assert pattern(Schedule("auto"), 10, signal=0.05, floor=0.05) == "UUUUUUUU.U"
    assert pattern(Schedule("auto"), 10, signal=0.08, floor=0.05) == "U" * 10


def test_a_change_starts_again() -> None:
    schedule = Schedule("auto")
    assert pattern(schedule, 60, changed_at=50)[51:] == "U" * 9
    assert schedule.batches == 60


def test_a_sudden_rise_of_the_signal_is_a_change_and_noise_is_none() -> None:
    for seed in range(20):
        noise = torch.randn(200, generator=torch.Generator().manual_seed(seed)).tolist()
        schedule = Schedule("auto")
        for value in noise:
            schedule.record(schedule.due, 1 + 0.1 * value)
        assert schedule.interval > 2, "took noise for a change"
        schedule.record(schedule.due, 2.0)
        assert schedule.interval > 2, "took one unusual batch for a change"
        schedule.record(schedule.due, 2.0)
        assert schedule.interval == 1


def test_signals_that_are_unknown_or_not_finite_change_nothing() -> None:
    schedule = Schedule("auto")
    pattern(schedule, 40)
    for signal in (None, float("nan"), float("inf")):
        schedule.record(schedule.due, signal)
    assert schedule.interval > 1


def test_the_noise_floor_is_the_expected_discrepancy() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 20_000, generator=generator) for n in (64, 16))
    found = (a.mean(0) - b.mean(0)).square().mean() + (a.std(0) - b.std(0)).square().mean()
    assert float(found) == pytest.approx(noise_floor(64, 16), rel=0.05)


# ---- changes of the images


def rows(count: int, seed: int, shift: float = 0.0) -> Tensor:
    """Correlated features [count, 48], as log variances are: most of an image's variation is common to all channels."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (torch.randn(count, n, generator=generator, dtype=torch.float64) for n in (4, 48))
    mixing = torch.randn(4, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    direction = torch.randn(48, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return common @ mixing + own + shift * direction


def alarms(detector: ChangeDetector, images: Tensor, batch: int) -> list[int]:
    parts = enumerate(images.split(batch))
    return [n for n, part in parts if detector.add(len(part), part.sum(dim=0), part.square().sum(dim=0))]


@pytest.mark.parametrize("batch", [1, 4, 8, 16, 64])
def test_no_false_alarm_on_an_unchanged_stream(batch: int) -> None:
    assert [alarms(ChangeDetector(), rows(120 * batch, seed), batch) for seed in range(10)] == [[]] * 10


@pytest.mark.parametrize("batch", [8, 16, 64])
def test_a_change_is_seen_within_two_batches_and_only_once(batch: int) -> None:
    for seed in range(10):
        detector = ChangeDetector()
        assert alarms(detector, rows(60 * batch, seed), batch) == []
        assert alarms(detector, rows(60 * batch, 100 + seed, shift=4.0), batch) in ([0], [1])


# ---- the adapter


@pytest.fixture(scope="module")
def source() -> navia.SourceStatistics:
    return navia.SourceStatistics.measure(
        VIT, Domain("clean", source_images()).tensors(range(64), VIT.preprocessing), "tome:24"
    )


def domain(name: str, count: int, start: int = 0) -> Tensor:
    return Domain(name, unseen_images(), name, 5).tensors(range(start, start + count), VIT.preprocessing)


def make(method: str, source: navia.SourceStatistics, every: Any = "auto", **options: Any) -> navia.Adapter:
    return navia.adapt(VIT, method, "tome:24", source, adapt_every=every, **options)


def run(adapter: navia.Adapter, images: Tensor, batch: int) -> str:
    found = ""
    for part in images.split(batch):
        adapter(part)
        assert adapter.last is not None
        found += "U" if adapter.last.updated else "."
    return found


def test_one_is_the_default(source: navia.SourceStatistics) -> None:
    images = domain("contrast", 48)
    usual, one = navia.adapt(VIT, "navia", "tome:24", source), make("navia", source, 1)
    for part in images.split(8):
        assert torch.equal(usual(part), one(part))
    assert usual.update_share == one.update_share == 1
    assert "adapt_every" not in repr(one)
    assert one.method.forward(images[:2]).patch_variance is None


@pytest.mark.parametrize("method", ["tent", "navia"])
def test_n_adapts_to_the_first_and_every_nth_batch(method: str, source: navia.SourceStatistics) -> None:
    adapter = make(method, source, 3)
    assert run(adapter, domain("contrast", 56), 8) == "U..U..U"
    assert adapter.update_share == 3 / 7
    assert "adapt_every=3" in repr(adapter)
    assert adapter.last is not None
    adapter.reset()
    assert adapter.update_share == 0
    assert run(adapter, domain("contrast", 16), 8) == "U."
    assert adapter.last.note == "not due"


@pytest.mark.parametrize("method", ["tent", "cotta", "foa_bp", "navia"])
def test_a_batch_that_is_not_due_costs_one_forward_without_a_graph(
    method: str, source: navia.SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make(method, source, 2)
    first, second = domain("contrast", 16).split(8)
    adapter(first)
    before = {name: p.detach().clone() for name, p in adapter.method.parameters.items()}
    optimizer = adapter.state_dict()["method"]["optimizer"]
    expected = adapter.predict(second)
    outputs = []
    real = navia.methods.base.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        outputs.append(real(*args, **kwargs))
        return outputs[-1]

    monkeypatch.setattr(navia.methods.base, "forward", counted)
    prediction = adapter.forward_step(second)
    step = adapter.update(prediction)
    assert len(outputs) == 1
    assert outputs[0].logits.grad_fn is None
    assert not outputs[0].pooled.requires_grad
    assert torch.equal(prediction.logits, expected)
    assert not step.updated
    assert step.loss is None
    assert (step.discrepancy is not None) == (method in ("foa_bp", "navia"))
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in adapter.method.parameters.items())
    after = adapter.state_dict()["method"]["optimizer"]
    assert str(after) == str(optimizer)


def test_the_guard_makes_no_snapshot_of_an_unchanged_state(source: navia.SourceStatistics) -> None:
    adapter = make("tent", source, 2, guard=navia.GuardOptions(every=2))
    assert adapter.guard is not None
    images = domain("fog", 40).split(8)
    for part in images[:3]:  # two updates
        adapter(part)
    snapshot = adapter.guard.good
    assert snapshot is not adapter.guard.source
    adapter(images[3])
    assert adapter.guard.good is snapshot


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tent", "navia"])
def test_auto_notices_a_change_of_the_domain_within_two_batches(method: str, source: navia.SourceStatistics) -> None:
    adapter = make(method, source)
    assert "......." in run(adapter, domain("contrast", 400), 8)
    found = run(adapter, domain("gaussian_noise", 48, start=400), 8)
    assert "UUUU" in found
    assert found.index("UUUU") <= 2
    assert "adapt_every='auto'" in repr(adapter)


@pytest.mark.slow
def test_a_stream_is_resumed_exactly_in_the_middle(source: navia.SourceStatistics) -> None:
    images = torch.cat([domain("contrast", 400), domain("gaussian_noise", 80, start=400)])
    whole, cut = make("navia", source), make("navia", source)
    parts = images.split(8)
    expected = [whole(part) for part in parts]
    for part in parts[:47]:
        cut(part)
    buffer = io.BytesIO()
    torch.save(cut.state_dict(), buffer)
    buffer.seek(0)
    resumed = make("navia", source).to("cpu")
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert not resumed.schedule.due or resumed.schedule.interval > 1  # it has converged before the cut
    assert all(torch.equal(resumed(part), want) for part, want in zip(parts[47:], expected[47:], strict=True))
    assert resumed.update_share == whole.update_share < 1


def test_states_without_a_schedule_start_it_anew(source: navia.SourceStatistics) -> None:
    adapter = make("tent", source, 2)
    adapter(domain("fog", 8))
    state = adapter.state_dict()
    del state["schedule"]
    adapter.load_state_dict(state)
    assert adapter.schedule.due


@pytest.mark.slow
def test_images_that_were_predicted_elsewhere_are_skipped_without_a_forward(
    source: navia.SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make("navia", source)
    run(adapter, domain("contrast", 320), 8)
    assert not adapter.schedule.due
    monkeypatch.setattr(navia.methods.base, "forward", None)
    assert not adapter.skip(domain("contrast", 8, start=320))
    assert [adapter.skip(part) for part in domain("gaussian_noise", 16, start=328).split(8)][-1] or adapter.schedule.due
    assert adapter.steps == 40
