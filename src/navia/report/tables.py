"""Tables of results as Markdown and CSV, in words what they say, and the paper's values beside them."""

import csv
import io
import json
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from navia.bench.presets import Published, label_of, published, published_model
from navia.data.corruptions import names
from navia.report.numbers import DASH, finite
from navia.report.results import (
    Block,
    Column,
    Difference,
    Line,
    Results,
    Table,
    Value,
    best,
    difference,
    differences,
    highest,
    how_to_read,
    interval_text,
    is_cut,
    short_path,
    texts,
    written,
)
from navia.report.words import listed, readable

CSV_FIELDS = (
    "table", "model", "data", "severity", "stream", "batch", "line", "method", "reduce", "options", "realtime", "adapt_for",
    "label", "spec", "quantity", "kind", "value", "low", "high", "interval", "seeds", "lowest_seed",
    "highest_seed", "paper",
)  # fmt: skip
_LISTED = 8  # lines whose missing cells are listed


# ---- published values


def paper(table: Table, line: Line, column: Column) -> float | None:
    """What the paper prints for this cell, in percent: only where the data and the protocol are the paper's."""
    values = paper_values(table, line)
    if values is None or not column.is_accuracy:
        return None
    return values.values.get(_paper_column(table, column) or "")


def paper_values(table: Table, line: Line) -> Published | None:
    setting, protocol = line.setting, table.protocol
    if (
        setting.realtime
        or setting.adapt_for is not None
        or protocol["stream"] != "reset"
        or protocol["label shift"] is not None
    ):
        return None
    same_run = None if line.options_by_domain else label_of(setting.method, setting.reduce, setting.given)
    return published(setting.label) or published(same_run)


def _paper_column(table: Table, column: Column) -> str | None:
    """The paper's name of a column: a corruption at severity 5, their average, or one of the other three data sets."""
    kind, classes = str(table.protocol["kind of data"]).partition(",")[0], table.protocol["classes"]
    if table.protocol["severity"] == 5 and classes == 1000:
        whole = column.kind == "average" and column.members == names()
        return "imagenet-c" if whole else column.name if column.kind == "domain" and column.name in names() else None
    if column.kind != "domain" or table.protocol["severity"]:
        return None
    if kind in ("imagenet-r", "imagenet-v2"):
        return kind
    sketched = kind == "imagenet" and classes == 1000 and "sketch" in column.name.casefold()
    return "imagenet-sketch" if sketched else None


def has_paper(table: Table, columns: Sequence[Column] | None = None) -> bool:
    """Whether the paper prints anything for the table, or for some of its columns."""
    return any(paper(table, line, column) is not None for line in table.lines for column in columns or table.columns)


def paper_note(table: Table) -> str:
    """What the published numbers are, and are not."""
    notes = dict.fromkeys(
        f"{line.name}: {note}."
        for line in table.lines
        if (entry := paper_values(table, line))
        for column in table.columns
        if (note := entry.notes.get(_paper_column(table, column) or ""))
    )
    model = f"The paper's numbers are of {published_model()}, with all images of the data sets."
    return " ".join([model, "Other models are not expected to reach them; compare the order of the lines.", *notes])


# ---- Markdown


def markdown(table: Table, *, with_paper: bool = False, without: Collection[str] = ()) -> str:
    """One table per block. with_paper: a column of published averages beside ours. without: kinds of columns left out."""
    extra = with_paper and has_paper(table, [table.average])
    return "\n\n".join(_markdown_block(table, block, extra, without) for block in table.blocks)


def _markdown_block(table: Table, block: Block, with_paper: bool, without: Collection[str]) -> str:
    kept = [column for column in block.of(table.columns) if column.kind not in without]
    columns = [_markdown_column(table, block, column, with_paper) for column in kept]
    head = ["method", *(title for titles, _ in columns for title in titles)]
    lines = [f"**{block.title}**\n"] if block.title else []
    lines += [_pipes(head), "|---|" + "---:|" * (len(head) - 1)]
    for i, line in enumerate(block.lines):
        lines.append(_pipes([_markdown_text(line.name), *(cell for _, cells in columns for cell in cells[i])]))
    return "\n".join(lines)


def _markdown_column(table: Table, block: Block, column: Column, with_paper: bool) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of a column, and of the paper's beside it where there is one."""
    marks, shown = best(block, column), texts(block, column)
    cells = []
    for line, text, mark in zip(block.lines, shown, marks, strict=True):
        bold = f"**{text}**" if mark else text
        cells.append([f"{bold} {_bracketed(line, column)}".strip()])
    if not with_paper or column != table.average:
        return [column.title], cells
    theirs = [paper(table, line, column) for line in block.lines]
    beside = [[*own, DASH if value is None else f"{value:.1f}"] for own, value in zip(cells, theirs, strict=True)]
    return [column.title, "paper"], beside


def _bracketed(line: Line, column: Column) -> str:
    if not column.is_accuracy:
        return ""
    value = line.value(column)
    text = interval_text(value)
    return f"({text})" if value.interval == "wilson" else text


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    for sign in "\\|*_`[]<":
        text = text.replace(sign, f"\\{sign}")
    return text


def page_markdown(results: Results) -> str:
    """The page of results: every table, and how to read it."""
    parts = ["# Results", summary(results)]
    for table in results.tables:
        several = f"Table {table.number}: " if len(results.tables) > 1 else ""
        parts += [f"## {several}{table.title}", setting_text(table), markdown(table, with_paper=True)]
        parts.append(" ".join(how_to_read(table)))
        if gaps := differences_text(table):
            parts.append(gaps)
        if has_paper(table):
            parts.append(paper_note(table))
    if why := why_several(results):
        parts += ["## Why there are several tables", "\n".join(f"- {text}" for text in why)]
    if results.missing():
        parts += ["## Missing", missing_text(results)]
    return "\n\n".join(parts) + "\n"


def summary(results: Results) -> str:
    """What was run, and what came out on top, in sentences."""
    lines = sum(len(table.lines) for table in results.tables)
    several = f", in {len(results.tables)} tables" if len(results.tables) > 1 else ""
    several += " that must not be compared" if several and len(results.apart) == len(results.tables) - 1 else ""
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    said = [f"{', '.join(models)}: {_count(results.rows, 'row')} of {_count(lines, 'setting')}{several}."]
    return " ".join([*said, *filter(None, (headline(table, bool(several)) for table in results.tables))])


def headline(table: Table, numbered: bool = False) -> str:
    """The most accurate line on the seeds that all lines have, and no adaptation for comparison."""
    found, column = highest(table), table.average
    if found is None:
        return ""
    block, top, values = found
    read = dict(zip((line.name for line in block.lines), written([value.mean for value in values], column), strict=True))
    own = {line.name: value for line, value in zip(block.lines, values, strict=True)}
    tops = [name for name, text in read.items() if text == read[top.name]]
    base = next((x for x in block.lines if (x.setting.method, x.setting.reduce) == ("none", "none")), None)
    told = base is not None and base.name not in tops and own[base.name].mean is not None
    other = f"; no adaptation: {_value_text(own[base.name])}" if base is not None and told else ""
    gap = difference(top, base, column) if base is not None and told else None
    above = f", {_gap_text(gap)} points below" if gap else ""
    where = f"Table {table.number}: highest" if numbered else "Highest"
    what = "average" if column.kind == "average" else f"on {column.title}"
    on = " on the seeds that all lines have" if is_cut(block.lines, column) else ""
    return f"{where} {what}{on}: {_few(tops, 'lines')}, {_value_text(own[top.name])}{other}{above}."


def _value_text(value: Value) -> str:
    text = interval_text(value)
    return f"{value.mean:.1f} % {f'({text})' if value.interval == 'wilson' else text}".strip()


def _gap_text(gap: Difference) -> str:
    """'0.3 (−0.4 to 1.0)'."""
    return f"{gap.points:.1f} ({gap.low:.1f} to {gap.high:.1f})".replace("-", "−")


def differences_text(table: Table) -> str:
    """How far the others lie below the highest average, on the same images."""
    gaps = differences(table)
    if not gaps:
        return ""
    kinds = {"t": "over seeds, by Student's t", "images": "over the images, each paired with itself"}
    how = " or ".join(kinds[kind] for kind in dict.fromkeys(gap.interval for gap in gaps))
    told = ", ".join(f"{gap.other} {_gap_text(gap)}" for gap in gaps)
    return f"Points below {gaps[0].line} in the same cells, with 95 % intervals {how}: {told}."


def why_several(results: Results) -> list[str]:
    """In sentences; none for one table."""
    if len(results.tables) < 2:
        return []
    specs = "Each spec has a table of its own; a row that several of them ask for stands in each."
    return [*([specs] if any(table.spec is not None for table in results.tables) else []), *results.apart]


def missing_text(results: Results) -> str:
    """Line by line, the seeds of each domain together."""
    found = results.missing()
    if not found:
        return "Every line has a row for every domain and seed."
    by_line: dict[tuple[str, str], dict[str, list[int]]] = {}
    for cell in found:
        where = f"table {cell.table}" if cell.table is not None else f"{cell.spec}, not begun"
        place = where if len(results.tables) > 1 or cell.table is None else ""
        by_line.setdefault((place, cell.line), {}).setdefault(cell.domain, []).append(cell.seed)
    said = [f"{name}{f' ({place})' if place else ''} on {_domains_and_seeds(own)}" for (place, name), own in by_line.items()]
    more = f"; and {len(said) - _LISTED} more lines" if len(said) > _LISTED else ""
    verb = "cell has" if len(found) == 1 else "cells have"
    return f"{len(found)} {verb} no row, or not yet: {'; '.join(said[:_LISTED])}{more}."


def _domains_and_seeds(cells: Mapping[str, Sequence[int]]) -> str:
    """'fog and snow (seeds 1, 2), contrast (seed 2)'."""
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for domain, seeds in cells.items():
        by_seeds.setdefault(tuple(seeds), []).append(readable(domain))
    return ", ".join(
        f"{_few(domains)} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})" for seeds, domains in by_seeds.items()
    )


def _few(things: Sequence[str], kind: str = "domains") -> str:
    return f"{len(things)} {kind}" if len(things) > 4 else listed(things)


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def setting_text(table: Table) -> str:
    """What all rows of a table share, in a sentence."""
    images = sorted(set(table.images.values()))
    counts = f"{images[0]:,}" if len(images) == 1 else f"{images[0]:,} to {images[-1]:,}"
    seeds = ", ".join(map(str, table.seeds))
    shift = table.protocol["label shift"]
    return (
        f"{counts} images per domain in batches of {table.protocol['batch']}, stream: {table.protocol['stream']}"
        f"{'' if shift is None else f' with label shift {shift}'}, {table.protocol['classes']} classes, "
        f"{table.protocol['number of source images']} clean source images, seed{'s' * (len(table.seeds) > 1)} {seeds}, "
        f"navia {table.protocol['version of navia']}."
    )


# ---- CSV


def csv_text(table: Table, *, header: bool = True) -> str:
    """One line per number, in full precision, so that the tables of one file may have different columns. Accuracies and ECE
    are in percent; `paper` is the published value where there is one."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_FIELDS, lineterminator="\n")
    if header:
        writer.writeheader()
    for line in table.lines:
        writer.writerows(_csv_rows(table, line))
    return file.getvalue()


def _csv_rows(table: Table, line: Line) -> Iterator[dict[str, object]]:
    setting, protocol = line.setting, table.protocol
    common: dict[str, object] = {
        "table": table.number, "model": short_path(protocol["model"]), "data": short_path(protocol["data"]),
        "severity": protocol["severity"], "stream": protocol["stream"], "batch": protocol["batch"], "line": line.name,
        "method": setting.method, "reduce": setting.reduce, "options": setting.options, "realtime": setting.realtime,
        "adapt_for": setting.adapt_for, "label": setting.label, "spec": table.spec,
    }  # fmt: skip
    if line.options_by_domain:
        setting = replace(setting, options=json.dumps(line.options_by_domain, sort_keys=True))
    for column in table.columns:
        value, theirs = line.value(column), paper(table, line, column)
        if value.mean is not None or theirs is not None:
            options = line.options_by_domain.get(column.name)
            common["options"] = setting.options if options is None else json.dumps(options, sort_keys=True)
            kind = "top1" if column.is_accuracy else "ece" if column.kind == "ece" else "cost"
            yield {
                **common, "quantity": column.name, "kind": kind,
                "value": value.mean, "low": value.low, "high": value.high, "interval": value.interval,
                "seeds": value.seeds or None, "lowest_seed": value.lowest_seed, "highest_seed": value.highest_seed,
                "paper": theirs,
            }  # fmt: skip
    common["options"] = setting.options
    for quantity in ("gmacs_paper", "trainable", "realtime_ratio"):
        known = [number for row in line.rows.values() if (number := finite(row.get(quantity))) is not None]
        if known:
            yield {**common, "quantity": quantity, "kind": "cost", "value": statistics.median(known)}
