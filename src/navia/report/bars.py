"""Grouped bars. A number that is missing (None, NaN, an infinity) is not drawn, and is named below the plot."""

from collections.abc import Mapping, Sequence
from html import escape

from navia.errors import InputError
from navia.report.numbers import finite, span
from navia.report.svg import (
    LINE,
    Frame,
    Interval,
    Layout,
    base_line,
    colour,
    figure,
    frame,
    interval_of,
    legend,
    picture,
    readable,
    text,
    text_width,
    value_text,
    whisker,
    y_axis,
)


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    y_label: str,
    title: str,
    intervals: Mapping[str, Sequence[Interval | None]] | None = None,
) -> str:
    """Bars from zero, one per series in each group. intervals: error bars by series."""
    for name, values in series.items():
        if len(values) != len(groups) or len((intervals or {}).get(name, values)) != len(groups):
            raise InputError(
                f"bars {title!r}: {len(groups)} groups, but {name!r} has {len(values)} values or other intervals"
            )
    lost = [
        f"{name} ({group})" for name, v in series.items() for group, y in zip(groups, v, strict=True) if finite(y) is None
    ]
    note = f"Not drawn, for want of a value: {', '.join(lost)}." if lost else ""
    known = {name: [interval_of(*(pair or (None, None))) for pair in pairs] for name, pairs in (intervals or {}).items()}
    return figure(title, lambda layout: _bars(layout, groups, series, known, y_label, title), note)


def _bars(
    layout: Layout,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    intervals: Mapping[str, Sequence[Interval | None]],
    y_label: str,
    title: str,
) -> str:
    nothing: list[Interval | None] = [None] * len(groups)
    columns = {name: list(zip(values, intervals.get(name, nothing), strict=True)) for name, values in series.items()}
    heights = [h for column in columns.values() for y, ends in column if finite(y) is not None for h in (y, *(ends or ()))]
    pitch = (layout.width - 60) / max(len(groups), 1)
    widest = max(map(text_width, groups), default=0)
    turned = widest > pitch - 6
    f = frame(
        layout, (0, max(len(groups), 1)), span(heights, from_zero=True), bottom=26 if not turned else 22 + 0.64 * widest
    )
    wide = min(0.78 * (f.px(1) - f.px(0)) / max(len(series), 1), 44)
    parts = [y_axis(f, y_label)]
    for k, column in enumerate(columns.values()):
        for g, (y, ends) in enumerate(column):
            left = f.px(g + 0.5) + (k - len(series) / 2) * wide
            parts.append(_bar(f, left, wide, finite(y), ends, k, f"{list(series)[k]}, {groups[g]}"))
    parts += [base_line(f, f.py(0)), *_group_names(f, groups, turned)]
    data = {
        "x": [round(f.px(g + 0.5), 1) for g in range(len(groups))],
        "heads": list(groups),
        "rows": [
            {"name": name, "kind": colour(k), "text": [value_text(finite(y), ends) for y, ends in column]}
            for k, (name, column) in enumerate(columns.items())
        ],
        "width": round(0.92 * (f.px(1) - f.px(0)), 1),
    }
    keys = legend(list(series), lambda i: '<rect class="mark" x="5" y="1" width="12" height="12"/>')
    return keys + picture(layout, title, "".join(parts), readable(data, f))


def _bar(f: Frame, left: float, wide: float, y: float | None, ends: Interval | None, index: int, name: str) -> str:
    if y is None:
        return ""
    top, base = f.py(max(y, 0.0)), f.py(min(y, 0.0))
    error = whisker(left + wide / 2, f.py(ends[0]), f.py(ends[1])) if ends else ""
    box = f'<rect class="bar" x="{left + 0.5:.1f}" y="{top:.1f}" width="{wide - 1:.1f}" height="{base - top:.1f}"/>'
    return f'<g class="{colour(index)}"><title>{escape(name)}: {value_text(y, ends)}</title>{box}{error}</g>'


def _group_names(f: Frame, groups: Sequence[str], turned: bool) -> list[str]:
    if not turned:
        return [text(f.px(g + 0.5), f.bottom + 18, name, "tick middle") for g, name in enumerate(groups)]
    every = max(1, round(LINE / max(f.px(1) - f.px(0), 1)))
    spots = [(f.px(g + 0.5) + 4, f.bottom + 14, name) for g, name in enumerate(groups) if g % every == 0]
    return [text(x, y, name, "tick end", f' transform="rotate(-40 {x:.1f} {y:.1f})"') for x, y, name in spots]
