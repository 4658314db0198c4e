"""Numbers and names as people read them."""

import math
import numbers
from collections.abc import Sequence

DASH = "–"
_DATASETS = {
    "imagenet": "ImageNet", "imagenet-c": "ImageNet-C", "imagenet-r": "ImageNet-R", "imagenet-a": "ImageNet-A",
    "imagenet-v2": "ImageNet-V2", "imagenet-sketch": "ImageNet-Sketch",
}  # fmt: skip
_TOO_LARGE = 1e100  # larger values would overflow the axes of a chart


def finite(value: object) -> float | None:
    """The number, or None for what cannot be drawn or compared: None, text, NaN, an infinity."""
    if not isinstance(value, numbers.Real):
        return None
    number = float(value)
    return number if abs(number) < _TOO_LARGE else None  # a NaN compares false


def format_number(value: object) -> str:
    """Three significant digits, but all digits before the point; a dash for a missing number."""
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


def format_column(values: Sequence[float | None]) -> list[str]:
    """Numbers with the same decimals: the largest has three digits, the smallest at least one."""
    known = [value for value in values if value is not None]
    powers = [_power(value) for value in known if value]
    if not powers or max(powers) >= 9 or min(powers) < -4:
        return [format_number(value) for value in values]
    decimals = 0 if all(isinstance(value, numbers.Integral) for value in known) else max(0, 2 - max(powers), -min(powers))
    return [DASH if value is None else f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def _power(number: float) -> int:
    """Power of ten of the first digit, after rounding: 9.999 is written as 10.0."""
    return math.floor(math.log10(abs(float(f"{number:.2e}"))))


def readable(name: str) -> str:
    """A corruption, domain, data set or option as people write it: 'gaussian noise', 'ImageNet-R'."""
    return _DATASETS.get(name) or name.replace("_", " ")


def capitalize(text: str) -> str:
    """Capitalize the first letter and keep the others: 'ImageNet-R'."""
    return text[:1].upper() + text[1:]


def join_names(names: Sequence[str]) -> str:
    """'fog, snow and frost'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count(number: int, noun: str) -> str:
    """'1 row', '1,200 rows'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
