"""What happened lately: whole seconds, one window for all, and true after a restart."""

import statistics

import pytest
import torch

from navia.serve.predictor import Answer
from navia.serve.stats import WINDOW, Watch, _quantile

NAMES = ("cat", "dog")


class Clocked(Watch):
    """Its time is set by hand."""

    now = 1000.0

    def __init__(self, shed: list[int] | None = None) -> None:
        super().__init__(0, lambda: (None, 0.0, 0, shed.pop(0) if shed else 0), lambda: self.now)


def answered(watched: Watch, *classes: int) -> None:
    probabilities = torch.eye(len(NAMES))[list(classes)]
    watched.answered(torch.zeros(len(classes), 3, 2, 2), Answer(probabilities, torch.zeros(len(classes)), 0, 0.0, 0.0))


def test_what_was_shed_before_a_restart_is_not_shed_now() -> None:
    watched = Clocked([5000, 5000, 5002])
    for _ in range(3):
        watched.beat()
    watched.now += 1
    assert sum(watched.series().shed) == 2


def test_a_second_that_is_over_has_its_percentiles() -> None:
    watched = Clocked()
    for milliseconds in range(100, 0, -1):
        watched.replied(milliseconds / 1000)
    watched.now += 1
    series = watched.series()
    assert [value for value in series.p50_ms if value is not None] == [pytest.approx(50.5)]
    assert [value for value in series.p95_ms if value is not None] == [pytest.approx(95)]


def test_one_window_for_all_that_is_shown() -> None:
    """Rate, percentiles, classes and series: what is too old for one is too old for all."""
    watched = Clocked()
    answered(watched, 0, 0, 0)
    watched.replied(9.0)
    watched.now += 100
    answered(watched, 1)
    watched.replied(1.0)
    watched.now += 20
    assert watched.images_per_second() == pytest.approx(4 / 120)  # since the start
    assert watched.percentiles() == (5000, 9000, 9000)
    assert [(found.label, found.count) for found in watched.classes(NAMES)] == [("cat", 3), ("dog", 1)]
    assert sum(watched.series().images_per_second) == watched.window_images() == 4
    watched.now = 1000 + WINDOW + 1
    assert watched.images_per_second() == pytest.approx(1 / WINDOW)
    assert watched.percentiles() == (1000, 1000, 1000)
    assert [(found.label, found.count) for found in watched.classes(NAMES)] == [("dog", 1)]
    assert sum(watched.series().images_per_second) == watched.window_images() == 1
    watched.now += WINDOW
    assert (watched.images, watched.requests, watched.window_images()) == (4, 2, 0)
    assert watched.percentiles() == (None, None, None)
    assert watched.classes(NAMES) == []
    for _ in range(2 * WINDOW):
        watched.now += 1
        watched.beat()
    assert len(watched._seconds) <= WINDOW + 2


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
