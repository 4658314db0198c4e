"""Bars that lie on their side, one below the other, each with its name before it and a mark to compare it with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from navia.report.numbers import finite, shown, span, tick_labels, ticks
from navia.report.svg import (
    Frame,
    Interval,
    Layout,
    base_line,
    colour,
    figure,
    legend,
    legend_entry,
    marker,
    picture,
    text,
    text_width,
    value_text,
)

_PITCH = 24.0
_THICK = 13.0
_MARK = 3, 1  # shape and colour
_KEY = '<rect class="mark" x="5" y="1" width="12" height="12"/>'


@dataclass(frozen=True)
class SideBar:
    """kind: which of the kinds in the legend. mark: what the value is compared with."""

    name: str
    value: float
    interval: Interval | None
    mark: float | None
    kind: int


def side_bars(bars: Sequence[SideBar], kinds: Sequence[str], mark: str, x_label: str, title: str) -> str:
    """mark: what the marks are, for the legend. A bar without a value is not drawn, and is named below the plot."""
    known = [bar for bar in bars if finite(bar.value) is not None]
    if not known:
        return figure(title, None)
    lost = [bar.name for bar in bars if bar not in known]
    note = f"Not drawn, for want of a value: {', '.join(lost)}." if lost else ""
    return figure(title, lambda layout: _drawn(layout, known, kinds, mark, x_label, title), note)


def _drawn(layout: Layout, bars: Sequence[SideBar], kinds: Sequence[str], mark: str, x_label: str, title: str) -> str:
    layout = replace(layout, height=54 + _PITCH * len(bars))
    ends = [x for bar in bars for x in (bar.value, bar.mark, *(bar.interval or ())) if finite(x) is not None]
    left = max(text_width(bar.name) for bar in bars) + 10
    f = Frame(layout, left, layout.width - 48, 6, layout.height - 48, span(ends, from_zero=True), (0, len(bars)))
    drawn = [_bar(f, bar, f.top + (i + 0.5) * _PITCH) for i, bar in enumerate(bars)]
    also = legend_entry(mark, marker(_MARK[0], 11, 7, 4.5), colour(_MARK[1]))
    keys = legend(kinds, lambda i: f'<g class="{_colour(i)}">{_KEY}</g>', also)
    return keys + picture(layout, title, _axis(f, x_label) + "".join(drawn))


def _axis(f: Frame, label: str) -> str:
    values = ticks(*f.x, f.layout.x_ticks)
    parts = [text(f.right, f.bottom + 37, label, "axis-label end")]
    for value, name in zip(values, tick_labels(values), strict=True):
        x = f.px(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{f.top:.1f}" y2="{f.bottom:.1f}"/>')
        parts.append(text(x, f.bottom + 18, name, "tick middle"))
    return "".join([*parts, base_line(f, f.bottom)])


def _bar(f: Frame, bar: SideBar, y: float) -> str:
    said = f"<title>{escape(bar.name)}: {value_text(bar.value, bar.interval)}</title>"
    box = f'x="{f.left:.1f}" y="{y - _THICK / 2:.1f}" width="{f.px(bar.value) - f.left:.1f}" height="{_THICK:g}"'
    error, last = "", f.px(bar.value)
    if bar.interval:
        low, high = (f.px(end) for end in bar.interval)
        error, last = f'<path class="whisker" d="M{low:.1f} {y - 3:.1f}v6m0 -3H{high:.1f}m0 -3v6"/>', max(last, high)
    parts = [
        text(f.left - 8, y + 4, bar.name, "end"),
        f'<g class="{_colour(bar.kind)}">{said}<rect class="bar" {box}/>{error}</g>',
    ]
    if bar.mark is not None and finite(bar.mark) is not None:
        parts.append(f'<g class="{colour(_MARK[1])}">{marker(_MARK[0], f.px(bar.mark), y, 4.5)}</g>')
        last = max(last, f.px(bar.mark) + 6)
    return "".join([*parts, text(last + 6, y + 4, shown(bar.value), "tick")])


def _colour(kind: int) -> str:
    """The colour of the marks is theirs alone."""
    return colour(kind if kind < _MARK[1] else kind + 1)
