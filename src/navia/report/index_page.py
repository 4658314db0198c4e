"""Results as one page: tables that sort, accuracy against cost, curves along the stream, what collapsed, how it was run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from navia.errors import NaviaError
from navia.images import imagenet, sample
from navia.images.domain import Collection, Domain
from navia.images.open import open_domains
from navia.images.preprocessing import Preprocessing
from navia.report import page
from navia.report.bars import bars
from navia.report.figures import RATES, relative_curves
from navia.report.lines import Series, lines
from navia.report.numbers import DASH, finite, shown
from navia.report.page import PictureRow, Section, facts, pictures
from navia.report.results import (
    Block,
    Collapse,
    Column,
    Line,
    Results,
    Row,
    Sweep,
    Table,
    Value,
    collapses,
    convergence,
    effective_classes,
    how_to_read,
    interval_text,
    legible,
    rate_sweeps,
    reduction_sweeps,
    running,
    short_path,
)
from navia.report.scatter import Point, scatter
from navia.report.svg import beside
from navia.report.tables import has_paper, missing_text, paper, paper_note, setting_text, summary

Traces = Mapping[str, Mapping[str, Any]]
Examples = tuple[Sequence[PictureRow], str]

MOST_DOMAINS = 6  # beside each other, with averages and costs
SHOWN_COLLAPSES = 8
TOP_CLASSES = 8
EXAMPLES = 4
THUMBNAIL = 128  # pixels: what a page of fifteen corruptions can carry


def index_page(results: Results, traces: Traces, examples: Examples = ((), ""), notes: Sequence[str] = ()) -> str:
    """examples: pictures of the data, and what to say about them. notes: what else the reader should know, as sentences."""
    sections = [section for table in results.tables for section in _table_sections(table, traces, len(results.tables) > 1)]
    if results.apart:
        sections.append(Section("Why there are several tables", _list(results.apart)))
    sections.append(_collapsed(results, traces))
    if examples[0] or examples[1]:
        sections.append(Section("What the data look like", pictures(examples[0]), examples[1]))
    sections.append(
        Section("Protocol", _protocol(results), "Open a line for what made it: two rows may be compared if all agrees.")
    )
    lead = _unbroken(f"{summary(results)}\n\n{' '.join([missing_text(results), *notes])}")
    return page.page(_title(results), lead, sections)


def _title(results: Results) -> str:
    if len(results.tables) == 1:
        return results.tables[0].title
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    return f"{', '.join(models)}: {len(results.tables)} tables of results"


def _table_sections(table: Table, traces: Traces, several: bool) -> list[Section]:
    """A section for each view of a table; where there are several tables, one for each table."""
    views = list(_views(table, traces))
    if not several:
        return views
    body = "\n".join(_spaced(f"{_heading(v.title)}{v.body_html}{page.paragraphs(v.note, 'note')}") for v in views)
    return [Section(f"Table {table.number}: {table.title}", body)]


def _views(table: Table, traces: Traces) -> Iterator[Section]:
    tables = [_table(table, block, columns, caption) for block in table.blocks for columns, caption in _cuts(table, block)]
    body = page.paragraphs(setting_text(table)) + "\n".join(map(_spaced, tables))
    yield Section("Accuracy, cost and time", body, _unbroken(" ".join(how_to_read(table))))
    if has_paper(table):
        yield Section("Beside the paper", _beside_the_paper(table), paper_note(table))
    plain = [block for block in table.blocks if block.lines[0].setting.adapt_for is None]
    plots = "".join(_against_cost(table, block) + _against_time(table, block) for block in plain)
    if plots:
        yield Section("Accuracy against cost", plots, _COST_NOTE)
    if swept := [*_sweeps(table)]:
        yield Section("What settings change", "".join(swept))
    if curves := [figure for block in plain for figure in _along_the_stream(table, block, traces)]:
        yield Section("Accuracy as the stream goes on", beside(curves), _STREAM_NOTE)


def _heading(title: str) -> str:
    return f'<h3 style="font-size: 1.02rem; margin-top: 2.6rem">{escape(title)}</h3>'


def _spaced(html: str) -> str:
    return f'<div style="margin-bottom: 2.2rem">{html}</div>'


def _unbroken(text: str) -> str:
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


_COST_NOTE = (
    "Cost counts the multiply-accumulates of the forward passes, attention included, and is the same on every computer. "
    "Backward passes are not in it, but in the milliseconds, which hold for the computer of this run only."
)
_STREAM_NOTE = (
    "Each point is the share of right answers up to there, the mean over seeds where there are several. Of more lines than "
    "a plot can hold, only the most accurate of each method is drawn."
)


# ---- tables


def _cuts(table: Table, block: Block) -> Iterator[tuple[Sequence[Column], str]]:
    """The columns of a table, or of two where one would be too wide to see the average: what sums up, then every domain."""
    if len(table.domains) <= MOST_DOMAINS:
        yield table.columns, block.title
        return
    summed = [column for column in table.columns if column.kind != "domain"]
    yield summed, block.title
    yield [column for column in table.columns if column.kind == "domain"], f"{block.title or 'The same'}, domain by domain"


def _table(table: Table, block: Block, shown_columns: Sequence[Column], caption: str) -> str:
    """With a column of published averages beside ours where there are any."""
    beside_average = table.average in shown_columns and has_paper(table, [table.average])
    columns = [page.Column("method")]
    rows = [[page.Cell(line.name, line.name, line.setting.text if line.setting.label else None)] for line in block.lines]
    for column in shown_columns:
        columns.append(page.Column(column.title, True, column.better))
        for line, cells in zip(block.lines, rows, strict=True):
            cells.append(_cell(line.value(column), column))
        if column == table.average and beside_average:
            columns.append(page.Column("paper", True))
            for line, cells in zip(block.lines, rows, strict=True):
                cells.append(_published_cell(paper(table, line, column)))
    return page.table(columns, rows, caption)


def _published_cell(value: float | None) -> page.Cell:
    return page.Cell(value, DASH if value is None else f"{value:.1f}")


def _cell(value: Value, column: Column) -> page.Cell:
    if value.mean is None or not (column.is_accuracy or column.kind == "ece"):
        return page.Cell(value.mean)
    return page.Cell(value.mean, f"{value.mean:.1f}", interval_text(value))


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


def _list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


# ---- plots


def _against_cost(table: Table, block: Block) -> str:
    largest = max((cost for line in block.lines if (cost := line.value(_GMACS).mean) is not None), default=0.0)
    unit, factor = ("GMACs/image", 1.0) if largest >= 1 else ("MMACs/image", 1000.0)
    return _against(table, block, _GMACS, unit, factor)


def _against_time(table: Table, block: Block) -> str:
    return _against(table, block, _MS, "ms/image", 1.0)


_GMACS, _MS = Column("gmacs", "gmacs"), Column("ms", "ms")


def _against(table: Table, block: Block, price: Column, unit: str, factor: float) -> str:
    if len(block.lines) < 2:
        return ""
    points = [_point(table, line, price, factor) for line in block.lines]
    what = "Accuracy" if table.average.kind == "domain" else f"Mean accuracy over {len(table.average.members)} domains"
    clock = ", under a clock" if block.lines[0].setting.realtime else ""
    title = f"{what} against {'multiply-accumulates' if price.kind == 'gmacs' else 'milliseconds'} per image{clock}"
    return scatter(points, unit, f"{table.average.title}, %", title, front=True)


def _point(table: Table, line: Line, price: Column, factor: float) -> Point:
    x, y = line.value(price).mean, line.value(table.average)
    detail = {f"{column.title}, %": _told(line.value(column)) for column in _summed_up(table)}
    detail |= {c.title: shown(line.value(c).mean) for c in table.columns if c.kind in ("ece", "gmacs", "ms")}
    detail |= {"steps of dense forwards": shown(line.realtime_ratio)} if line.realtime_ratio is not None else {}
    detail |= {"guard events": str(line.guard_events)} if line.guard_events else {}
    place = float("nan") if x is None else factor * x, float("nan") if y.mean is None else y.mean
    group = "no adaptation" if line.setting.method == "none" else line.setting.method
    return Point(*place, line.name, group, y.low, y.high, detail)


def _summed_up(table: Table) -> list[Column]:
    """The average first, then its parts: the domains, or their groups where these are too many to read."""
    single = [c for c in table.columns if c.kind == "domain"]
    parts = single if len(single) <= 6 else [c for c in table.columns if c.kind == "group"]
    return list(dict.fromkeys([table.average, *parts]))


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
            title = domain.replace("_", " ").capitalize() + clock
            figures.append(lines(series, "images seen", "accuracy so far, %", title, places))
    return figures


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
        series.append(Series(sweep.name, [_number(values.get(x)) for x in places]))
    return lines(series, x_label, f"{column.title}, %", title, places)


def _rate_curves(sweep: Sweep, rate: str, domains: Sequence[str]) -> str:
    """Over the logarithm, because rates are tried by factors."""
    positive = Sweep(sweep.name, tuple((x, line) for x, line in sweep.lines if x > 0))
    curves = relative_curves(positive, domains)
    series = [Series(domain.replace("_", " "), values) for domain, values in curves.items()]
    places = [float(np.log10(x)) for x, _ in positive.lines]
    tried = ", ".join(f"{x:g}" for x, _ in positive.lines)
    title = f"Sensitivity of {sweep.name} to {rate} ({tried}): 1 is the best of each domain, 0 the worst"
    return lines(series, f"log10 of {rate}", "relative accuracy", title, places) if series else ""


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


# ---- collapse


def _collapsed(results: Results, traces: Traces) -> Section:
    found = [(table, collapse) for table in results.tables for collapse in collapses(table, traces)]
    rule = (
        "A run is listed if it lies more than 5 points below no adaptation on its domain, if the guard stepped in, or if "
        "it answers with fewer than half as many classes in effect (exp of the entropy of its answers) as no adaptation."
    )
    if not found:
        return Section("Collapsed runs", page.paragraphs("None."), rule)
    columns = [page.Column(name) for name in ("run", "domain", "seed")]
    columns += [page.Column("accuracy, %", True), page.Column("no adaptation, %", True)]
    columns += [page.Column("classes in effect", True), page.Column("guard events", True)]
    rows = [_collapse_cells(table, collapse, traces, len(results.tables) > 1) for table, collapse in found]
    worst = {(table.number, c.line.name, c.domain): (table, c) for table, c in reversed(found)}  # one of several seeds
    drawn = [plot for table, collapse in reversed(worst.values()) if (plot := _histogram(table, collapse, traces))]
    more = f" Drawn are the {SHOWN_COLLAPSES} least accurate." if len(drawn) > SHOWN_COLLAPSES else ""
    body = _spaced(page.table(columns, rows)) + beside(drawn[:SHOWN_COLLAPSES])
    return Section("Collapsed runs", body, rule + more)


def _collapse_cells(table: Table, collapse: Collapse, traces: Traces, several: bool) -> list[page.Cell]:
    row, plain = collapse.row, collapse.plain
    ours, theirs = (effective_classes(traces.get(r["key"], {}).get("predicted", ())) if r else None for r in (row, plain))
    return [
        page.Cell(collapse.line.name, small=f"table {table.number}" if several else None),
        page.Cell(collapse.domain.replace("_", " ")),
        page.Cell(str(row["seed"])),
        _share(row["top1"]),
        _share(None if plain is None else plain["top1"]),
        page.Cell(ours, None if ours is None else shown(ours), None if theirs is None else f"{shown(theirs)} without"),
        page.Cell(len(row["guard"]), str(len(row["guard"]))),
    ]


def _share(value: object) -> page.Cell:
    known = finite(value)
    return page.Cell(None) if known is None else page.Cell(100 * known, f"{100 * known:.1f}")


def _histogram(table: Table, collapse: Collapse, traces: Traces) -> str:
    """How often the most frequent answers came, beside how often they did without adaptation."""
    predicted = traces.get(collapse.row["key"], {}).get("predicted", ())
    if not sum(predicted):
        return ""
    top = sorted(range(len(predicted)), key=lambda i: -predicted[i])[:TOP_CLASSES]
    names = class_names(table.protocol)
    groups = [names[i] if names else f"class {i}" for i in top]
    series = {collapse.line.name: [100 * predicted[i] / sum(predicted) for i in top]}
    plain = traces.get(collapse.plain["key"], {}).get("predicted", ()) if collapse.plain else ()
    if sum(plain) and collapse.line.name != "no adaptation":
        series["no adaptation"] = [100 * plain[i] / sum(plain) for i in top]
    title = f"{collapse.line.name} on {collapse.domain.replace('_', ' ')}, seed {collapse.row['seed']}"
    return bars(groups, series, "share of answers, %", title)


def class_names(protocol: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What the columns of the answers are called, where that is known without the model."""
    kind = str(protocol["kind of data"]).partition(",")[0]
    if kind == "embedded":
        return sample.CLASSES
    masks = {"imagenet-r": imagenet.r_classes, "imagenet-a": imagenet.a_classes}
    whole = imagenet.names()
    found = tuple(whole[i] for i in masks[kind]()) if kind in masks else whole if kind.startswith("imagenet") else ()
    return found if len(found) == protocol["classes"] else None


# ---- protocol


def _protocol(results: Results) -> str:
    parts = []
    for table in results.tables:
        before = f"Table {table.number}: " if len(results.tables) > 1 else ""
        shared = {key: "not given" if value is None else str(value) for key, value in table.protocol.items()}
        parts.append(facts(shared, f"{before}what all rows share"))
        parts += [_line_protocol(before, line) for line in table.lines]
    return "\n".join(parts)


def _line_protocol(before: str, line: Line) -> str:
    """All rows of a line behind one summary, each behind its own."""
    rows = [facts(_row_facts(row), _row_title(domain, row)) for (domain, _), row in line.rows.items()]
    count = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    return f'<details class="facts"><summary>{escape(f"{before}{line.name}, {count}")}</summary>{"".join(rows)}</details>'


def _row_title(domain: str, row: Row) -> str:
    top1 = finite(row["top1"])
    return f"{domain.replace('_', ' ')}, seed {row['seed']}: {DASH if top1 is None else f'{100 * top1:.1f} %'}"


def _row_facts(row: Row) -> dict[str, str]:
    return {name: _fact(value) for name, value in _flat(row)}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}".replace("_", " "), value


def _fact(value: object) -> str:
    if value is None or value == [] or value == {}:
        return DASH
    if isinstance(value, float):
        return DASH if finite(value) is None else f"{value:.6g}"
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# ---- examples


def example_pictures(results: Results) -> Examples:
    """A few pictures of each kind of data, as the model saw them; what cannot be opened is said."""
    rows: list[PictureRow] = []
    notes: list[str] = []
    done = set()
    for table in results.tables:
        what = tuple(str(table.protocol[key]) for key in ("data", "severity", "preprocessing"))
        if what in done:
            continue
        done.add(what)
        before = f"table {table.number}, " if len(results.tables) > 1 else ""
        try:
            rows += _examples_of(table, before)
        except (NaviaError, OSError) as error:
            notes.append(f"No pictures of {table.title}: {error}.")
    shown = "Cropped as the model sees them. They show the data, not how it was answered."
    return rows, " ".join([*([shown] if rows else []), *notes])


def _examples_of(table: Table, before: str) -> list[PictureRow]:
    protocol = table.protocol
    data, kind = str(protocol["data"]), str(protocol["kind of data"])
    if data.startswith("datasets:") and not Path(data.split(":")[1]).exists():
        raise NaviaError("the data set is not a local one")
    count = 1000 if kind.startswith("imagenet") else protocol["classes"]
    names = class_names(protocol)
    made = kind.endswith("made here")
    given = next((list(row["domains"]) for row in table.rows if row.get("domains")), [])
    wanted = list(table.domains) if protocol["stream"] == "reset" else given
    opened = open_domains(data, count, names, corruptions=wanted if made else (), severity=protocol["severity"] or 5)
    parts = {name if made else _part(name, protocol["severity"], opened.domains) for name in wanted}
    domains = [domain for domain in opened.domains if domain.name in parts] or list(opened.domains[:1])
    preprocessing = seen_as(str(protocol["preprocessing"]))
    clean = [Domain("clean", domains[0].collection)] if made else []
    return [_picture_row(domain, preprocessing, names, before) for domain in (*clean, *domains)]


def _part(domain: str, severity: int, found: Sequence[Domain]) -> str:
    """The name of a found part: a downloaded ImageNet-C has its severity there."""
    long = f"{domain}/{severity}"
    return long if any(part.name == long for part in found) else domain


def _picture_row(domain: Domain, preprocessing: Preprocessing, names: Sequence[str] | None, before: str) -> PictureRow:
    positions = _some(domain.collection)
    images = [_thumbnail(domain.picture(i, preprocessing)) for i in positions]
    labels = [domain.label(i) for i in positions]
    captions = [names[label] if names and 0 <= label < len(names) else "" for label in labels]
    return PictureRow(f"{before}{domain.name.replace('_', ' ')}", images, captions)


def _some(collection: Collection) -> list[int]:
    return [int(i) for i in np.random.default_rng(0).permutation(len(collection))[:EXAMPLES]]


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape[:2]
    if max(height, width) <= THUMBNAIL:
        return pixels
    scale = THUMBNAIL / max(height, width)
    smaller = Image.fromarray(pixels).resize((round(scale * width), round(scale * height)), Image.Resampling.LANCZOS)
    return np.asarray(smaller)


def seen_as(description: str) -> Preprocessing:
    """The crop that a row's preprocessing describes. A page must not load a model to show a picture."""
    crop = re.search(r"centre crop (\d+)x(\d+)", description)
    short = re.search(r"shorter side to (\d+) px \((\w+)\)", description)
    exact = re.search(r"resize to (\d+)x(\d+) px \((\w+)\)", description)
    means = re.search(r"mean \(([^)]*)\)", description)
    if crop is None or means is None:
        raise NaviaError(f"unknown preprocessing {description!r}")
    channels = len(means[1].split(","))
    resize = int(short[1]) if short else (int(exact[2]), int(exact[1])) if exact else None
    interpolation = short[2] if short else exact[3] if exact else "bicubic"
    return Preprocessing((int(crop[2]), int(crop[1])), (0.0,) * channels, (1.0,) * channels, resize, interpolation)
