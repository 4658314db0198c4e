"""Lines with bands. A number that is missing (None, NaN, an infinity) is not drawn, and is named below the plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from navia.errors import InputError
from navia.report.labels import ends_apart
from navia.report.numbers import DASH, finite, shown, span
from navia.report.svg import (
    LINE,
    WIDE,
    Frame,
    Interval,
    Layout,
    colour,
    figure,
    frame,
    interval_of,
    legend,
    marker,
    picture,
    readable,
    text,
    text_width,
    value_text,
    x_axis,
    y_axis,
)

MARKED_VALUES = 12  # lines with at most so many values show each of them


@dataclass(frozen=True)
class Series:
    """low, high: a band around the values."""

    name: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def lines(series: Sequence[Series], x_label: str, y_label: str, title: str, xs: Sequence[float] | None = None) -> str:
    """One line per series over `xs`, by default 1, 2, 3, ... A missing value leaves a gap."""
    longest = max((len(s.values) for s in series), default=0)
    places = [float(x) for x in (xs if xs is not None else range(1, longest + 1))]
    if len(places) < longest or any(finite(x) is None for x in places) or sorted(set(places)) != places:
        raise InputError(f"lines {title!r}: x must be finite, rise, and hold {longest} values, got {places}")
    empty = [s.name for s in series if all(finite(y) is None for y in s.values)]
    note = f"Not drawn, for want of values: {', '.join(empty)}." if empty else ""
    return figure(title, lambda layout: _lines(layout, series, places[:longest], x_label, y_label, title), note)


def _lines(layout: Layout, series: Sequence[Series], xs: Sequence[float], x_label: str, y_label: str, title: str) -> str:
    names = [s.name for s in series]
    direct = layout is WIDE and len(series) <= 10
    right = 16 + max(map(text_width, names), default=0) if direct else 14
    y_range = span(y for s in series for i in range(len(s.values)) for y in _heights(s, i))
    x_range = span(xs, room=0.02) if len(xs) != 1 else (xs[0] - 0.5, xs[0] + 0.5)
    f = frame(layout, x_range, y_range, right)
    body = "".join(_band(f, s, xs, i) for i, s in enumerate(series)) + "".join(
        _line(f, s, xs, i) for i, s in enumerate(series)
    )
    keys = "" if direct else legend(names, lambda i: f'<path class="line" d="M1 7H21"/>{marker(i, 11, 7, 4)}')
    data = {
        "x": [round(f.px(x), 1) for x in xs],
        "heads": [f"{x_label}: {shown(int(x) if x.is_integer() else x)}" for x in xs],
        "rows": [_readout(f, s, len(xs), i) for i, s in enumerate(series)],
        "width": 1,
    }
    ends = _end_names(f, series, xs) if direct else ""
    inside = y_axis(f, y_label) + x_axis(f, x_label) + body + ends
    return keys + picture(layout, title, inside, readable(data, f))


def _heights(s: Series, i: int) -> list[float]:
    """The values that must fit in the plot at place i."""
    y = finite(s.values[i])
    return [] if y is None else [y, *(_band_at(s, i) or ())]


def _band_at(s: Series, i: int) -> Interval | None:
    if s.low is None or s.high is None or i >= min(len(s.low), len(s.high)):
        return None
    return interval_of(s.low[i], s.high[i])


def _runs(known: Sequence[bool]) -> list[list[int]]:
    """The stretches of places without a gap."""
    runs: list[list[int]] = []
    for i, there in enumerate(known):
        if there and i and known[i - 1]:
            runs[-1].append(i)
        elif there:
            runs.append([i])
    return runs


def _line(f: Frame, s: Series, xs: Sequence[float], index: int) -> str:
    spots = {i: (f.px(xs[i]), f.py(y)) for i, value in enumerate(s.values) if (y := finite(value)) is not None}
    if not spots:
        return ""
    runs = _runs([i in spots for i in range(len(s.values))])
    path = "".join("M" + "L".join(f"{spots[i][0]:.1f} {spots[i][1]:.1f}" for i in run) for run in runs)
    marked = spots if len(s.values) <= MARKED_VALUES else {run[-1]: spots[run[-1]] for run in runs}
    marks = "".join(marker(index, *spot, r=3.6) for spot in marked.values())
    end = f"<title>{escape(s.name)}: {shown(s.values[max(spots)])} at the end</title>"
    return f'<g class="{colour(index)}">{end}<path class="line" d="{path}"/>{marks}</g>'


def _band(f: Frame, s: Series, xs: Sequence[float], index: int) -> str:
    bands = [_band_at(s, i) if finite(y) is not None else None for i, y in enumerate(s.values)]
    path = ""
    for run in _runs([band is not None for band in bands]):
        around = [(xs[i], band[1]) for i in run if (band := bands[i])] + [
            (xs[i], band[0]) for i in run[::-1] if (band := bands[i])
        ]
        path += "M" + "L".join(f"{f.px(x):.1f} {f.py(y):.1f}" for x, y in around) + "z"
    return f'<path class="band {colour(index)}" d="{path}"/>' if path else ""


def _readout(f: Frame, s: Series, count: int, index: int) -> dict[str, object]:
    values = [finite(s.values[i]) if i < len(s.values) else None for i in range(count)]
    return {
        "name": s.name,
        "kind": colour(index),
        "text": [value_text(y, _band_at(s, i)) if y is not None else DASH for i, y in enumerate(values)],
        "y": [None if y is None else round(f.py(y), 1) for y in values],
    }


def _end_names(f: Frame, series: Sequence[Series], xs: Sequence[float]) -> str:
    """Each line's name beside its end, moved up or down where names would touch."""
    last = {i: max(k for k, y in enumerate(s.values) if finite(y) is not None) for i, s in enumerate(series) if _drawn(s)}
    heights = ends_apart({i: f.py(series[i].values[k]) for i, k in last.items()}, LINE, f.top, f.bottom)
    x = f.right + 9
    return "".join(text(x, heights[i] + 4, series[i].name, f"name {colour(i)}") for i in last)


def _drawn(s: Series) -> bool:
    return any(finite(y) is not None for y in s.values)
