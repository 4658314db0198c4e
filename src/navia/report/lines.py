"""Lines. A number that is missing (None, NaN, an infinity) is not drawn, and is named below the plot."""

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
    Layout,
    colour,
    figure,
    frame,
    legend,
    marker,
    picture,
    readable,
    text,
    text_width,
    x_axis,
    y_axis,
)

MARKED_VALUES = 12  # lines with at most so many values show each of them


@dataclass(frozen=True)
class Series:
    """gaps: a missing value parts the line. Without, it goes on to the next value: for series with places of their own."""

    name: str
    values: Sequence[float]
    gaps: bool = True


def lines(series: Sequence[Series], x_label: str, y_label: str, title: str, xs: Sequence[float]) -> str:
    """One line per series over `xs`."""
    longest = max((len(s.values) for s in series), default=0)
    places = [float(x) for x in xs]
    if len(places) < longest or any(finite(x) is None for x in places) or sorted(set(places)) != places:
        raise InputError(f"lines {title!r}: x must be finite, rise, and hold {longest} values, got {places}")
    empty = [s.name for s in series if not _known(s)]
    if len(empty) == len(series):
        return figure(title, None)
    note = f"Not drawn, for want of values: {', '.join(empty)}." if empty else ""
    return figure(title, lambda layout: _lines(layout, series, places[:longest], x_label, y_label, title), note)


def _lines(layout: Layout, series: Sequence[Series], xs: Sequence[float], x_label: str, y_label: str, title: str) -> str:
    names = [s.name for s in series]
    direct = layout is WIDE and len(series) <= 10
    right = 16 + max(map(text_width, names), default=0) if direct else 14
    y_range = span(s.values[i] for s in series for i in _known(s))
    x_range = span(xs, room=0.02) if len(xs) != 1 else (xs[0] - 0.5, xs[0] + 0.5)
    f = frame(layout, x_range, y_range, right)
    body = "".join(_line(f, s, xs, i) for i, s in enumerate(series))
    keys = "" if direct else legend(names, lambda i: f'<path class="line" d="M1 7H21"/>{marker(i, 11, 7, 4)}')
    data = {
        "x": [round(f.px(x), 1) for x in xs],
        "heads": [f"{x_label}: {shown(int(x) if x.is_integer() else x)}" for x in xs],
        "rows": [_readout(s, len(xs), i) for i, s in enumerate(series)],
        "width": 1,
    }
    ends = _end_names(f, series) if direct else ""
    inside = y_axis(f, y_label) + x_axis(f, x_label) + body + ends
    return keys + picture(layout, title, inside, readable(data, f))


def _known(s: Series) -> list[int]:
    """The places that have a value."""
    return [i for i, y in enumerate(s.values) if finite(y) is not None]


def _runs(places: Sequence[int]) -> list[list[int]]:
    """The stretches of places without a gap."""
    runs: list[list[int]] = []
    for i in places:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _path(f: Frame, corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{f.px(x):.1f} {f.py(y):.1f}" for x, y in corners)


def _line(f: Frame, s: Series, xs: Sequence[float], index: int) -> str:
    known = _known(s)
    if not known:
        return ""
    runs = _runs(known) if s.gaps else [known]
    path = "".join(_path(f, [(xs[i], s.values[i]) for i in run]) for run in runs)
    marked = known if len(known) <= MARKED_VALUES else [run[-1] for run in runs]
    marks = "".join(marker(index, f.px(xs[i]), f.py(s.values[i]), r=3.6) for i in marked)
    end = f"<title>{escape(s.name)}: {shown(s.values[known[-1]])} at the end</title>"
    return f'<g class="{colour(index)}">{end}<path class="line" d="{path}"/>{marks}</g>'


def _readout(s: Series, count: int, index: int) -> dict[str, object]:
    texts = [shown(s.values[i]) if i < len(s.values) else DASH for i in range(count)]
    return {"name": s.name, "kind": colour(index), "text": texts}


def _end_names(f: Frame, series: Sequence[Series]) -> str:
    """Each line's name beside its end, moved up or down where names would touch."""
    ends = {i: f.py(s.values[known[-1]]) for i, s in enumerate(series) if (known := _known(s))}
    heights = ends_apart(ends, LINE, f.top, f.bottom)
    return "".join(text(f.right + 9, heights[i] + 4, series[i].name, "name") for i in ends)
