"""What happened lately: whole seconds, bounded, and true after a restart."""

import statistics
import time
from collections.abc import Callable

import pytest

from navia.serve.watch import Watch, _quantile


def next_second() -> None:
    time.sleep(1.01 - time.time() % 1)


def watch(shed: Callable[[], int] = lambda: 0) -> Watch:
    return Watch(0, lambda: (None, 0.0, 0, shed()))


def test_what_was_shed_before_a_restart_is_not_shed_now() -> None:
    shed = [5000, 5000, 5002]
    watched = watch(lambda: shed.pop(0))
    for _ in range(3):
        watched.beat()
    next_second()
    assert sum(watched.series().shed) == 2


def test_a_second_that_is_over_keeps_its_percentiles_alone() -> None:
    watched = watch()
    next_second()  # all in the same one
    for milliseconds in range(100, 0, -1):
        watched.replied(1, milliseconds / 1000)
    next_second()
    series = watched.series()
    assert [value for value in series.p50_ms if value is not None] == [pytest.approx(50.5)]
    assert [value for value in series.p95_ms if value is not None] == [pytest.approx(95)]
    assert not any(second.latencies for second in watched._seconds.values())


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
