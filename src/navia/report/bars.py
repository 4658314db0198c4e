"""Grouped bars. A number that is missing (None, NaN, an infinity) is not drawn, and is named below the plot."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from navia.errors import InputError
from navia.report.numbers import finite, shown, span
from navia.report.svg import (
    LINE,
    Frame,
    Layout,
    base_line,
    colour,
    figure,
    frame,
    legend,
    picture,
    readable,
    text,
    text_width,
    y_axis,
)


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float]], y_label: str, title: str) -> str:
    """Bars from zero, one per series in each group."""
    for name, values in series.items():
        if len(values) != len(groups):
            raise InputError(f"bars {title!r}: each series takes {len(groups)} values, and {name!r} has {len(values)}")
    if all(finite(y) is None for values in series.values() for y in values):
        return figure(title, None)
    cells = [(name, group, y) for name, values in series.items() for group, y in zip(groups, values, strict=True)]
    lost = [f"{name} ({group})" for name, group, y in cells if finite(y) is None]
    note = f"Not drawn, for want of a value: {', '.join(lost)}." if lost else ""
    columns = {name: [finite(y) for y in values] for name, values in series.items()}
    return figure(title, lambda layout: _bars(layout, groups, columns, y_label, title), note)


def _bars(
    layout: Layout, groups: Sequence[str], columns: Mapping[str, Sequence[float | None]], y_label: str, title: str
) -> str:
    heights = [y for column in columns.values() for y in column if y is not None]
    pitch, widest = (layout.width - 60) / len(groups), max(map(text_width, groups))
    turned = widest > pitch - 6
    if turned:  # names that do not fit side by side go down to the left, and the picture grows for them
        layout = replace(layout, height=layout.height + 0.64 * widest - 4)
    room = {"bottom": 22 + 0.64 * widest, "left": 0.77 * widest - pitch / 2} if turned else {"bottom": 26}
    f = frame(layout, (0, len(groups)), span(heights, from_zero=True), **room)
    wide = min(0.78 * (f.px(1) - f.px(0)) / len(columns), 44)
    parts = [y_axis(f, y_label)]
    for k, (name, column) in enumerate(columns.items()):
        for g, y in enumerate(column):
            if y is not None:
                left = f.px(g + 0.5) + (k - len(columns) / 2) * wide
                parts.append(_bar(f, left, wide, y, k, f"{name}, {groups[g]}"))
    parts += [base_line(f, f.py(0)), *_group_names(f, groups, turned)]
    data = {
        "x": [round(f.px(g + 0.5), 1) for g in range(len(groups))],
        "heads": list(groups),
        "rows": [
            {"name": name, "kind": colour(k), "text": [shown(y) for y in column]}
            for k, (name, column) in enumerate(columns.items())
        ],
        "width": round(0.92 * (f.px(1) - f.px(0)), 1),
    }
    keys = legend(list(columns), lambda i: '<rect class="mark" x="5" y="1" width="12" height="12"/>')
    return keys + picture(layout, title, "".join(parts), readable(data, f))


def _bar(f: Frame, left: float, wide: float, y: float, index: int, name: str) -> str:
    top, base, gap = f.py(max(y, 0.0)), f.py(min(y, 0.0)), min(1.0, 0.15 * wide)
    box = f'x="{left + gap / 2:.1f}" y="{top:.1f}" width="{wide - gap:.1f}" height="{base - top:.1f}"'
    said = f"<title>{escape(name)}: {shown(y)}</title>"
    return f'<g class="{colour(index)}">{said}<rect class="bar" {box}/></g>'


def _group_names(f: Frame, groups: Sequence[str], turned: bool) -> list[str]:
    if not turned:
        return [text(f.px(g + 0.5), f.bottom + 18, name, "tick middle") for g, name in enumerate(groups)]
    every = max(1, round(LINE / max(f.px(1) - f.px(0), 1)))
    spots = [(f.px(g + 0.5) + 4, f.bottom + 14, name) for g, name in enumerate(groups) if g % every == 0]
    return [text(x, y, name, "tick end", f' transform="rotate(-40 {x:.1f} {y:.1f})"') for x, y, name in spots]
