"""Where names stand in a plot so that they touch neither each other nor the marks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from navia.report.svg import LINE, text_width


class Box(NamedTuple):
    """A mark: its centre, half its width, and the heights that it reaches from and to."""

    x: float
    y: float
    half: float
    top: float
    bottom: float


class Spot(NamedTuple):
    """The base line of a name; anchor: the class that says which end of the text x is."""

    x: float
    y: float
    anchor: str


Rectangle = tuple[float, float, float, float]  # left, top, right, bottom


def place(
    names: Sequence[str], marks: Sequence[Box], bounds: Rectangle, lines: Sequence[Rectangle] = ()
) -> list[Spot | None]:
    """For each mark a spot for its name at one of its sides, the right one first; None where all of them are taken."""
    taken: list[Rectangle] = [*lines, *((m.x - m.half, m.top, m.x + m.half, m.bottom) for m in marks)]
    spots: list[Spot | None] = []
    for name, mark in zip(names, marks, strict=True):
        free = [(spot, box) for spot, box in _around(name, mark) if _inside(box, bounds) and not _touches(box, taken)]
        spots.append(free[0][0] if free else None)
        taken += [box for _, box in free[:1]]
    return spots


def _around(name: str, mark: Box) -> list[tuple[Spot, Rectangle]]:
    right, left = mark.x + mark.half + 4, mark.x - mark.half - 4
    beside = [Spot(x, mark.y + dy, side) for dy in (4, -6, 15) for x, side in ((right, "start"), (left, "end"))]
    return [
        (spot, _extent(name, spot))
        for spot in (*beside, Spot(mark.x, mark.top - 5, "middle"), Spot(mark.x, mark.bottom + LINE, "middle"))
    ]


def _extent(name: str, spot: Spot) -> Rectangle:
    wide = text_width(name)
    left = spot.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[spot.anchor] * wide
    return left, spot.y - LINE + 3, left + wide, spot.y + 3


def _inside(box: Rectangle, bounds: Rectangle) -> bool:
    return box[0] >= bounds[0] and box[1] >= bounds[1] and box[2] <= bounds[2] and box[3] <= bounds[3]


def _touches(box: Rectangle, taken: Sequence[Rectangle]) -> bool:
    return any(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken)


def ends_apart(heights: Mapping[int, float], gap: float, top: float, bottom: float) -> dict[int, float]:
    """The heights moved as little as keeps them `gap` apart, in their order, and above the bottom where there is room."""
    order = sorted(heights, key=lambda key: heights[key])
    moved: list[float] = []
    for key in order:
        moved.append(max(heights[key], moved[-1] + gap if moved else top))
    limit = bottom
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - gap
    return dict(zip(order, moved, strict=True))
