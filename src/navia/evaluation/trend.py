"""Whether something grows along a stream: its level at both ends, and its slope in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from navia.errors import InputError

_PARTS = 10


@dataclass(frozen=True)
class Trend:
    """first, last: medians over the first and the last tenth of the steps. slope: growth in 1,000 steps by least squares
    over all but the first tenth, in which caches fill."""

    first: float
    last: float
    slope: float


def trend(steps: Sequence[int], values: Sequence[float]) -> Trend:
    """steps: at which each value was taken, in order."""
    part = len(values) // _PARTS
    if len(steps) != len(values) or not part:
        raise InputError(f"a trend takes at least {_PARTS} values and as many steps, got {len(values)} and {len(steps)}")
    slope = linear_regression(steps[part:], values[part:]).slope
    return Trend(median(values[:part]), median(values[-part:]), 1000 * slope)
