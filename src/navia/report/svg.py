"""What every plot is made of: a frame with axes, markers, a legend, and the figure around them.

Each plot is drawn twice, for wide and for narrow places, because text in a picture that is scaled down to a phone cannot be
read; the style sheet shows the one that fits.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from navia.report.numbers import finite, shown, shown_range, tick_labels, ticks

Interval = tuple[float, float]

COLOURS = 7  # classes c0 to c6 of page.css
LETTER = 6.8  # mean width of a letter in the plots' type where that is a wide one
LINE = 14.0  # height of a line of text


@dataclass(frozen=True)
class Layout:
    """A size that plots are drawn for. x_ticks: about how many fit along the horizontal axis."""

    name: str
    width: float
    height: float
    x_ticks: int


WIDE = Layout("wide", 720, 380, 8)
NARROW = Layout("narrow", 360, 280, 5)


@dataclass(frozen=True)
class Frame:
    """Where values lie in the picture: the box of the plot in pixels, and the ranges of both axes."""

    layout: Layout
    left: float
    right: float
    top: float
    bottom: float
    x: Interval
    y: Interval

    def px(self, x: float) -> float:
        return self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)

    def py(self, y: float) -> float:
        return self.bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top)


def frame(layout: Layout, x: Interval, y: Interval, right: float = 14, bottom: float = 44, left: float = 0) -> Frame:
    """The box that leaves room for the ticks of the vertical axis, and so many pixels at the sides, at least `left`."""
    widest = max(text_width(label) for label in tick_labels(ticks(*y)))
    return Frame(layout, max(widest + 12, left), layout.width - right, 30, layout.height - bottom, x, y)


def text_width(text: str) -> float:
    return LETTER * len(text)


def text(x: float, y: float, words: str, kind: str, extra: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{extra}>{escape(words)}</text>'


def y_axis(frame: Frame, label: str) -> str:
    """Grid lines with their values, and the label upright above them, where it is read without turning the head."""
    values = ticks(*frame.y)
    parts = [text(0, 13, label, "axis-label")]
    for value, name in zip(values, tick_labels(values), strict=True):
        y = frame.py(value)
        parts.append(f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(frame.left - 8, y + 4, name, "tick end"))
    return "".join(parts)


def x_axis(frame: Frame, label: str) -> str:
    values = ticks(*frame.x, frame.layout.x_ticks)
    parts = [base_line(frame, frame.bottom), text(frame.right, frame.bottom + 37, label, "axis-label end")]
    for value, name in zip(values, tick_labels(values), strict=True):
        x = frame.px(value)
        mark = f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom + 4:.1f}"/>'
        parts += [mark, text(x, frame.bottom + 18, name, "tick middle")]
    return "".join(parts)


def base_line(frame: Frame, y: float) -> str:
    return f'<line class="base" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def whisker(x: float, low: float, high: float) -> str:
    """An error bar between two heights in pixels."""
    return f'<path class="whisker" d="M{x - 3:.1f} {low:.1f}h6m-3 0V{high:.1f}m-3 0h6"/>'


# ---- colours and shapes: two signs for the same thing, so that neither colour vision nor colour print is needed


def colour(index: int) -> str:
    return f"c{index % COLOURS}"


def marker(index: int, x: float, y: float, r: float = 5) -> str:
    """A shape about `r` in radius. Shapes and colours have no common period below 42."""
    d = (
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        f"M{x - 0.88 * r:.1f} {y - 0.88 * r:.1f}h{1.76 * r:.1f}v{1.76 * r:.1f}h{-1.76 * r:.1f}z",
        f"M{x:.1f} {y - 1.2 * r:.1f}L{x + 1.13 * r:.1f} {y + 0.8 * r:.1f}H{x - 1.13 * r:.1f}z",
        f"M{x:.1f} {y - 1.3 * r:.1f}L{x + 1.3 * r:.1f} {y:.1f}L{x:.1f} {y + 1.3 * r:.1f}L{x - 1.3 * r:.1f} {y:.1f}z",
        f"M{x:.1f} {y + 1.2 * r:.1f}L{x + 1.13 * r:.1f} {y - 0.8 * r:.1f}H{x - 1.13 * r:.1f}z",
        _cross(x, y, r),
    )
    return f'<path class="mark" d="{d[index % len(d)]}"/>'


def _cross(x: float, y: float, r: float) -> str:
    thin, long = 0.42 * r, 0.78 * r
    return (
        f"M{x - thin:.1f} {y - thin - long:.1f}h{2 * thin:.1f}v{long:.1f}h{long:.1f}v{2 * thin:.1f}h{-long:.1f}v{long:.1f}"
        f"h{-2 * thin:.1f}v{-long:.1f}h{-long:.1f}v{-2 * thin:.1f}h{long:.1f}z"
    )


def legend(names: Sequence[str], key: Callable[[int], str], also: str = "") -> str:
    """key(i): what is drawn for entry i in a box of 22 x 14; also: an entry for what has no group, ready as HTML."""
    entries = [legend_entry(name, key(i), colour(i)) for i, name in enumerate(names)]
    return f'<ul class="legend">{"".join(entries)}{also}</ul>' if entries or also else ""


def legend_entry(name: str, drawing: str, kind: str) -> str:
    svg = f'<svg class="key" viewBox="0 0 22 14" aria-hidden="true">{drawing}</svg>'
    return f'<li class="{kind}">{svg}{escape(name)}</li>'


# ---- values and what the script reads


def interval_of(low: float | None, high: float | None) -> Interval | None:
    ends = finite(low), finite(high)
    return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


def value_text(y: float | None, interval: Interval | None) -> str:
    return shown(y) + (f" ({shown_range(*interval)})" if interval else "")


def readable(data: Mapping[str, object], frame: Frame) -> str:
    """The script reads all series out at the place that is hovered, or that the arrow keys have reached."""
    box = as_data([round(frame.top, 1), round(frame.bottom, 1)])
    return f' tabindex="0" data-readout="{as_data(data)}" data-box="{box}"'


def as_data(value: object) -> str:
    """Anything that JSON holds, as the value of an attribute for the script."""
    return escape(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


# ---- figure


def picture(layout: Layout, title: str, body: str, extra: str = "") -> str:
    box = f'viewBox="0 0 {layout.width:g} {layout.height:g}"'
    return f'<svg class="plot" {box} role="group" aria-label="{escape(title)}"{extra}>{body}</svg>'


def figure(title: str, draw: Callable[[Layout], str] | None, note: str = "") -> str:
    """draw: what makes the plot for a layout, None where there is nothing to draw."""
    if draw is None:
        return f'<figure class="plot"><figcaption>{escape(title)}</figcaption><p class="missing">No values.</p></figure>\n'
    drawn = "".join(f'<div class="{layout.name}">{draw(layout)}</div>' for layout in (WIDE, NARROW))
    below = f'<p class="missing">{escape(note)}</p>' if note else ""
    return f'<figure class="plot"><figcaption>{escape(title)}</figcaption>{drawn}{below}</figure>\n'


def beside(figures: Sequence[str]) -> str:
    """Figures beside each other where there is room."""
    return f'<div class="beside">{"".join(figures)}</div>'
