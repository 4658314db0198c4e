"""Figures of results for papers and slides: PNG and SVG by matplotlib, each only where the rows allow it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navia.errors import NaviaError
from navia.report.labels import Box, Spot, place
from navia.report.results import (
    GMACS,
    MS,
    RATES,
    Block,
    Column,
    Line,
    Panel,
    Picture,
    Results,
    Sweep,
    Table,
    Traces,
    Value,
    convergence,
    legible,
    rate_sweeps,
    reduction_sweeps,
    relative_curves,
    running,
    tsne_pictures,
)
from navia.report.svg import LETTER
from navia.report.words import readable
from navia.report.written import Written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# told apart with every kind of colour vision, as on the page; shapes have another period, so that both together repeat late
COLOURS = ("#5f6570", "#ea6e00", "#0c4cdf", "#2d7d4b", "#bf79be", "#1195f9", "#5d3d00")
SHAPES = ("o", "s", "^", "D", "v", "P")
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e5e0",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "navia",  # equal results give equal files
    "svg.fonttype": "none",
}
_NAME_SIZE = 7  # points
_NUMBER_SIZE, _MOST_NUMBERED = 6, 30
_LAYERS = 4  # in which the points of a t-SNE are drawn over each other


def draw_figures(results: Results, traces: Traces, written: Written) -> list[Path]:
    """All figures that the rows allow, as PNG and SVG: their paths."""
    with style():
        return [
            path
            for table in results.tables
            for name, figure in figures(table, traces)
            for path in draw(figure, f"table{table.number}-{name}", written)
        ]


def style() -> AbstractContextManager[None]:
    """Figures are made and saved within it."""
    try:
        import matplotlib
    except ImportError as missing:
        raise NaviaError("figures need matplotlib: pip install 'navia[bench]'") from missing
    return matplotlib.rc_context(STYLE)


def draw(figure: "Figure", stem: str, written: Written) -> list[Path]:
    """One figure as PNG and SVG: the paths. A name may have dots."""
    with written.file(f"{stem}.png") as path:
        figure.savefig(path, format="png", dpi=160)
    with written.file(f"{stem}.svg") as path:
        figure.savefig(path, format="svg", metadata={"Date": None})
    return written.paths[-2:]


def figures(table: Table, traces: Traces) -> "Iterator[tuple[str, Figure]]":
    """Name and figure of each kind that the table has rows for."""
    for block in table.blocks:
        if block.lines[0].setting.adapt_for is None:
            clock = "-under-a-clock" if block.lines[0].setting.realtime else ""
            yield from _block_figures(table, block, traces, clock)
    if sweeps := convergence(table):
        yield "convergence", _sweep_figure(sweeps, table.average, "batches adapted to", lambda x, _: x)
    for rate in RATES:
        for number, sweep in enumerate(rate_sweeps(table, rate)):
            if figure := _rates(sweep, rate, table.domains):
                yield f"rates-{rate}{f'-{number + 1}' if number else ''}", figure
    if sweeps := reduction_sweeps(table):
        yield "tradeoff-cost", _sweep_figure(sweeps, table.average, "GMACs per image", lambda x, _: x)
        yield "tradeoff-latency", _sweep_figure(sweeps, table.average, "ms per image", lambda _, line: line.value(MS).mean)
    pictures = tsne_pictures(table, traces)
    for picture in pictures:
        yield f"tsne{f'-{picture.domain}' if len(pictures) > 1 else ''}".replace("/", "-"), _tsne(picture)


def _block_figures(table: Table, block: Block, traces: Traces, suffix: str) -> "Iterator[tuple[str, Figure]]":
    if figure := _against(block, table.average, GMACS, "GMACs per image"):
        yield f"accuracy-cost{suffix}", figure
    if figure := _against(block, table.average, MS, "ms per image"):
        yield f"accuracy-latency{suffix}", figure
    lines = legible(table, block)
    if figure := accuracy_bars(lines, table.single):
        yield f"domains{suffix}", figure
    means = [column for column in block.of(table.summed) if column.is_accuracy]
    if len(means) > 1 and (figure := accuracy_bars(lines, means)):
        yield f"groups{suffix}", figure
    if figure := _along_the_stream(lines, table.domains, traces):
        yield f"running{suffix}", figure


# ---- parts


def _canvas(width: float = 6.4, height: float = 3.8, rows: int = 1, columns: int = 1) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _sign(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "marker": SHAPES[index % len(SHAPES)]}


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        rows = math.ceil(len(labels) / 4)
        figure.legend(handles, labels, loc="outside lower center", ncols=math.ceil(len(labels) / rows), fontsize=8)


def _y_label(column: Column) -> str:
    return f"{column.title}, top-1 %" if column.kind == "domain" else f"{column.title} accuracy, top-1 %"


# ---- kinds


def _against(block: Block, column: Column, price: Column, x_label: str) -> "Figure | None":
    """One point per line, coloured by method."""
    points = [(line, line.value(price).mean, line.value(column)) for line in block.lines]
    known = [(line, x, value.mean, value) for line, x, value in points if x is not None and value.mean is not None]
    if len(known) < 2:
        return None
    figure, (axes,) = _canvas()
    methods = list(dict.fromkeys(line.setting.method for line, *_ in known))
    for line, x, y, value in known:
        kind = _sign(methods.index(line.setting.method))
        spread = None if value.low is None or value.high is None else [[y - value.low], [value.high - y]]
        axes.errorbar([x], [y], yerr=spread, linestyle="none", capsize=2, elinewidth=0.8, **kind)
    axes.margins(x=0.12, y=0.12)
    axes.set(xlabel=x_label, ylabel=_y_label(column))
    _write_names(figure, axes, [(line.name, x, y, value) for line, x, y, value in known])
    return figure


def _write_names(figure: "Figure", axes: "Axes", points: Sequence[tuple[str, float, float, Value]]) -> None:
    """Beside the points where they touch nothing, by the rule of the page; its unit is a letter's width."""
    figure.draw_without_rendering()  # only now it is known where the axes lie
    unit = 0.6 * _NAME_SIZE * figure.dpi / 72 / LETTER

    def spot_of(x: float, y: float) -> tuple[float, float]:
        """The page counts from the top, matplotlib from the bottom."""
        right, up = axes.transData.transform((x, y))
        return float(right) / unit, -float(up) / unit

    marks = []
    for _, x, y, value in points:
        at, middle = spot_of(x, y)
        low, high = (middle if end is None else spot_of(x, end)[1] for end in (value.low, value.high))
        marks.append(Box(at, middle, 6, min(middle - 6, high), max(middle + 6, low)))
    frame = axes.get_window_extent()
    bounds = (frame.x0 / unit, -frame.y1 / unit, frame.x1 / unit, -frame.y0 / unit)
    sides = {"start": "left", "middle": "center", "end": "right"}
    for (name, x, y, _), mark, free in zip(points, marks, place([p[0] for p in points], marks, bounds), strict=True):
        spot = free or Spot(mark.x + 8, mark.y - 6, "start")  # in a crowd names touch, but none is missing
        shift = ((spot.x - mark.x) * unit * 72 / figure.dpi, (mark.y - spot.y) * unit * 72 / figure.dpi)
        axes.annotate(name, (x, y), shift, textcoords="offset points", ha=sides[spot.anchor], fontsize=_NAME_SIZE)


def accuracy_bars(lines: Sequence[Line], columns: Sequence[Column]) -> "Figure | None":
    """A group of bars per column and a bar per line; few enough to be read have their numbers above them."""
    cells = [[line.value(column) for column in columns] for line in lines]
    if all(value.mean is None for row in cells for value in row):
        return None
    bars = len(lines) * len(columns)
    figure, (axes,) = _canvas(width=min(20.0, max(5.0, 2 + 0.16 * bars)))
    wide = 0.8 / len(lines)
    for i, (line, values) in enumerate(zip(lines, cells, strict=True)):
        at = [j + (i - (len(lines) - 1) / 2) * wide for j in range(len(columns))]
        heights = [math.nan if value.mean is None else value.mean for value in values]
        spread = [
            [abs(h - (h if end is None else end)) for h, end in zip(heights, ends, strict=True)] for ends in _ends(values)
        ]
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "hatch": ("", "//", "..", "xx")[i // len(COLOURS) % 4]}
        axes.bar(at, heights, 0.92 * wide, label=line.name, edgecolor="white", linewidth=0.3, **style)
        axes.errorbar(at, heights, yerr=spread, linestyle="none", ecolor="#1d1e20", elinewidth=0.6)
        if bars <= _MOST_NUMBERED:
            _write_numbers(axes, at, values)
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(columns) > 5 else {}
    axes.set_xticks(range(len(columns)), [column.title for column in columns], **turned)
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)
    axes.set(ylabel="top-1 %")
    _legend(figure, axes)
    return figure


def _write_numbers(axes: "Axes", at: Sequence[float], values: Sequence[Value]) -> None:
    for x, value in zip(at, values, strict=True):
        if value.mean is not None:
            top = max(value.mean, value.high or 0.0)
            axes.annotate(
                f"{value.mean:.1f}", (x, top), (0, 2), textcoords="offset points", ha="center", fontsize=_NUMBER_SIZE
            )


def _ends(values: Sequence[Any]) -> tuple[list[float | None], list[float | None]]:
    return [value.low for value in values], [value.high for value in values]


def _along_the_stream(lines: Sequence[Line], domains: Sequence[str], traces: Traces) -> "Figure | None":
    """Small multiples: accuracy so far, one panel per domain."""
    curves = {domain: [(line, running(line, domain, traces)) for line in lines] for domain in domains}
    drawn = [domain for domain in domains if any(len(curve) > 1 for _, curve in curves[domain])]
    if not drawn:
        return None
    across = min(3, len(drawn))
    down = math.ceil(len(drawn) / across)
    figure, panels = _canvas(width=max(5.0, 3.1 * across), height=1.1 + 2.2 * down, rows=down, columns=across)
    for panel, domain in zip(panels, drawn, strict=False):
        for i, (line, curve) in enumerate(curves[domain]):
            panel.plot(
                list(curve), list(curve.values()), label=line.name, linewidth=1.2, markevery=[-1], **_sign(i), markersize=4
            )
        panel.set_title(readable(domain), fontsize=9, loc="left")
    for panel in panels[len(drawn) :]:
        panel.set_visible(False)
    panels[0].set(ylabel="accuracy so far, %")
    panels[len(drawn) - 1].set(xlabel="images seen")
    _legend(figure, panels[0])
    return figure


def _sweep_figure(
    sweeps: Sequence[Sweep], column: Column, x_label: str, x_of: Callable[[float, Line], float | None]
) -> "Figure":
    """One curve per sweep. x_of: where a line stands, of its number and itself."""
    figure, (axes,) = _canvas()
    for i, sweep in enumerate(sweeps):
        points = [(x_of(x, line), line.value(column)) for x, line in sweep.lines]
        known = sorted((x, v.mean, v.low, v.high) for x, v in points if x is not None and v.mean is not None)
        xs, ys = [p[0] for p in known], [p[1] for p in known]
        axes.plot(xs, ys, label=sweep.name, markersize=4, linewidth=1.3, **_sign(i))
        band = [(x, low, high) for x, _, low, high in known if low is not None and high is not None]
        if len(band) > 1:
            lows, highs = [low for _, low, _ in band], [high for *_, high in band]
            axes.fill_between([x for x, *_ in band], lows, highs, alpha=0.12, color=_sign(i)["color"], linewidth=0)
    axes.set(xlabel=x_label, ylabel=_y_label(column))
    _legend(figure, axes)
    return figure


def _rates(sweep: Sweep, rate: str, domains: Sequence[str]) -> "Figure | None":
    """Relative accuracy over a learning rate, one curve per domain, as the paper draws it."""
    curves = relative_curves(sweep, domains)
    if not curves:
        return None
    figure, (axes,) = _canvas()
    rates = [x for x, _ in sweep.lines]
    for i, (domain, values) in enumerate(curves.items()):
        axes.plot(rates, values, label=readable(domain), markersize=4, linewidth=1.3, **_sign(i))
    if min(rates) > 0:
        axes.set_xscale("log")
    axes.set(xlabel=rate, ylabel="relative accuracy, (A − Amin) / (Amax − Amin)", title=sweep.name)
    _legend(figure, axes)
    return figure


def _tsne(picture: Picture) -> "Figure":
    """A row of panels per line and a column per block; where points lie in a panel means nothing, so it has no axes."""
    names, across = list(picture.panels), len(picture.blocks)
    figure, panels = _canvas(width=max(4.0, 2.3 * across), height=0.8 + 2.4 * len(names), rows=len(names), columns=across)
    places = [(name, block) for name in names for block in picture.blocks]
    for axes, (name, block) in zip(panels, places, strict=True):
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("#dedcd5")
        if block == picture.blocks[0]:
            axes.set_ylabel(name.replace(", ", ",\n"), fontsize=8)
        if panel := picture.panels[name].get(block):
            _cloud(axes, panel, picture.classes)
    marks = [panels[0].scatter([], [], s=18, label=name, linewidths=0, **_sign(i)) for i, name in enumerate(picture.classes)]
    figure.legend(marks, picture.classes, loc="outside lower center", ncols=min(4, len(marks)), fontsize=8)
    return figure


def _cloud(axes: "Axes", panel: Panel, classes: Sequence[str]) -> None:
    axes.set_title(panel.title, fontsize=8, loc="left")
    for part in range(_LAYERS):  # class after class would hide the first ones below the last
        for i, name in enumerate(classes):
            own = [(x, y) for x, y, what in panel.points[part::_LAYERS] if what == name]
            axes.scatter([x for x, _ in own], [y for _, y in own], s=13, edgecolors="white", linewidths=0.25, **_sign(i))
