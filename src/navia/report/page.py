"""Results as one self-contained HTML page: sortable tables, charts, example images, protocol."""

import base64
import gzip
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from navia.errors import InputError
from navia.evaluation.explain import NEIGHBOURS
from navia.report.charts import Chart, Figure, figures, histogram
from navia.report.compare import collapses, compared, comparisons, effective_classes, interval_text, read_column, step_times
from navia.report.formatting import DASH, count, finite, format_number, join_names, readable
from navia.report.groups import short_path, value_text
from navia.report.images import Examples, ImageRow, class_names, example_images
from navia.report.lines import Column, Traces
from navia.report.published import has_paper, paper, paper_columns, paper_gflops
from navia.report.tables import Block, Results, Table
from navia.report.text import (
    GFLOPS_TITLE,
    PAIRS_NOTE,
    TIMES_NOTE,
    TIMES_TITLE,
    against_title,
    differences_text,
    how_to_read,
    missing_text,
    pair_cells,
    paper_note,
    setting_text,
    summary,
    times_rows,
    why_several,
)

FOLDER = Path(__file__).parent / "templates"
PIXELATED_BELOW = 128  # images with fewer pixels a side are enlarged without smoothing
SHOWN_COLLAPSES = 8
Part = dict[str, Any]  # of a section: `kind` names the macro of page.html that renders it

_SECTIONS = {  # of figures: title and note
    "cost": (
        "Accuracy against cost",
        "Cost counts the multiply-accumulates of the forward passes, attention included, and is the same on every computer. "
        "Backward passes are not in it, but in the milliseconds, which hold for the computer of this run only.",
    ),
    "settings": ("Effect of settings", ""),
    "stream": (
        "Accuracy along the stream",
        "Each point is the share of right predictions up to there, the mean over seeds where there are several. Of more "
        "lines than a chart can hold, only the most accurate of each method is drawn.",
    ),
    "tsne": (
        "Classes as the blocks separate them",
        "Each point is an image of the last third of the stream, placed by t-SNE of its CLS feature after the block (blocks "
        "count from 0), when adaptation has ended. t-SNE shows which images are neighbours. It does not show how far groups "
        "lie apart, how large or how dense they are, nor how one panel compares with another: each has its own layout. "
        f"{NEIGHBOURS}-NN accuracy is measured before the projection and may be compared: the share of images whose class "
        f"most of their {NEIGHBOURS} nearest others have.",
    ),
}
_COLLAPSE_RULE = (
    "A run is listed if it lies more than 5 points below no adaptation on its domain, if the guard acted, or if it predicts "
    "fewer than half as many classes in effect (exp of the entropy of its predictions) as no adaptation."
)


class Section(NamedTuple):
    title: str
    parts: Sequence[Part]
    note: str = ""


class Introduction(NamedTuple):
    """Replaces title and lead of the page. steps: sentences, each with a command to try next."""

    title: str
    lead: str
    steps: Sequence[tuple[str, str]] = ()


def report_page(
    results: Results, traces: Traces, examples: Examples = ((), ""), notes: Sequence[str] = (),
    introduction: Introduction | None = None,
) -> str:  # fmt: skip
    """One HTML document that needs no other file. notes: further sentences for the reader."""
    several = len(results.tables) > 1
    sections = [section for table in results.tables for section in _table_sections(table, traces, several)]
    if why := why_several(results):
        sections.append(Section("Why there are several tables", [{"kind": "list", "items": why}]))
    sections.append(_collapse_section(results, traces))
    if examples[0] or examples[1]:
        images = Section("What the data look like", [_image_part(row) for row in examples[0]], examples[1])
        sections.insert(0 if introduction else len(sections), images)
    if introduction and introduction.steps:
        sections.append(Section("What to try next", [{"kind": "steps", "items": introduction.steps}]))
    sections.append(_protocol_section(results))
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    named = ", ".join(models) if len(models) < 3 else f"{len(models)} models"
    title = f"{named}: {len(results.tables)} tables of results" if several else results.tables[0].title
    lead = f"{summary(results)}\n\n{' '.join([missing_text(results), *notes])}"
    if introduction:
        title, lead = introduction.title, f"{introduction.lead}\n\n{lead}"
    return render(title, lead, sections)


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """A page of any sections. A blank line in lead and notes starts a new paragraph."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True)
    environment.filters["paragraphs"] = lambda text: [part.strip() for part in text.split("\n\n") if part.strip()]
    environment.filters["unbroken"] = lambda text: str(text).replace(" %", "\N{NO-BREAK SPACE}%")
    environment.filters["keep_hyphen"] = lambda text: str(text).replace("ImageNet-", "ImageNet\N{NON-BREAKING HYPHEN}")
    found = [chart for section in sections for part in section.parts for chart in part.get("charts", ())]
    files = {name: Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js", "echarts.min.js")}
    template, data = environment.get_template("page.html"), list(map(_chart_data, found))
    return template.render(title=title, lead=lead, sections=sections, files=files, charts_data=data).lstrip()


def _chart_data(chart: Chart) -> dict[str, Any]:
    """A chart for page.js: points as [x, y, low, high, name, detail], without what is missing at the end."""
    series = []
    for one in chart.series:
        points = [
            [_short(p.x), _short(p.y), _short(p.low), _short(p.high), p.name or p.mark, dict(p.detail)] for p in one.points
        ]
        kept = [point[: max(i for i, value in enumerate(point) if value or i < 2) + 1] for point in points]
        series.append({"name": one.name, "points": kept} | ({"group": one.group} if one.group else {}))
    labels = {"title": chart.title, "x": chart.x_label, "y": chart.y_label}
    return {"kind": chart.kind, "log": chart.log_x, **labels, "series": series}


def _short(value: float | str | None) -> float | str | None:
    """Six digits are more than a chart can show."""
    return value if isinstance(value, str) else None if finite(value) is None else float(f"{value:.6g}")


# ---- parts


def cell(value: float | str | None, text: str | None = None, small: str = "", mark: bool = False) -> Part:
    """value: what is sorted by; a missing number is a dash, whatever its text is. mark: the best of its column."""
    if not isinstance(value, str) and finite(value) is None:
        return {"key": "", "text": DASH, "small": small if text == DASH else "", "mark": False}
    return {"key": value, "text": str(value) if text is None else text, "small": small, "mark": mark}


def table_part(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Part]], caption: str = "") -> Part:
    """A table that sorts by a click on a header. columns: names, and "text", "high" or "low": which numbers are better."""
    if wrong := [len(row) for row in rows if len(row) != len(columns)]:
        raise InputError(f"a table of {len(columns)} columns got a row of {wrong[0]} cells")
    return {"kind": "table", "columns": columns, "rows": rows, "caption": caption}


def _charts_part(charts: Sequence[Chart], text: str = "") -> Part:
    """Charts with one legend for all of them."""
    groups = [(name, list(own)) for name, own in itertools.groupby(charts, key=lambda chart: chart.group)]
    layout = "maps" if charts[0].kind == "map" else "beside" if len(charts) > 1 else "alone"
    return {"kind": "charts", "charts": charts, "groups": groups, "layout": layout, "text": text}


def _image_part(row: ImageRow) -> Part:
    if len(row.images) != len(row.captions):
        raise InputError(f"images {row.title!r}: {len(row.images)} images, {len(row.captions)} captions")
    pairs = zip(row.images, row.captions, strict=True)
    items = [(image_uri(image), image.shape, caption.split("\n")) for image, caption in pairs]
    return {"kind": "images", "title": row.title, "items": items, "pixelated_below": PIXELATED_BELOW}


def image_uri(image: np.ndarray) -> str:
    """uint8 [H, W] or [H, W, 3] as a data URI: small ones as PNG, others as JPEG, which is a tenth of the size."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or not image.size:
        raise InputError(f"an image is uint8 [H, W] or [H, W, 3], got {image.dtype} {list(image.shape)}")
    kind = "PNG" if max(image.shape[:2]) < PIXELATED_BELOW else "JPEG"
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, kind, optimize=True, quality=88)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


# ---- sections


def _table_sections(table: Table, traces: Traces, several: bool) -> list[Section]:
    """A section for each view of a table; where there are several tables, one for each table."""
    views = list(_views(table, traces))
    parts: list[Part] = []
    for view in views:
        parts += [{"kind": "heading", "text": view.title}, *view.parts, {"kind": "note", "text": view.note}]
    return [Section(f"Table {table.number}: {table.title}", parts)] if several else views


def _views(table: Table, traces: Traces) -> Iterator[Section]:
    tables = []
    for block in table.blocks:  # averages, then every domain, where one table would be too wide to see the average
        tables.append(_results_part(table, block, table.main, block.title))
        if table.parts:
            tables.append(_results_part(table, block, table.parts, f"{block.title or 'The same'}, domain by domain"))
    note = "\n\n".join(filter(None, [" ".join(how_to_read(table)), differences_text(table)]))
    yield Section("Accuracy, cost and time", [{"kind": "text", "text": setting_text(table)}, *tables], note)
    if has_paper(table):
        yield Section("Beside the paper", [_paper_part(table)], paper_note(table))
    if pairs := _pairs_part(table):
        yield Section("Pair by pair", [pairs], PAIRS_NOTE)
    if times := step_times(table):
        titles = [("method", "text"), ("against", "text"), ("change", "low"), ("paper", "low")]
        cells = [
            [cell(name), cell(dense), cell(one.percent, ours), cell(one.paper, theirs)]
            for one, (name, dense, ours, theirs) in zip(times, times_rows(table), strict=True)
        ]
        yield Section(TIMES_TITLE, [table_part(titles, cells)], TIMES_NOTE)
    drawn: dict[str, list[Figure]] = {}
    for figure in figures(table, traces):
        if figure.section:
            drawn.setdefault(figure.section, []).append(figure)
    for name, (title, text) in _SECTIONS.items():
        if name in drawn:
            yield Section(title, [_charts_part(figure.charts, figure.note) for figure in drawn[name]], text)


def _results_part(table: Table, block: Block, shown: Sequence[Column], caption: str) -> Part:
    """With a column of published averages beside ours where there are any."""
    columns = [("method", "text")]
    rows = [[cell(line.name, small=line.text if line.setting.label else "")] for line in block.lines]
    for column in block.select(shown):
        beside = column == table.average and has_paper(table, [column])
        columns += [(column.title, column.better), ("paper", "low")] if beside else [(column.title, column.better)]
        ranked = [value.mean for value in compared(block.lines, column)]
        for cells, rank, (line, text, value, mark) in zip(rows, ranked, read_column(block, column), strict=True):
            cells.append(cell("" if rank is None else rank, text, interval_text(value), mark))
            cells += [_percent(paper(table, line, column), 1)] if beside else []
    return table_part(columns, rows, caption)


def _percent(value: object, factor: float = 100) -> Part:
    known = finite(value)
    return cell(None) if known is None else cell(factor * known, f"{factor * known:.1f}")


def _paper_part(table: Table) -> Part:
    """Ours, with the published value below it."""
    columns = paper_columns(table)
    known = [line for line in table.lines if any(paper(table, line, c) is not None for c in columns)]
    titles = [("method", "text"), *((column.title, "low") for column in columns)]
    rows = [[cell(line.name)] for line in known]
    for cells, line in zip(rows, known, strict=True):
        for column in columns:
            theirs = paper(table, line, column)
            cells.append(_percent(line.value(column).mean, 1) | {"small": DASH if theirs is None else f"{theirs:.1f}"})
    if gflops := [paper_gflops(table, line) for line in known if paper_gflops(table, line) is not None]:
        titles.append((GFLOPS_TITLE, "low"))
        for cells, line in zip(rows, known, strict=True):
            ours, theirs = line.median("gmacs_paper"), paper_gflops(table, line)
            cells.append(cell(ours, format_number(ours)) | {"small": format_number(theirs)})
    return table_part(titles, rows, f"Ours, and below in small the paper's{'; both counts per image' if gflops else ''}")


def _pairs_part(table: Table) -> Part | None:
    """Lines against each other on the same images; a settled difference is bold."""
    found = comparisons(table)
    lines = [line.name for line in table.blocks[0].lines if any(line.name in own for _, own in found)]
    rows = [[cell(name)] for name in lines]
    for _, own in found:
        for cells, name in zip(rows, lines, strict=True):
            pair = own.get(name)
            points, *small = pair_cells(pair) if pair else ("", "", "")
            cells.append(cell(pair.points, points, ", ".join(filter(None, small)), pair.settled) if pair else cell(None))
    titles = [("method", "text"), *((against_title(title, own), "high") for title, own in found)]
    return table_part(titles, rows, "Points above the other line; bold where the interval excludes 0") if found else None


def _collapse_section(results: Results, traces: Traces) -> Section:
    found = [(table, collapse) for table in results.tables for collapse in collapses(table, traces)]
    if not found:
        return Section("Collapsed runs", [{"kind": "text", "text": "None."}], _COLLAPSE_RULE)
    numbers = ("accuracy, %", "no adaptation, %", "classes in effect", "guard events")
    columns = [("run", "text"), ("domain", "text"), ("seed", "text"), *((name, "low") for name in numbers)]
    rows: list[list[Part]] = []
    charts: dict[tuple[int, str, str], Chart] = {}
    for table, collapse in found:
        row, source = collapse.row, collapse.source
        ours, theirs = (effective_classes(r, traces) for r in (row, source))
        small = "" if theirs is None else f"{format_number(theirs)} without"
        name = cell(collapse.line.name, small=f"table {table.number}" if len(results.tables) > 1 else "")
        accuracies = [_percent(r["top1"] if r else None) for r in (row, source)]
        classes = cell(ours, format_number(ours), small)
        guard = cell(len(row["guard"]), str(len(row["guard"])))
        rows.append([name, cell(readable(collapse.domain)), cell(str(row["seed"])), *accuracies, classes, guard])
        if chart := histogram(collapse, traces, class_names(table.dataset_of(collapse.domain).protocol)):
            charts.setdefault((table.number, collapse.line.name, collapse.domain), chart)  # one of several seeds
    more = f" Drawn are the {SHOWN_COLLAPSES} least accurate." if len(charts) > SHOWN_COLLAPSES else ""
    drawn = [_charts_part(list(charts.values())[:SHOWN_COLLAPSES])] if charts else []
    return Section("Collapsed runs", [table_part(columns, rows), *drawn], _COLLAPSE_RULE + more)


def _protocol_section(results: Results) -> Section:
    """What all rows of a table share, a short view of each row, and all rows in full as a download."""
    parts: list[Part] = []
    rows: dict[str, Mapping[str, Any]] = {}
    columns = [("line", "text"), ("domain", "text"), ("seed", "low"), ("accuracy, %", "high"), ("ms/image", "low")]
    for table in results.tables:
        title = f"Table {table.number}: " if len(results.tables) > 1 else ""
        shared = {key: "not given" if value is None else str(value) for key, value in table.protocol.items()}
        parts.append({"kind": "facts", "title": f"{title}what all rows share", "items": shared})
        for dataset in table.datasets if len(table.datasets) > 1 else ():
            own = {key: value_text(value) for key, value in dataset.protocol.items() if key not in shared}
            parts += [{"kind": "facts", "title": f"{title}{dataset.title}", "items": own}] if own else []
        cells = [
            [cell(line.name), cell(readable(domain)), cell(seed, str(seed)), _percent(row["top1"]),
             cell(row["ms_per_image"], format_number(row["ms_per_image"])), cell(str(row["key"]))]
            for line in table.lines
            for (domain, seed), row in line.rows.items()
        ]  # fmt: skip
        short = table_part([*columns, ("key", "text")], cells)
        parts.append({"kind": "facts", "title": f"{title}{count(len(cells), 'row')}", "table": short})
        rows |= {row["key"]: row for row in table.rows}
    text = "".join(json.dumps(row) + "\n" for row in rows.values())
    data = base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)).decode("ascii")
    parts.append({"kind": "download", "rows": count(len(rows), "row"), "uri": f"data:application/gzip;base64,{data}"})
    note = "Two rows may be compared if all they share agrees. The file has every field of every row, as in rows.jsonl."
    return Section("Protocol", parts, note)


# ---- the demonstration


def demo_page(results: Results, traces: Traces, steps: Sequence[tuple[str, str]]) -> str:
    """The page of `navia demo`: the report of its rows with an introduction."""
    (table,) = results.tables
    shifts = join_names([readable(domain) for domain in table.domains])
    lead = (
        f"A Vision Transformer ({table.protocol['model']}) was trained on clean images. Here it meets others ({shifts}, "
        f"severity {table.protocol['severity']} of 5) and adapts to them without labels, with all of its tokens and with "
        f"fewer. Every number was computed in this run. One model and {count(len(table.domains), 'shift')} show how the "
        "methods behave, not which of them is best in general."
    )
    images, note = example_images(results, traces)
    note += f" Predictions: before is no adaptation, after is {table.lines[-1].name} at the end of the stream."
    title = "navia: what shift costs, and what adaptation gives back"
    return report_page(results, traces, (images, note), introduction=Introduction(title, lead, steps))
