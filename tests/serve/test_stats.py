"""What happened lately: whole seconds, one window for all, and true after a restart."""

import statistics

import pytest
import torch

from navia.serve.predictor import RequestOutput
from navia.serve.stats import WINDOW, Stats, _quantile

NAMES = ("cat", "dog")


class Clocked(Stats):
    """Its time is set by hand."""

    now = 1000.0

    def __init__(self) -> None:
        super().__init__(NAMES, 0, lambda: self.now)

    def counts(self) -> list[tuple[str, int]]:
        return [(found.label, found.count) for found in self.classes()]


def predicted(stats: Stats, *classes: int) -> None:
    output = RequestOutput(torch.eye(len(NAMES))[list(classes)], torch.zeros(len(classes)), 0, 0.0, 0.0)
    stats.predicted(torch.zeros(len(classes), 3, 2, 2), output)


def test_what_was_shed_before_a_restart_is_not_shed_now() -> None:
    stats = Clocked()
    stats.restore_counters({"images_shed": 5000, "images_adapted": 7, "of another version": 1})
    stats.shed(2)
    stats.now += 1
    assert sum(stats.series().shed) == 2
    assert stats.saved_counters() == {"images_adapted": 7, "images_skipped": 0, "images_shed": 5002, "guard_events": 0}


def test_a_second_that_is_over_has_its_percentiles() -> None:
    stats = Clocked()
    for milliseconds in range(100, 0, -1):
        stats.replied(milliseconds / 1000)
    stats.now += 1
    series = stats.series()
    assert [value for value in series.p50_ms if value is not None] == [pytest.approx(50.5)]
    assert [value for value in series.p95_ms if value is not None] == [pytest.approx(95)]


def test_one_window_for_all_that_is_shown() -> None:
    """Rate, percentiles, classes and series: what is too old for one is too old for all."""
    stats = Clocked()
    predicted(stats, 0, 0, 0)
    stats.replied(9.0)
    stats.now += 100
    predicted(stats, 1)
    stats.replied(1.0)
    stats.now += 20
    served = stats.request_stats(0, 0)
    assert served.images_per_second == pytest.approx(4 / 120)  # since the start
    assert (served.p50_ms, served.p95_ms, served.p99_ms) == (5000, 9000, 9000)
    assert stats.counts() == [("cat", 3), ("dog", 1)]
    assert sum(stats.series().images_per_second) == served.window_images == 4
    stats.now = 1000 + WINDOW + 1
    served = stats.request_stats(0, 0)
    assert served.images_per_second == pytest.approx(1 / WINDOW)
    assert (served.p50_ms, served.p95_ms, served.p99_ms) == (1000, 1000, 1000)
    assert stats.counts() == [("dog", 1)]
    assert sum(stats.series().images_per_second) == served.window_images == 1
    stats.now += WINDOW
    served = stats.request_stats(0, 0)
    assert (served.images, served.requests, served.window_images) == (4, 2, 0)
    assert (served.p50_ms, served.p95_ms, served.p99_ms) == (None, None, None)
    assert stats.counts() == []
    for _ in range(2 * WINDOW):
        stats.now += 1
        stats.sample(None, 0.0, 0)
    assert len(stats._seconds) == WINDOW + 1


def test_seconds_without_events_have_the_state_of_the_one_before() -> None:
    stats = Clocked()
    stats.sample(0.5, 0.1, 3)
    stats.now += 10
    series = stats.series()
    assert series.time == [1000.0 + second for second in range(10)]
    assert (series.step, series.discrepancy) == ([3] * 10, [0.5] * 10)


@pytest.mark.parametrize("jump", [-10, -100_000, 10_000_000_000])
def test_a_clock_that_is_set_does_not_stop_the_series(jump: int) -> None:
    stats = Clocked()
    stats.sample(None, 0.1, 3)
    stats.now += jump
    for _ in range(20):
        stats.now += 1
        stats.sample(None, 0.1, 3)
    assert int(stats.now) - 1 == stats.series().time[-1]


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 100, 1000])
def test_a_percentile_is_the_smallest_value_that_covers_its_share(count: int, share: float) -> None:
    values = [float(value) for value in range(count)]
    found = _quantile(values, share)
    assert found is not None
    if share == 0.5:
        assert found == statistics.median(values)
        return
    assert sum(value <= found for value in values) >= share * count
    assert sum(value <= found - 1 for value in values) < share * count


def test_nothing_has_no_percentile() -> None:
    assert _quantile([], 0.95) is None
