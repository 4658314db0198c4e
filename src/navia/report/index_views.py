"""Views of one table on the page of results: its numbers, the paper's, cost and time, settings, the stream."""

from collections.abc import Iterator, Sequence

import numpy as np

from navia.evaluation.explain import NEIGHBOURS
from navia.report import page
from navia.report.clouds import Cloud, clouds
from navia.report.lines import Series, lines
from navia.report.numbers import DASH, shown
from navia.report.page import Section
from navia.report.results import (
    GMACS,
    MS,
    RATES,
    Block,
    Column,
    Line,
    Picture,
    Sweep,
    Table,
    Traces,
    Value,
    best,
    compared,
    convergence,
    how_to_read,
    interval_text,
    legible,
    rate_sweeps,
    reduction_sweeps,
    relative_curves,
    running,
    texts,
    tsne_pictures,
)
from navia.report.scatter import Point, scatter
from navia.report.svg import beside
from navia.report.tables import differences_text, has_paper, paper, paper_note, setting_text
from navia.report.words import COST_NOTE, capital, cost_unit, readable

_STREAM_NOTE = (
    "Each point is the share of right answers up to there, the mean over seeds where there are several. Of more lines than "
    "a plot can hold, only the most accurate of each method is drawn."
)
_TSNE_NOTE = (
    "Each point is a picture of the last third of the stream, placed by t-SNE of its CLS feature after the block (blocks "
    "count from 0), once nothing adapts any more. t-SNE shows which pictures are neighbours. It cannot show how far groups "
    "lie apart, how large or how dense they are, nor how one panel compares with another: each is laid out by itself. "
    f"{NEIGHBOURS}-NN accuracy is measured before the projection and may be compared: the share of pictures whose class "
    f"most of their {NEIGHBOURS} nearest others have."
)


def table_sections(table: Table, traces: Traces, several: bool) -> list[Section]:
    """A section for each view of a table; where there are several tables, one for each table."""
    views = list(_views(table, traces))
    if not several:
        return views
    body = "\n".join(page.spaced(f"{page.heading(v.title)}{v.body_html}{page.paragraphs(v.note, 'note')}") for v in views)
    return [Section(f"Table {table.number}: {table.title}", body)]


def _views(table: Table, traces: Traces) -> Iterator[Section]:
    tables = [_table(table, block, columns, caption) for block in table.blocks for columns, caption in _cuts(table, block)]
    body = page.paragraphs(setting_text(table)) + "\n".join(map(page.spaced, tables))
    note = "\n\n".join(filter(None, [" ".join(how_to_read(table)), differences_text(table)]))
    yield Section("Accuracy, cost and time", body, unbroken(note))
    if has_paper(table):
        yield Section("Beside the paper", _beside_the_paper(table), paper_note(table))
    plain = [block for block in table.blocks if block.lines[0].setting.adapt_for is None]
    plots = "".join(_against_cost(table, block) + _against_time(table, block) for block in plain)
    if plots:
        yield Section("Accuracy against cost", plots, COST_NOTE)
    if swept := [*_sweeps(table)]:
        yield Section("What settings change", "".join(swept))
    if curves := [figure for block in plain for figure in _along_the_stream(table, block, traces)]:
        yield Section("Accuracy as the stream goes on", beside(curves), _STREAM_NOTE)
    if found := tsne_pictures(table, traces):
        yield Section("What the blocks tell apart", "\n".join(_clouds(picture, table) for picture in found), _TSNE_NOTE)


def unbroken(text: str) -> str:
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


# ---- tables


def _cuts(table: Table, block: Block) -> Iterator[tuple[Sequence[Column], str]]:
    """The columns of a table, or of two where one would be too wide to see the average: what sums up, then every domain."""
    if not table.is_wide:
        yield block.of(table.columns), block.title
        return
    yield block.of(table.summed), block.title
    yield table.single, f"{block.title or 'The same'}, domain by domain"


def _table(table: Table, block: Block, shown_columns: Sequence[Column], caption: str) -> str:
    """With a column of published averages beside ours where there are any."""
    beside_average = table.average in shown_columns and has_paper(table, [table.average])
    columns = [page.Column("method")]
    rows = [[page.Cell(line.name, line.name, line.text if line.setting.label else None)] for line in block.lines]
    for column in shown_columns:
        columns.append(page.Column(column.title, True, column.better))
        ranked, marks, shown_texts = compared(block.lines, column), best(block, column), texts(block, column)
        for i, (line, cells) in enumerate(zip(block.lines, rows, strict=True)):
            small = interval_text(line.value(column)) if column.is_accuracy else ""
            cells.append(page.Cell(ranked[i].mean, shown_texts[i], small or None, marks[i]))
        if column == table.average and beside_average:
            columns.append(page.Column("paper", True))
            for line, cells in zip(block.lines, rows, strict=True):
                cells.append(_published_cell(paper(table, line, column)))
    return page.table(columns, rows, caption)


def _published_cell(value: float | None) -> page.Cell:
    return page.Cell(value, DASH if value is None else f"{value:.1f}")


def _beside_the_paper(table: Table) -> str:
    """Ours, with the published value below it."""
    columns = [c for c in table.columns if any(paper(table, line, c) is not None for line in table.lines)]
    known = [line for line in table.lines if any(paper(table, line, c) is not None for c in columns)]
    rows = [[page.Cell(line.name), *(_pair(table, line, column) for column in columns)] for line in known]
    heads = [page.Column("method"), *(page.Column(c.title, True) for c in columns)]
    return page.table(heads, rows, "Ours, and below in small the paper's")


def _pair(table: Table, line: Line, column: Column) -> page.Cell:
    ours, theirs = line.value(column).mean, paper(table, line, column)
    small = DASH if theirs is None else f"{theirs:.1f}"
    return page.Cell(None) if ours is None else page.Cell(ours, f"{ours:.1f}", small)


# ---- plots


def _against_cost(table: Table, block: Block) -> str:
    known = (cost for line in block.lines if (cost := line.value(GMACS).mean) is not None)
    return _against(table, block, GMACS, *cost_unit(max(known, default=0.0)))


def _against_time(table: Table, block: Block) -> str:
    return _against(table, block, MS, "ms/image", 1.0)


def _against(table: Table, block: Block, price: Column, unit: str, factor: float) -> str:
    if len(block.lines) < 2:
        return ""
    points = [_point(table, line, price, factor) for line in block.lines]
    what = "Accuracy" if table.average.kind == "domain" else f"Mean accuracy over {len(table.average.members)} domains"
    clock = ", under a clock" if block.lines[0].setting.realtime else ""
    title = f"{what} against {'multiply-accumulates' if price.kind == 'gmacs' else 'milliseconds'} per image{clock}"
    return scatter(points, unit, f"{table.average.title}, %", title)


def _point(table: Table, line: Line, price: Column, factor: float) -> Point:
    x, y = line.value(price).mean, line.value(table.average)
    detail = {f"{column.title}, %": _told(line.value(column)) for column in _summed_up(table)}
    detail |= {c.title: shown(line.value(c).mean) for c in table.columns if c.kind in ("ece", "gmacs", "ms", "memory")}
    detail |= {"steps of dense forwards": shown(line.realtime_ratio)} if line.realtime_ratio is not None else {}
    detail |= {"guard events": str(line.guard_events)} if line.guard_events else {}
    place = float("nan") if x is None else factor * x, float("nan") if y.mean is None else y.mean
    group = "no adaptation" if line.setting.method == "none" else line.setting.method
    return Point(*place, line.name, group, y.low, y.high, detail)


def _summed_up(table: Table) -> list[Column]:
    """The average first, in real time too, then its parts: the domains, or their groups where these are too many to read."""
    clock = [c for c in table.summed if c.kind == "clock"]
    parts = [c for c in table.summed if c.kind == "group"] if table.is_wide else table.single
    return list(dict.fromkeys([table.average, *clock, *parts]))


def _told(value: Value) -> str:
    if value.mean is None:
        return DASH
    interval = interval_text(value)
    return f"{value.mean:.1f}" + ("" if not interval else f" {interval}" if value.interval == "t" else f" ({interval})")


def _along_the_stream(table: Table, block: Block, traces: Traces) -> list[str]:
    clock = ", under a clock" if block.lines[0].setting.realtime else ""
    figures = []
    for domain in table.domains:
        curves = {line.name: running(line, domain, traces) for line in legible(table, block)}
        curves = {name: curve for name, curve in curves.items() if curve}
        places = sorted({at for curve in curves.values() for at in curve})
        if len(places) > 1:
            series = [Series(name, [curve.get(at, float("nan")) for at in places]) for name, curve in curves.items()]
            title = capital(readable(domain)) + clock
            figures.append(lines(series, "images seen", "accuracy so far, %", title, places))
    return figures


def _clouds(picture: Picture, table: Table) -> str:
    where = f"{capital(readable(picture.domain))}: " if len(table.domains) > 1 else ""
    seed = f", seed {picture.seed}" if len(table.seeds) > 1 else ""
    said = f"{where}{picture.count:,} pictures of {len(picture.classes)} classes{seed}."
    rows = {
        name: [Cloud(own[block].title, own[block].points) for block in picture.blocks if block in own]
        for name, own in picture.panels.items()
    }
    return page.spaced(page.paragraphs(said) + clouds(rows, picture.classes))


def _sweeps(table: Table) -> Iterator[str]:
    if found := convergence(table):
        yield _curves(
            found, table.average, "batches adapted to", "Accuracy on the last third of the stream after so many batches"
        )
    for rate in RATES:
        for sweep in rate_sweeps(table, rate):
            yield _rate_curves(sweep, rate, table.domains)
    if found := reduction_sweeps(table):
        title = "Each method over its reducers"
        yield _curves(found, table.average, "GMACs/image", title)


def _curves(sweeps: Sequence[Sweep], column: Column, x_label: str, title: str) -> str:
    places = sorted({x for sweep in sweeps for x, _ in sweep.lines})
    series = []
    for sweep in sweeps:
        values = {x: line.value(column).mean for x, line in sweep.lines}
        series.append(Series(sweep.name, [_number(values.get(x)) for x in places], gaps=False))
    return lines(series, x_label, f"{column.title}, %", title, places)


def _rate_curves(sweep: Sweep, rate: str, domains: Sequence[str]) -> str:
    """Over the logarithm, because rates are tried by factors."""
    positive = Sweep(sweep.name, tuple((x, line) for x, line in sweep.lines if x > 0))
    curves = relative_curves(positive, domains)
    series = [Series(readable(domain), values) for domain, values in curves.items()]
    places = [float(np.log10(x)) for x, _ in positive.lines]
    tried = ", ".join(f"{x:g}" for x, _ in positive.lines)
    title = f"Sensitivity of {sweep.name} to {rate} ({tried}): 1 is the best of each domain, 0 the worst"
    return lines(series, f"log10 of {rate}", "relative accuracy", title, places) if series else ""


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
