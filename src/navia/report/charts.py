"""What is drawn of a table: charts as plain data, which `page` gives to the browser and `figures` to matplotlib."""

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from navia.evaluation.explain import NEIGHBOURS
from navia.methods.base import METHODS
from navia.report.compare import Collapse, compared, value_text
from navia.report.formatting import capitalize, finite, format_number, join_names, readable
from navia.report.lines import GMACS, MS, Column, Line, Setting, Traces
from navia.report.tables import Block, Table

RATES = ("eta_delta", "eta_delta_l")
MOST_CURVES = 16  # in one chart
LOG_FROM = 5  # costs that differ by a larger factor are drawn on a logarithmic axis
TOP_CLASSES = 8  # in the histogram of a collapsed run


@dataclass(frozen=True)
class Point:
    """x: a number, or the name of a group of bars. low, high: the error bar. detail: shown when the point is hovered. mark:
    why the point is highlighted."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    name: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""


class Series(NamedTuple):
    """group: series of one group have the same colour and differ in their markers."""

    name: str
    points: Sequence[Point]
    group: str = ""


@dataclass(frozen=True)
class Chart:
    """kind: map is a scatter whose axes mean nothing (t-SNE). group: charts of one group stand in one row."""

    kind: Literal["scatter", "line", "bar", "map"]
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    group: str = ""


@dataclass(frozen=True)
class Figure:
    """name: of its files. section: of the page that shows it; None: it is a file only."""

    name: str
    section: Literal["cost", "settings", "stream", "tsne"] | None
    charts: Sequence[Chart]
    columns: int = 1
    note: str = ""


def figures(table: Table, traces: Traces) -> Iterator[Figure]:
    """All figures that the rows of a table allow."""
    for block in table.blocks:
        if block.lines[0].setting.adapt_for is None:
            yield from _block_figures(table, block, traces)
    if sweeps := convergence(table):
        title = "Accuracy on the last third of the stream after so many batches"
        yield Figure("convergence", "settings", [_sweep_chart(sweeps, table, title, "batches adapted to")])
    for number, sweep in enumerate(budget_sweeps(table)):
        chart = _budget_chart(table, sweep)
        if chart.series:
            yield Figure(f"layers{f'-{number + 1}' if number else ''}", "settings", [chart])
    for rate in RATES:
        for number, sweep in enumerate(rate_sweeps(table, rate)):
            title = f"Sensitivity of {sweep.name} to {rate}: 1 is the best of each domain, 0 the worst"
            rates, lines = zip(*sweep.lines, strict=True)
            curves = {column.title: relative([value.mean for value in compared(lines, column)]) for column in table.single}
            points = {
                name: [Point(x, y, mark="best" * (y == 1)) for x, y in zip(rates, own, strict=True) if y == y]
                for name, own in curves.items()
            }
            series, log_x = [Series(name, own) for name, own in points.items() if own], min(rates) > 0
            if series:
                chart = Chart("line", title, rate, "relative accuracy", series, log_x)
                yield Figure(f"rates-{rate}{f'-{number + 1}' if number else ''}", "settings", [chart])
    if sweeps := reduction_sweeps(table):
        chart = _sweep_chart(sweeps, table, "Each method over its reducers, by cost", "GMACs/image", GMACS)
        yield Figure("tradeoff-cost", "settings", [chart])
        late = _sweep_chart(sweeps, table, "Each method over its reducers, by time", "ms/image", MS)
        yield Figure("tradeoff-latency", "settings", [late])
    yield from _tsne_figures(table, traces)


def _block_figures(table: Table, block: Block, traces: Traces) -> Iterator[Figure]:
    suffix = "-realtime" if block.lines[0].setting.realtime else ""
    realtime = ", in real time" if suffix else ""
    largest = max((line.value(GMACS).mean or 0.0 for line in block.lines), default=0.0)
    unit, factor = ("GMACs/image", 1.0) if largest >= 1 else ("MMACs/image", 1000.0)
    costs = (("cost", GMACS, unit, factor, "multiply-accumulates"), ("latency", MS, "ms/image", 1.0, "milliseconds"))
    sets = sum(bool(dataset.domains) for dataset in table.datasets)
    of = f"{sets} data sets" if sets > 1 else f"{len(table.average.members)} domains"
    what = "Accuracy" if table.average.kind == "domain" else f"Mean accuracy over {of}"
    for name, cost, label, scale, quantity in costs:
        title = f"{what} against {quantity} per image{realtime}"
        series = _against(table, block, cost, scale)
        chart = Chart("scatter", title, label, f"{table.average.title}, %", series, _spans_much(series))
        if sum(len(series.points) for series in chart.series) > 1:
            yield Figure(f"accuracy-{name}{suffix}", "cost", [chart])
    lines = select_lines(table, block)
    means = [column for column in block.select(table.summed) if column.is_accuracy]
    for name, columns in (("domains", table.single), ("groups", means if len(means) > 1 else [])):
        if bars := bar_chart(lines, columns):
            yield Figure(f"{name}{suffix}", None, [bars])
    if curves := [curve for domain in table.domains if (curve := _stream_chart(lines, domain, traces, realtime))]:
        yield Figure(f"running{suffix}", "stream", curves, 3)


def _against(table: Table, block: Block, cost: Column, factor: float) -> list[Series]:
    """One point per line, a series per method."""
    points: dict[str, list[Point]] = {}
    for line in block.lines:
        x, y = line.value(cost).mean, line.value(table.average)
        if x is not None and y.mean is not None:
            method = "no adaptation" if line.setting.method == "none" else line.setting.method
            points.setdefault(method, []).append(Point(factor * x, y.mean, y.low, y.high, line.name, _detail(table, line)))
    return [Series(method, own) for method, own in points.items()]


def _detail(table: Table, line: Line) -> dict[str, str]:
    """The average first, in real time too, then its parts: domains, or their groups where these are too many to read."""
    realtime = [c for c in table.summed if c.kind == "clock"]
    shown = table.main if len(table.datasets) > 1 else table.summed if table.parts else table.single
    parts = [c for c in shown if c.kind in ("domain", "dataset", "group")]
    detail = {f"{c.title}, %": value_text(line.value(c)) for c in dict.fromkeys([table.average, *realtime, *parts])}
    costs = [column for column in table.columns if not column.is_accuracy]
    detail |= {column.title: format_number(line.value(column).mean) for column in costs}
    ratio = line.median("realtime_ratio")
    detail |= {"step time / source model": format_number(ratio)} if ratio is not None else {}
    events = sum(len(row["guard"]) for row in line.rows.values())
    return detail | ({"guard events": str(events)} if events else {})


def bar_chart(lines: Sequence[Line], columns: Sequence[Column]) -> Chart | None:
    """A group of bars per column and a bar per line."""
    series = [
        Series(line.name, [Point(c.title, v.mean, v.low, v.high) for c in columns if (v := line.value(c)).mean is not None])
        for line in lines
    ]
    return Chart("bar", "", "", "top-1 %", series) if any(one.points for one in series) else None


# ---- along the stream


def select_lines(table: Table, block: Block) -> list[Line]:
    """The lines that one chart can show: all, or of too many the most accurate of each method."""
    if len(block.lines) <= MOST_CURVES:
        return list(block.lines)
    by_method: dict[str, list[tuple[float, Line]]] = {}
    for line, value in zip(block.lines, compared(block.lines, table.average), strict=True):
        by_method.setdefault(line.setting.method, []).append((value.mean or 0.0, line))
    return [max(own, key=lambda pair: pair[0])[1] for own in by_method.values()]


def _stream_chart(lines: Sequence[Line], domain: str, traces: Traces, realtime: str) -> Chart | None:
    curves = [(line.name, running_accuracy(line, domain, traces)) for line in lines]
    series = [Series(name, [Point(x, y) for x, y in curve.items()]) for name, curve in curves if curve]
    title, drawn = capitalize(readable(domain)) + realtime, any(len(one.points) > 1 for one in series)
    return Chart("line", title, "images seen", "accuracy so far, %", series) if drawn else None


def running_accuracy(line: Line, domain: str, traces: Traces, places: int = 48) -> dict[int, float]:
    """Accuracy in percent up to so many images, at most at `places` of them; mean over the seeds that have a trace."""
    known = [traces[row["key"]] for row in line.rows_of(domain) if row["key"] in traces]
    sums = [(itertools.accumulate(trace["images"]), itertools.accumulate(trace["right"])) for trace in known]
    curves = [{at: 100 * right / at for at, right in zip(*pair, strict=True)} for pair in sums]
    if not curves:
        return {}
    seen = [at for at in curves[0] if all(at in curve for curve in curves)]
    step = max(1, math.ceil(len(seen) / places))
    kept = [at for i, at in enumerate(seen) if i == len(seen) - 1 or (i + 1) % step == 0]
    return {at: statistics.fmean(curve[at] for curve in curves) for at in kept}


def histogram(collapse: Collapse, traces: Traces, names: Sequence[str] | None) -> Chart | None:
    """How often a collapsed run predicted its most frequent classes, beside how often no adaptation did."""
    rows = {collapse.line.name: collapse.row, "no adaptation": collapse.source}
    counts = {name: traces.get(row["key"], {}).get("predicted", ()) for name, row in rows.items() if row}
    predicted = counts.get(collapse.line.name, ())
    if not sum(predicted):
        return None
    top = sorted(range(len(predicted)), key=lambda i: -predicted[i])[:TOP_CLASSES]
    series = [
        Series(name, [Point(names[i] if names else f"class {i}", 100 * own[i] / sum(own)) for i in top])
        for name, own in counts.items()
        if sum(own)
    ]
    title = f"{collapse.line.name} on {readable(collapse.domain)}, seed {collapse.row['seed']}"
    return Chart("bar", title, "share of predictions, %", "", series)


# ---- lines that differ in one number


class Sweep(NamedTuple):
    """Lines that differ in one number only, by that number."""

    name: str
    lines: tuple[tuple[float, Line], ...]


def _sweep_chart(sweeps: Sequence[Sweep], table: Table, title: str, x_label: str, cost: Column | None = None) -> Chart:
    """Over the number that differs, or over a cost."""
    series = []
    for sweep in sweeps:
        values = [(line.value(cost).mean if cost else x, line.value(table.average)) for x, line in sweep.lines]
        points = [Point(x, v.mean, v.low, v.high) for x, v in values if x is not None and v.mean is not None]
        series.append(Series(sweep.name, sorted(points, key=lambda point: point.x)))
    return Chart("line", title, x_label, f"{table.average.title}, %", series, cost is not None and _spans_much(series))


def _spans_much(series: Sequence[Series]) -> bool:
    """Whether costs differ so much (FOA has 28 forwards) that the smaller ones need a logarithmic axis."""
    costs = [float(point.x) for one in series for point in one.points]
    return bool(costs) and min(costs) > 0 and max(costs) > LOG_FROM * min(costs)


def rate_sweeps(table: Table, rate: str) -> list[Sweep]:
    """Lines that differ only in the option `rate`, at least two values of it; where it is not given, the default counts."""
    found: dict[Setting, dict[float, Line]] = {}
    for line in (line for line in table.lines if not line.options_by_domain and not line.setting.choose):
        method, options = line.setting.method, line.setting.given
        default = getattr(METHODS.get(method).Options(), rate, None) if method in METHODS.names() else None
        value = finite(options.pop(rate, default))
        if value is not None:
            rest = replace(line.setting, options=json.dumps(options, sort_keys=True), label=None)
            found.setdefault(rest, {})[value] = line
    return [Sweep(rest.text, tuple(sorted(lines.items()))) for rest, lines in found.items() if len(lines) > 1]


def budget_sweeps(table: Table) -> list[Sweep]:
    """Lines that differ only in the number of tuned layers, from 0 (no CLS biases at all) on; at least two beside it."""
    found: dict[Setting, dict[float, Line]] = {}
    for line in (line for line in table.lines if not line.options_by_domain and not line.setting.choose):
        method, options = line.setting.method, line.setting.given
        default = getattr(METHODS.get(method).Options(), "budget", None) if method in METHODS.names() else None
        budget = finite(options.pop("budget", default))
        if options.pop("biases", True) is False:
            budget = 0.0
        if budget is not None:
            rest = replace(line.setting, options=json.dumps(options, sort_keys=True), label=None)
            found.setdefault(rest, {})[budget] = line
    sweeps = [Sweep(rest.text, tuple(sorted(lines.items()))) for rest, lines in found.items()]
    return [sweep for sweep in sweeps if len(sweep.lines) > 2 and sweep.lines[0][0] == 0]


def _budget_chart(table: Table, sweep: Sweep) -> Chart:
    """Improvement over no tuned layer, relative to it, as the paper draws it."""
    groups = [c for c in table.summed if c.kind == "group"] or ([] if table.parts else list(table.single))
    lines, series = [line for _, line in sweep.lines], []
    for column in dict.fromkeys([*groups, table.average]):
        values = [value.mean for value in compared(lines, column)]
        base = values[0]
        pairs = [(x, value) for (x, _), value in zip(sweep.lines, values, strict=True) if value is not None]
        points = [Point(x, 100 * (value - base) / base) for x, value in pairs] if base else []
        series.append(Series(column.title, points))
    title = f"{sweep.name}: relative improvement over no tuned layer"
    return Chart("line", title, "number of layers", "improvement, %", [one for one in series if one.points])


def relative(values: Sequence[float | None]) -> list[float]:
    """(A - Amin) / (Amax - Amin), as the paper draws learning rates; NaN where that is not defined."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [math.nan if value is None or high == low else (value - low) / (high - low) for value in values]


def reduction_sweeps(table: Table) -> list[Sweep]:
    """Per method the lines over one family of reducers, by cost; without reduction is a point of each family."""
    by_run: dict[Setting, list[Line]] = {}
    for line in (line for block in table.blocks if not block.title for line in block.lines):
        if line.setting.choose or not line.options_by_domain:
            by_run.setdefault(replace(line.setting, reduce="none", label=None), []).append(line)
    sweeps = []
    for run, lines in by_run.items():
        known = [(line.value(GMACS).mean, line) for line in lines]
        cost = [(x, line.setting.reduce.partition(":")[0], line) for x, line in known if x is not None]
        families = dict.fromkeys(family for _, family, _ in cost if family != "none")
        for family in families:
            points = sorted(((x, line) for x, own, line in cost if own in (family, "none")), key=lambda pair: pair[0])
            name = replace(run, reduce=family if len(families) > 1 else "none").text
            sweeps.append(Sweep(name, tuple(points)))
    curves = [sweep for sweep in sweeps if len(sweep.lines) > 1]
    return curves if any(len(sweep.lines) > 2 for sweep in curves) else []


def convergence(table: Table) -> list[Sweep]:
    """Per method and reducer the lines over the number of batches that were adapted to."""
    found: dict[Setting, dict[float, Line]] = {}
    for line in table.lines:
        if line.setting.adapt_for is not None and (line.setting.choose or not line.options_by_domain):
            found.setdefault(replace(line.setting, adapt_for=None), {})[float(line.setting.adapt_for)] = line
    return [Sweep(setting.name, tuple(sorted(lines.items()))) for setting, lines in found.items() if len(lines) > 1]


# ---- t-SNE


def _tsne_figures(table: Table, traces: Traces) -> Iterator[Figure]:
    """One per domain that has any: a row of charts per line, a chart per block of the model."""
    found = {domain: own for domain in table.domains if (own := _tsne_of(table, domain, traces))}
    for domain, (seed, by_line) in found.items():
        blocks = sorted({panel["block"] for tsne in by_line.values() for panel in tsne["panels"]})
        classes = {name: group for tsne in by_line.values() for name, group in _groups_of(tsne).items()}
        charts = [_tsne_chart(name, tsne, block, classes) for name, tsne in by_line.items() for block in blocks]
        where = f"{capitalize(readable(domain))}: " if len(table.domains) > 1 else ""
        images = max(len(tsne["labels"]) for tsne in by_line.values())
        groups = list(dict.fromkeys(filter(None, classes.values())))
        grouped = f" in {len(groups)} groups (colours: {join_names(groups)}; markers: classes)" if groups else ""
        note = (
            f"{where}{images:,} images of {len(classes)} classes{grouped}{f', seed {seed}' if len(table.seeds) > 1 else ''}."
        )
        yield Figure(f"tsne{f'-{domain}' if len(found) > 1 else ''}".replace("/", "-"), "tsne", charts, len(blocks), note)


def _tsne_of(table: Table, domain: str, traces: Traces) -> tuple[int, dict[str, Mapping[str, Any]]] | None:
    """Of several seeds the first of those that most lines have."""
    rows = [(line.name, seed, row) for line in table.lines for (where, seed), row in line.rows.items() if where == domain]
    found = [(name, seed, tsne) for name, seed, row in rows if (tsne := traces.get(row["key"], {}).get("tsne"))]
    if not found:
        return None
    counts = Counter(seed for _, seed, _ in found)
    chosen = min(counts, key=lambda seed: (-counts[seed], seed))
    return chosen, {name: tsne for name, seed, tsne in found if seed == chosen}


def _groups_of(tsne: Mapping[str, Any]) -> dict[str, str]:
    """The group of each class; none where the trace has none."""
    names, groups = tsne["names"], tsne.get("groups") or ()
    return dict(zip(names, groups if len(groups) == len(names) else [""] * len(names), strict=True))


def _tsne_chart(line: str, tsne: Mapping[str, Any], block: int, classes: Mapping[str, str]) -> Chart:
    panel: Mapping[str, Any] = next((panel for panel in tsne["panels"] if panel["block"] == block), {})
    neighbours, points = finite(panel.get("neighbours")), panel.get("points") or []
    title = f"block {block}" + ("" if neighbours is None else f": {NEIGHBOURS}-NN accuracy {100 * neighbours:.0f} %")
    places = list(zip(points, [tsne["names"][label] for label in tsne["labels"]] if points else [], strict=True))
    series = [
        Series(
            f"{name} ({group})" if group else name, [Point(x, y, name=name) for (x, y), own in places if own == name], group
        )
        for name, group in classes.items()
    ]
    return Chart("map", title, "", "", series, group=line)
