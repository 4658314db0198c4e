"""Results as one self-contained HTML page: sortable tables, charts, example images, protocol."""

import base64
import gzip
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from navia.errors import InputError
from navia.evaluation.tsne import NEIGHBOURS
from navia.report.charts import Chart, Figure, figures, histogram
from navia.report.compare import best, collapses, column_texts, compared, effective_classes, has_paper, interval_text, paper
from navia.report.examples import Examples, ImageRow, class_names, example_images
from navia.report.formatting import DASH, count, finite, format_number, join_names, readable
from navia.report.lines import Column, Traces
from navia.report.tables import Block, Results, Table, short_path
from navia.report.text import differences_text, how_to_read, missing_text, paper_note, setting_text, summary, why_several

FOLDER = Path(__file__).parent / "templates"
PIXELATED_BELOW = 128  # images with fewer pixels a side are enlarged without smoothing
SHOWN_COLLAPSES = 8
Part = dict[str, Any]  # of a section: `kind` names the macro of page.html that renders it

_NOTES = {
    "cost": "Cost counts the multiply-accumulates of the forward passes, attention included, and is the same on every "
    "computer. Backward passes are not in it, but in the milliseconds, which hold for the computer of this run only.",
    "settings": "",
    "stream": "Each point is the share of right predictions up to there, the mean over seeds where there are several. Of "
    "more lines than a chart can hold, only the most accurate of each method is drawn.",
    "tsne": "Each point is an image of the last third of the stream, placed by t-SNE of its CLS feature after the block "
    "(blocks count from 0), when adaptation has ended. t-SNE shows which images are neighbours. It does not show how far "
    "groups lie apart, how large or how dense they are, nor how one panel compares with another: each has its own layout. "
    f"{NEIGHBOURS}-NN accuracy is measured before the projection and may be compared: the share of images whose class most "
    f"of their {NEIGHBOURS} nearest others have.",
}
_TITLES = {
    "cost": "Accuracy against cost",
    "settings": "Effect of settings",
    "stream": "Accuracy along the stream",
    "tsne": "Classes as the blocks separate them",
}
_COLLAPSE_RULE = (
    "A run is listed if it lies more than 5 points below no adaptation on its domain, if the guard acted, or if it predicts "
    "fewer than half as many classes in effect (exp of the entropy of its predictions) as no adaptation."
)


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]
    note: str = ""


@dataclass(frozen=True)
class Introduction:
    """Replaces title and lead of the page. steps: sentences, each with a command to try next."""

    title: str
    lead: str
    steps: Sequence[tuple[str, str]] = ()


def report_page(
    results: Results,
    traces: Traces,
    examples: Examples = ((), ""),
    notes: Sequence[str] = (),
    introduction: Introduction | None = None,
) -> str:
    """The whole page.

    Args:
        results: Tables of `tabulate`.
        traces: Traces of the rows, by key.
        examples: Example images of the data, and a note on them.
        notes: Further sentences for the reader.
        introduction: Of a demonstration, in place of the title and lead.

    Returns:
        An HTML document that needs no other file.
    """
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
    title = f"{', '.join(models)}: {len(results.tables)} tables of results" if several else results.tables[0].title
    lead = f"{summary(results)}\n\n{' '.join([missing_text(results), *notes])}"
    if introduction:
        title, lead = introduction.title, f"{introduction.lead}\n\n{lead}"
    return render(title, lead, sections)


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """A page of any sections. A blank line in lead and notes starts a new paragraph."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True)
    environment.filters["paragraphs"] = lambda text: [part.strip() for part in text.split("\n\n") if part.strip()]
    environment.filters["unbroken"] = lambda text: str(text).replace(" %", "\N{NO-BREAK SPACE}%")
    found = [chart for section in sections for part in section.parts for chart in part.get("charts", ())]
    files = {name: Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js", "echarts.min.js")}
    return (
        environment.get_template("page.html")
        .render(title=title, lead=lead, sections=sections, files=files, charts_data=list(map(_chart_data, found)))
        .lstrip()
    )


def _chart_data(chart: Chart) -> dict[str, Any]:
    """A chart for page.js: points as [x, y, low, high, name, detail], without what is missing at the end."""
    series = []
    for one in chart.series:
        points = [[_short(p.x), _short(p.y), _short(p.low), _short(p.high), p.name, dict(p.detail)] for p in one.points]
        kept = [point[: max(i for i, value in enumerate(point) if value or i < 2) + 1] for point in points]
        series.append({"name": one.name, "points": kept})
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
    for row in rows:
        if len(row) != len(columns):
            raise InputError(f"a table of {len(columns)} columns got a row of {len(row)} cells")
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
    if not several:
        return views
    parts: list[Part] = []
    for view in views:
        parts += [{"kind": "heading", "text": view.title}, *view.parts, {"kind": "note", "text": view.note}]
    return [Section(f"Table {table.number}: {table.title}", parts)]


def _views(table: Table, traces: Traces) -> Iterator[Section]:
    tables = [
        _results_part(table, block, columns, caption) for block in table.blocks for columns, caption in _cuts(table, block)
    ]
    note = "\n\n".join(filter(None, [" ".join(how_to_read(table)), differences_text(table)]))
    yield Section("Accuracy, cost and time", [{"kind": "text", "text": setting_text(table)}, *tables], note)
    if has_paper(table):
        yield Section("Beside the paper", [_paper_part(table)], paper_note(table))
    drawn: dict[str, list[Figure]] = {}
    for figure in figures(table, traces):
        if figure.section:
            drawn.setdefault(figure.section, []).append(figure)
    for name in (name for name in _TITLES if name in drawn):
        parts = [_charts_part(figure.charts, figure.note) for figure in drawn[name]]
        yield Section(_TITLES[name], parts, _NOTES[name])


def _cuts(table: Table, block: Block) -> Iterator[tuple[Sequence[Column], str]]:
    """The columns of a table, or of two where one would be too wide to see the average: averages, then every domain."""
    if not table.is_wide:
        yield block.select(table.columns), block.title
        return
    yield block.select(table.summed), block.title
    yield table.single, f"{block.title or 'The same'}, domain by domain"


def _results_part(table: Table, block: Block, shown: Sequence[Column], caption: str) -> Part:
    """With a column of published averages beside ours where there are any."""
    columns = [("method", "text")]
    rows = [[cell(line.name, small=line.text if line.setting.label else "")] for line in block.lines]
    for column in shown:
        columns.append((column.title, column.better))
        ranked, marks, texts = compared(block.lines, column), best(block, column), column_texts(block, column)
        for i, (line, cells) in enumerate(zip(block.lines, rows, strict=True)):
            small = interval_text(line.value(column)) if column.is_accuracy else ""
            ranks = ranked[i].mean is not None
            cells.append(cell(ranked[i].mean if ranks else "", texts[i], small, marks[i]))
        if column == table.average and has_paper(table, [column]):
            columns.append(("paper", "low"))
            for line, cells in zip(block.lines, rows, strict=True):
                cells.append(_percent(paper(table, line, column), 1))
    return table_part(columns, rows, caption)


def _percent(value: object, factor: float = 100) -> Part:
    known = finite(value)
    return cell(None) if known is None else cell(factor * known, f"{factor * known:.1f}")


def _paper_part(table: Table) -> Part:
    """Ours, with the published value below it."""
    columns = [c for c in table.columns if any(paper(table, line, c) is not None for line in table.lines)]
    known = [line for line in table.lines if any(paper(table, line, c) is not None for c in columns)]
    rows = []
    for line in known:
        pairs = [(line.value(column).mean, paper(table, line, column)) for column in columns]
        cells = [{**_percent(ours, 1), "small": DASH if theirs is None else f"{theirs:.1f}"} for ours, theirs in pairs]
        rows.append([cell(line.name), *cells])
    return table_part(
        [("method", "text"), *((c.title, "low") for c in columns)], rows, "Ours, and below in small the paper's"
    )


def _collapse_section(results: Results, traces: Traces) -> Section:
    found = [(table, collapse) for table in results.tables for collapse in collapses(table, traces)]
    if not found:
        return Section("Collapsed runs", [{"kind": "text", "text": "None."}], _COLLAPSE_RULE)
    columns = [("run", "text"), ("domain", "text"), ("seed", "text"), ("accuracy, %", "low"), ("no adaptation, %", "low")]
    columns += [("classes in effect", "low"), ("guard events", "low")]
    rows: list[list[Part]] = []
    charts: dict[tuple[int, str, str], Chart] = {}
    for table, collapse in found:
        row, source = collapse.row, collapse.source
        ours, theirs = (
            effective_classes(traces.get(r["key"], {}).get("predicted", ())) if r else None for r in (row, source)
        )
        small = "" if theirs is None else f"{format_number(theirs)} without"
        name = cell(collapse.line.name, small=f"table {table.number}" if len(results.tables) > 1 else "")
        accuracies = [_percent(r["top1"] if r else None) for r in (row, source)]
        classes = cell(ours, format_number(ours), small)
        guard = cell(len(row["guard"]), str(len(row["guard"])))
        rows.append([name, cell(readable(collapse.domain)), cell(str(row["seed"])), *accuracies, classes, guard])
        if chart := histogram(collapse, traces, class_names(table.protocol)):
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
        f"A Vision Transformer ({table.protocol['model']}) was trained on clean images. Here it meets shifted ones "
        f"({shifts}, severity {table.protocol['severity']} of 5) and adapts to them without labels, with all "
        "of its tokens and with fewer. "
        f"Every number was computed in this run. One model and {count(len(table.domains), 'shift')} show how the methods "
        "behave, not which of them is best in general."
    )
    images, note = example_images(results, traces)
    note += f" Predictions: before is no adaptation, after is {table.lines[-1].name} at the end of the stream."
    title = "navia: what shift costs, and what adaptation gives back"
    return report_page(results, traces, (images, note), introduction=Introduction(title, lead, steps))
