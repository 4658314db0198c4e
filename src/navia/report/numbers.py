"""Numbers as people read them: few digits, a dash for what is missing, axes with round ticks."""

import math
import numbers
from collections.abc import Iterable, Sequence
from decimal import Decimal

DASH = "–"
_TOO_LARGE = 1e100  # no measurement is: beyond it the widths of axes would overflow
_TOO_SMALL = 1e-100  # and below it vanish


def finite(value: object) -> float | None:
    """The number, or None for what can be neither drawn nor compared: None, text, NaN, an infinity."""
    if not isinstance(value, numbers.Real):
        return None
    number = float(value)
    return number if abs(number) < _TOO_LARGE else None  # a NaN compares false


def shown(value: object) -> str:
    """Three significant digits, but never fewer than all digits before the point; a dash for what is missing."""
    number = finite(value)
    if number is None:
        return DASH
    if isinstance(value, numbers.Integral) and abs(number) < 1e9:
        return f"{int(value):,}".replace("-", "−")
    if number == 0:
        return "0"
    power = _power(number)
    text = f"{number:.2e}" if not -5 < power < 9 else f"{number:,.{max(0, 2 - power)}f}"
    return text.replace("-", "−")


def shown_alike(values: Sequence[float]) -> list[str]:
    """Numbers that stand below each other, all with the same decimals: the largest has three digits, the smallest one."""
    powers = [_power(value) for value in values if value]
    if not powers or max(powers) >= 9 or min(powers) < -4:
        return [shown(value) for value in values]
    decimals = 0 if all(isinstance(value, numbers.Integral) for value in values) else max(0, 2 - max(powers), -min(powers))
    return [f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def _power(number: float) -> int:
    """The power of ten of the first digit, after rounding: 9.999 is shown as 10.0."""
    return math.floor(math.log10(abs(float(f"{number:.2e}"))))


def shown_range(low: float | None, high: float | None) -> str:
    """'78.1–83.4', or nothing where an end is missing."""
    return "" if finite(low) is None or finite(high) is None else f"{shown(low)}–{shown(high)}"


def span(values: Iterable[float], from_zero: bool = False, room: float = 0.07) -> tuple[float, float]:
    """The range of an axis: all values and a little room, but none below zero unless a value is."""
    known = [*values, *((0.0,) if from_zero else ())] or [0.0, 1.0]
    low, high = min(known), max(known)
    width = high - low
    size = max(abs(low), abs(high))
    if width <= max(1e-9 * size, _TOO_SMALL):  # one value only: show it in the middle of a range of its size
        width = size if size > _TOO_SMALL else 1.0
    bottom, top = low - room * width, high + room * width
    if low >= 0:
        bottom = 0.0 if from_zero else max(bottom, 0.0)
    elif from_zero and high == 0:
        top = 0.0
    return bottom, top


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high]: at most count + 1, at least two from count 5 on."""
    step = _step(low, high, count)
    first, last = math.ceil(Decimal(low) / step), math.floor(Decimal(high) / step)
    return [float(i * step) for i in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """One text per tick, all with the same decimals, as few as keep them apart."""
    if len(values) < 2:
        return [shown(value) for value in values]
    largest = max(abs(value) for value in values)
    power = math.floor(math.log10(values[1] - values[0]) + 1e-6)
    if largest >= 1e7 or power < -5:
        digits = max(0, math.floor(math.log10(largest)) - power)
        return [f"{value:.{digits}e}".replace("-", "−") if value else "0" for value in values]
    return [f"{value:,.{max(0, -power)}f}".replace("-", "−") for value in values]


def _step(low: float, high: float, count: int) -> Decimal:
    """Decimal, so that the third tick of a step of 0.1 is 0.3 and not 0.30000000000000004."""
    rough = (Decimal(high) - Decimal(low)) / count
    power = rough.adjusted()
    return next(step for factor in (1, 2, 5, 10) if (step := Decimal(factor).scaleb(power)) >= rough)
