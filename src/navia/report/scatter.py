"""Points with error bars and a front. A point with a missing number (None, NaN, an infinity) is named below the plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from navia.report.labels import Box, Rectangle, place
from navia.report.numbers import finite, span
from navia.report.svg import (
    Frame,
    Layout,
    as_data,
    colour,
    figure,
    frame,
    interval_of,
    legend,
    legend_entry,
    marker,
    picture,
    text,
    whisker,
    x_axis,
    y_axis,
)


@dataclass(frozen=True)
class Point:
    """low, high: the interval of y. detail: what is read when the point is hovered or focused."""

    x: float
    y: float
    label: str
    group: str
    low: float | None
    high: float | None
    detail: Mapping[str, str]


def scatter(points: Sequence[Point], x_label: str, y_label: str, title: str) -> str:
    """Colour and shape by group, and the front: the line of the best y to be had for at most so much x."""
    known = [p for p in points if finite(p.x) is not None and finite(p.y) is not None]
    if not known:
        return figure(title, None)
    lost = [p.label for p in points if p not in known]
    note = f"Not drawn, for want of a value: {', '.join(lost)}." if lost else ""
    return figure(title, lambda layout: _scatter(layout, known, x_label, y_label, title), note)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points than which none has both lower x and higher y, by rising x."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return best


def _scatter(layout: Layout, points: Sequence[Point], x_label: str, y_label: str, title: str) -> str:
    groups = list(dict.fromkeys(p.group for p in points))
    heights = [y for p in points for y in (p.y, *(interval_of(p.low, p.high) or ()))]
    f = frame(layout, span([p.x for p in points]), span(heights))
    best = pareto(points)
    bounds = (f.left, f.top - 8, f.right + 10, f.bottom)
    names = place([p.label for p in points], [_mark_box(f, p) for p in points], bounds, _steps(f, best))
    labels = "".join(
        text(spot.x, spot.y, p.label, f"name {spot.anchor}") for p, spot in zip(points, names, strict=True) if spot
    )
    explained = all(spot and p.group in p.label for p, spot in zip(points, names, strict=True))
    marks = "".join(_point(f, p, groups.index(p.group), i == 0) for i, p in enumerate(points))
    # below all marks, so that no error bar lies over the mark of another point
    errors = "".join(_error_bar(f, p, groups.index(p.group)) for p in points)
    entry = legend_entry("front: nothing further left is higher", '<path class="front" d="M1 7H21"/>', "")
    keys = legend([] if explained else groups, lambda i: marker(i, 11, 7), entry)
    return keys + picture(layout, title, y_axis(f, y_label) + x_axis(f, x_label) + _front(f, best) + errors + labels + marks)


def _mark_box(f: Frame, p: Point) -> Box:
    """What a point covers with its error bar."""
    x, y = f.px(p.x), f.py(p.y)
    low, high = interval_of(p.low, p.high) or (p.y, p.y)
    return Box(x, y, 7, min(y - 7, f.py(high)), max(y + 7, f.py(low)))


def _front(f: Frame, best: Sequence[Point]) -> str:
    """Stairs and not slopes: between two points that were measured nothing was."""
    steps = "".join(f"H{f.px(p.x):.1f}V{f.py(p.y):.1f}" for p in best[1:])
    return f'<path class="front" d="M{f.px(best[0].x):.1f} {f.py(best[0].y):.1f}{steps}H{f.right:.1f}"/>'


def _steps(f: Frame, best: Sequence[Point]) -> list[Rectangle]:
    """What the front's treads cover; names may cross its risers, which are short or far from names."""
    ends = [*(f.px(p.x) for p in best[1:]), f.right]
    return [(f.px(p.x), f.py(p.y) - 1, end, f.py(p.y) + 1) for p, end in zip(best, ends, strict=True)]


def _error_bar(f: Frame, p: Point, group: int) -> str:
    ends = interval_of(p.low, p.high)
    return f'<g class="{colour(group)}">{whisker(f.px(p.x), f.py(ends[0]), f.py(ends[1]))}</g>' if ends else ""


def _point(f: Frame, p: Point, group: int, first: bool) -> str:
    """Arrow keys go from point to point, so that only the first one is a stop of the tab key."""
    x, y = f.px(p.x), f.py(p.y)
    said = f"{p.label}. " + "; ".join(f"{name}: {value}" for name, value in p.detail.items())
    tip = as_data({"head": p.label, "rows": list(p.detail.items())})
    stop = f'tabindex="{0 if first else -1}" role="img" aria-label="{escape(said)}"'
    return (
        f'<g class="point {colour(group)}" {stop} data-tip="{tip}">'
        f'<title>{escape(said)}</title><circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="12"/>{marker(group, x, y)}</g>'
    )
