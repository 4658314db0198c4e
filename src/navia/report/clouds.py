"""Points by class in small panels without axes, for layouts whose numbers mean nothing. Drawn once: panels are narrow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from navia.report.numbers import span
from navia.report.svg import Frame, Layout, as_data, colour, legend, marker, picture, text

PANEL = Layout("panel", 240, 260, 0)
_TOP = 21  # below the title


@dataclass(frozen=True)
class Cloud:
    """title: stands above the panel. points: x, y and class; none: there is nothing to draw."""

    title: str
    points: Sequence[tuple[float, float, str]]


def clouds(rows: Mapping[str, Sequence[Cloud]], classes: Sequence[str]) -> str:
    """A row of panels below each name, and one legend for all: colour and shape by the place in `classes`."""
    keys = legend(classes, lambda i: marker(i, 11, 7, 4))
    figures = []
    for name, row in rows.items():
        panels = "".join(_panel(cloud, classes, f"{name}, {cloud.title}") for cloud in row)
        caption = f"<figcaption>{escape(name)}</figcaption>"
        figures.append(f'<figure class="plot">{caption}<div class="panels">{panels}</div></figure>')
    return keys + "\n".join(figures)


def _panel(cloud: Cloud, classes: Sequence[str], title: str) -> str:
    heading = text(0, 13, cloud.title, "axis-label")
    if not cloud.points:
        return picture(PANEL, title, heading + text(PANEL.width / 2, PANEL.height / 2, "No values.", "tick middle"))
    f = _frame(cloud.points)
    border = f'<rect class="box" x="{f.left}" y="{f.top}" width="{f.right - f.left}" height="{f.bottom - f.top}"/>'
    marks = "".join(_point(f, x, y, name, classes.index(name)) for x, y, name in cloud.points)
    return picture(PANEL, title, heading + border + marks)


def _frame(points: Sequence[tuple[float, float, str]]) -> Frame:
    """Equal scales in both directions, so that what is near is drawn near."""
    sides = span([x for x, _, _ in points]), span([y for _, y, _ in points])
    half = max(high - low for low, high in sides) / 2
    x, y = (((low + high) / 2 - half, (low + high) / 2 + half) for low, high in sides)
    return Frame(PANEL, 1, PANEL.width - 1, _TOP, _TOP + PANEL.width - 2, x, y)


def _point(f: Frame, x: float, y: float, name: str, group: int) -> str:
    at, down = f.px(x), f.py(y)
    return (
        f'<g class="point {colour(group)}" data-tip="{as_data({"head": name, "rows": []})}"><title>{escape(name)}</title>'
        f'<circle class="hit" cx="{at:.1f}" cy="{down:.1f}" r="7"/>{marker(group, at, down, 3.2)}</g>'
    )
