"""Figures for papers and slides: charts drawn by matplotlib, as PNG and SVG."""

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from navia.errors import NaviaError
from navia.report.charts import Chart, Figure, Point, Series, figures
from navia.report.lines import Traces
from navia.report.tables import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# distinct with every kind of colour vision, as on the page; markers have another period, so that pairs repeat late
COLOURS = (
    "#5f6570", "#ea6e00", "#0c4cdf", "#2d7d4b", "#bf79be", "#1195f9", "#5d3d00",
    "#880088", "#779988", "#cc33cc", "#880044", "#996622",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "*", "h", "<")
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e5e0",
    "axes.axisbelow": True, "legend.frameon": False, "svg.fonttype": "none",
    "svg.hashsalt": "navia",  # equal results give equal files
}  # fmt: skip
Signs = Mapping[str, dict[str, Any]]  # colour and marker of each series
_GROUP_COLOURS = (1, 2, 3, 4)  # of super-classes: the clearest
_NUMBER_SIZE, _POINT_SIZE, _MOST_NUMBERED = 6, 6.5, 30
_LAYERS = 4  # of the points of a t-SNE: class after class would hide the first ones below the last


def draw_figures(results: Results, traces: Traces) -> dict[str, bytes]:
    """All figures that the rows allow: files by their names, each as PNG and SVG."""
    files = {}
    with style():
        for table in results.tables:
            for figure in figures(table, traces):
                drawing = draw_figure(figure)
                for kind, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
                    content = io.BytesIO()
                    drawing.savefig(content, format=kind, **options)
                    files[f"table{table.number}-{figure.name}.{kind}"] = content.getvalue()
    return files


def style() -> AbstractContextManager[None]:
    """The context in which figures are drawn and saved."""
    try:
        import matplotlib
    except ImportError as missing:
        raise NaviaError("figures need matplotlib: pip install 'navia[bench]'") from missing
    return matplotlib.rc_context(STYLE)


def draw_figure(figure: Figure) -> "Drawing":
    """The charts of a figure beside and below each other, with one legend."""
    from matplotlib.figure import Figure as Drawing

    across = min(figure.columns, len(figure.charts))
    down = math.ceil(len(figure.charts) / across)
    single, maps = len(figure.charts) == 1, figure.charts[0].kind == "map"
    size = (6.4, 3.8) if single else (max(5.0, 3.1 * across), 1.1 + 2.2 * down)
    if maps:
        size = (max(4.0, 2.3 * across), 0.8 + 2.4 * down)
    signs = _signs([series for chart in figure.charts for series in chart.series])  # the same in all panels
    drawing = Drawing(figsize=size, layout="constrained")
    panels: list[Axes] = list(drawing.subplots(down, across, squeeze=False).flat)
    for number, (axes, chart) in enumerate(zip(panels, figure.charts, strict=False)):
        {"scatter": _scatter, "line": _lines, "bar": _bars, "map": _map}[chart.kind](axes, chart, signs)
        if maps and number % across == 0:
            axes.set_ylabel(chart.group.replace(", ", ",\n"), fontsize=8)
        if not single:
            axes.set_title(chart.title, fontsize=9, loc="left")
        if not maps and number == 0:
            axes.set_ylabel(chart.y_label)
        if not maps and (single or number == len(figure.charts) - 1):
            axes.set_xlabel(chart.x_label)
    for axes in panels[len(figure.charts) :]:
        axes.set_visible(False)
    if single and figure.charts[0].kind == "bar":
        bars = sum(len(series.points) for series in figure.charts[0].series)
        drawing.set_size_inches(min(20.0, max(5.0, 2 + 0.16 * bars)), 3.8)
    found = [zip(*reversed(axes.get_legend_handles_labels()), strict=True) for axes in panels]
    handles: dict[str, Any] = {label: handle for pairs in found for label, handle in pairs}
    if handles:
        fitting = int(72 * size[0] / (5 * (max(map(len, handles)) + 7)))  # so many names fit beside each other
        most = max(1, min(4, fitting))
        columns = math.ceil(len(handles) / math.ceil(len(handles) / most))
        drawing.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=8)
    return drawing


def _signs(series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """Each name has its colour and marker; those of one group share their colour."""
    names = {one.name: one.group for one in series}
    groups = list(dict.fromkeys(filter(None, names.values())))
    colours = {name: groups.index(group) if group else i for i, (name, group) in enumerate(names.items())}
    return {name: _sign(i) | {"color": COLOURS[_GROUP_COLOURS[colours[name] % 4] if names[name] else i % len(COLOURS)]}
            for i, name in enumerate(names)}  # fmt: skip


def _sign(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def _errors(points: Sequence[Point]) -> list[list[float]]:
    """Lengths of the error bars below and above."""
    ends = [(p.y - p.low, p.high - p.y) if p.low is not None and p.high is not None else (0.0, 0.0) for p in points]
    return [[abs(below) for below, _ in ends], [abs(above) for _, above in ends]]


def _scatter(axes: "Axes", chart: Chart, signs: Signs) -> None:
    """A colour and marker for each series, as on the page; points of a series have their names beside them."""
    for series in chart.series:
        error: dict[str, Any] = {"linestyle": "none", "capsize": 2, "elinewidth": 0.8}
        x, y = [p.x for p in series.points], [p.y for p in series.points]
        axes.errorbar(x, y, yerr=_errors(series.points), label=series.name, **error, **signs[series.name])
    if chart.log_x:
        _log_axis(axes, _places(chart))
    axes.margins(x=0.16, y=0.12)
    _name_points(axes, chart)


def _name_points(axes: "Axes", chart: Chart) -> None:
    """Names beside the points of a method that has several, moved a little where they would cover each other; a name without
    room is left out, the tables have it."""
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    axes.autoscale_view()
    points = [p for one in chart.series for p in one.points if len(one.points) > 1]
    height, placed = 1.2 * _POINT_SIZE, list[tuple[float, float, float]]()
    for point in sorted(points, key=lambda point: -point.y):
        x, y = axes.transData.transform((float(point.x), point.y)) * 72 / drawing.dpi
        wide = 0.55 * _POINT_SIZE * len(point.name)
        for shift in (0.0, -height, height, -2 * height, 2 * height):
            near = (abs(y + shift - other) < height and left < x + wide and x < left + w for left, other, w in placed)
            if not any(near):
                placed.append((x, y + shift, wide))
                style_options: dict[str, Any] = {"textcoords": "offset points", "fontsize": _POINT_SIZE, "va": "center"}
                axes.annotate(point.name, (float(point.x), point.y), (6, shift), color="#44474d", **style_options)
                break


def _places(chart: Chart) -> list[float]:
    return [float(point.x) for series in chart.series for point in series.points]


def _log_axis(axes: "Axes", values: Sequence[float]) -> None:
    """Logarithmic, with plain numbers at powers of 10, and at 2 and 5 times these where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(values) < 100 * min(values) else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _lines(axes: "Axes", chart: Chart, signs: Signs) -> None:
    for series in chart.series:
        points, sign = series.points, signs[series.name]
        every = [-1] if len(points) > 10 else None
        x, y = [p.x for p in points], [p.y for p in points]
        axes.plot(x, y, label=series.name, markersize=4, linewidth=1.3, markevery=every, **sign)
        band = [p for p in points if p.low is not None and p.high is not None]
        if len(band) > 1:
            lows, highs = [p.low or 0.0 for p in band], [p.high or 0.0 for p in band]
            axes.fill_between([p.x for p in band], lows, highs, alpha=0.12, color=sign["color"], linewidth=0)
        best = [p for p in points if p.mark]  # a ring
        ring: dict[str, Any] = {"s": 95, "facecolors": "none", "edgecolors": sign["color"], "linewidths": 1.4, "zorder": 3}
        axes.scatter([p.x for p in best], [p.y for p in best], **ring)
    if chart.log_x:
        _log_axis(axes, _places(chart))
    elif all(x == int(x) for x in _places(chart)):
        axes.locator_params(axis="x", integer=True)


def _bars(axes: "Axes", chart: Chart, _: Signs) -> None:
    """Bars have their numbers above them where there are few enough."""
    names = list(dict.fromkeys(str(point.x) for series in chart.series for point in series.points))
    count = len(chart.series)
    wide = 0.8 / count
    for i, series in enumerate(chart.series):
        points = series.points
        at = [names.index(str(point.x)) + (i - (count - 1) / 2) * wide for point in points]
        colour, hatch = COLOURS[i % len(COLOURS)], ("", "//", "..", "xx")[i // len(COLOURS) % 4]
        style_options: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
        axes.bar(at, [p.y for p in points], 0.92 * wide, label=series.name, **style_options)
        axes.errorbar(at, [p.y for p in points], _errors(points), linestyle="none", ecolor="#1d1e20", elinewidth=0.6)
        for x, point in zip(at, points, strict=True) if count * len(names) <= _MOST_NUMBERED else ():
            above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": _NUMBER_SIZE}
            axes.annotate(f"{point.y:.1f}", (x, max(point.y, point.high or 0.0)), (0, 2), **above)
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if len(names) > 5 else {}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)


def _map(axes: "Axes", chart: Chart, signs: Signs) -> None:
    """Where points lie in a panel means nothing, so it has no axes."""
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("#dedcd5")
    for layer in range(_LAYERS):
        for series in chart.series:
            own, label = series.points[layer::_LAYERS], None if layer else series.name
            style_options = {"s": 13, "edgecolors": "white", "linewidths": 0.25, **signs[series.name]}
            axes.scatter([p.x for p in own], [p.y for p in own], label=label, **style_options)
