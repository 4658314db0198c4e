"""Results as text: how to read the numbers, a summary, and the tables as Markdown, LaTeX and CSV."""

import csv
import io
import itertools
import json
import re
import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2

from navia.bench.presets import published_model
from navia.report import compare
from navia.report.compare import format_values, has_other_seeds, has_paper, interval_text, paper, read_column, value_text
from navia.report.formatting import DASH, count, finite, join_names, readable
from navia.report.lines import FEW_SEEDS, Column, Line, Setting, Value
from navia.report.tables import Block, Results, Table, short_path

_LISTED = 8  # lines whose missing cells are listed


# ---- how to read a table


def setting_text(table: Table) -> str:
    """What all rows of a table share, in a sentence."""
    images, protocol = sorted({row["fingerprint"]["images"] for row in table.rows}), table.protocol
    shift = "" if protocol["label shift"] is None else f" with label shift {protocol['label shift']}"
    return (
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys([images[0], images[-1]]))} images per domain in batches of "
        f"{protocol['batch']}, stream: {protocol['stream']}{shift}, {protocol['classes']} classes, "
        f"{protocol['number of source images']} clean source images, {_seeds_text(table.seeds)}, "
        f"navia {protocol['version of navia']}."
    )


def how_to_read(table: Table) -> list[str]:
    """What the numbers of a table are, in sentences."""
    settings = [line.setting for line in table.lines]
    # how many views CoTTA averages depends on the stream
    uncounted = ", without the views that CoTTA averages where the source model has low confidence"
    text = [
        f"Top-1 accuracy in percent; every prediction was made before the update from its image{_uses_batch(settings)}.",
        *intervals_and_seeds(table),
        "Bold is the best of a column. ECE is over 15 bins.",
        f"GMACs are of the forward passes for one image{uncounted if any(s.method == 'cotta' for s in settings) else ''}.",
    ]
    if any(block.has_realtime for block in table.blocks):
        text.append(
            "In real time images arrive at the rate of the source model without reduction; those that arrive during an "
            "update are predicted with the last state and not adapted to."
        )
    if any(setting.adapt_for is not None for setting in settings):
        text.append("Times of lines that are scored on the last third are those of prediction alone.")
    text += _guard(table)
    prints = [row["fingerprint"] for row in table.rows]
    differing = ["numbers of threads"] if len({p.get("threads") for p in prints}) > 1 else []
    differing += ["versions of torch"] if len({p["versions"].get("torch") for p in prints}) > 1 else []
    if differing:
        text.append(f"Rows ran with different {' and '.join(differing)}: do not compare their times.")
    if table.repeated:
        text.append(f"Run more than once with another result, the last one is shown: {', '.join(table.repeated)}.")
    return text


def intervals_and_seeds(table: Table) -> list[str]:
    """What intervals cover, what seeds change, and where lines do not have the same seeds or options."""
    kinds = {line.value(column).interval for line in table.lines for column in table.columns if column.is_accuracy}
    counts = sorted({len(line.rows_of(domain)) for line in table.lines for domain in table.domains} - {0, 1})
    text = [_seeds(table, counts)] if counts else []
    text += ["± is the 95 % interval of the mean over seeds, by Student's t."] if "t" in kinds else []
    text += [_ranges(table, bool(counts))] if "wilson" in kinds else []
    options = [f"Options of {line.name}: {line.options_text}." for line in table.lines if line.options_by_domain]
    return [*text, *_other_seeds(table), *options]


def _seeds(table: Table, counts: Sequence[int]) -> str:
    """What another seed changes."""
    limit = table.protocol["limit of images"]
    changed = ["the order of the stream"]
    changed += [] if limit is None else [f"which {limit:,} images of a domain are sampled"]
    changed += ["which of them are scored"] if any(line.setting.adapt_for is not None for line in table.lines) else []
    text = f"Numbers are means over {' or '.join(map(str, counts))} seeds, which change {join_names(changed)}"
    cells = [(line.value(column), f"{line.name} on {column.title}") for line in table.lines for column in table.single]
    spread = [(v.highest_seed - (v.lowest_seed or 0.0), where) for v, where in cells if v.highest_seed is not None]
    if not spread:
        return f"{text}."
    middle, (most, where) = statistics.median(points for points, _ in spread), max(spread)
    return f"{text}: between them a cell differs by {middle:.1f} points in the median, at most by {most:.1f} ({where})."


def _ranges(table: Table, several: bool) -> str:
    """What an interval over images covers."""
    if not several and table.average.kind == "domain":
        return "A range is the 95 % Wilson interval of a run over its images."
    text = "A range is the 95 % Wilson interval over the images"
    if several:
        text += f", for fewer than {FEW_SEEDS} seeds: it does not cover what another seed changes"
    rows = [(line, row) for line in table.lines for row in line.rows.values() if finite(row["top1"]) is not None]
    if all(row["key"] in line.scores for line, row in rows):
        return f"{text}. An image that comes in several orders or domains counts once."
    wider = "A mean of several runs has that of one run with its accuracy, which is wider than its own"
    return f"{text}. {wider}: these rows do not say which images were right."


def _other_seeds(table: Table) -> list[str]:
    """Which seeds are compared where not all lines have the same."""
    domains: dict[str, dict[str, None]] = {}
    for block, column in itertools.product(table.blocks, table.single):
        if has_other_seeds(block.lines, column):
            seeds = sorted(compare.common_seeds(block.lines, column)[column.name])
            domains.setdefault(_seeds_text(seeds) if seeds else "none, so nothing is compared", {})[column.title] = None
    text = "; ".join(f"{seeds} on {join_names(list(own))}" for seeds, own in domains.items())
    note = (
        "Not all lines have the same seeds yet: cells are means over the seeds that each line has, but bold and order "
        f"compare lines on the seeds that all of them have ({text})."
    )
    return [note] if domains else []


def _seeds_text(seeds: Sequence[int]) -> str:
    """'seed 0', 'seeds 0, 1, 2'."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _uses_batch(settings: Sequence[Setting]) -> str:
    """Methods that use the whole batch before they predict: FOA takes the fittest of its candidates, LAME lets neighbours
    agree, and SAR as in FOA's paper predicts with weights that were moved along the batch's own gradient."""
    used = {(setting.method, setting.given.get("variant") if setting.method == "sar" else None) for setting in settings}
    titles = {("foa", None): "FOA", ("lame", None): "LAME", ("sar", "foa"): "SAR with variant=foa"}
    names = [title for method, title in titles.items() if method in used]
    return f"; {join_names(names)} fit{'s' * (len(names) == 1)} it to the batch itself, without labels" if names else ""


def _guard(table: Table) -> list[str]:
    """The published methods have no guard: where it acted, a row is not the method's alone."""
    guarded = [line for line in table.lines if line.setting.guarded and line.setting.method != "none"]
    acted: dict[str, dict[str, None]] = {}
    for line in guarded:
        for (domain, _), row in line.rows.items():
            if row["guard"]:
                acted.setdefault(line.name, {})[readable(domain) or "the stream"] = None
    caught = "; ".join(f"{name} on {join_names(list(domains))}" for name, domains in acted.items())
    return [f"The guard was on and {f'acted: {caught}' if caught else 'never acted'}."] if guarded else []


def paper_note(table: Table) -> str:
    """What the published numbers are, and are not."""
    notes = dict.fromkeys(
        f"{line.name}: {note}."
        for line in table.lines
        if (entry := compare.paper_values(table, line))
        for column in table.columns
        if (note := entry.notes.get(compare.paper_column(table, column) or ""))
    )
    model = f"The paper's numbers are of {published_model()}, with all images of the data sets."
    return " ".join([model, "Other models are not expected to reach them; compare the order of the lines.", *notes])


# ---- summary


def summary(results: Results) -> str:
    """What was run, and the highest averages."""
    lines = sum(len(table.lines) for table in results.tables)
    several = f", in {len(results.tables)} tables" if len(results.tables) > 1 else ""
    several += " that must not be compared" if several and len(results.apart) == len(results.tables) - 1 else ""
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    text = f"{', '.join(models)}: {count(results.rows, 'row')} of {count(lines, 'setting')}{several}."
    return " ".join([text, *filter(None, (headline(table, bool(several)) for table in results.tables))])


def headline(table: Table, numbered: bool = False) -> str:
    """The most accurate line on the seeds that all lines have, and no adaptation for comparison."""
    found, column = compare.highest(table), table.average
    if found is None:
        return ""
    block, top, values = found
    texts = dict(zip((line.name for line in block.lines), format_values([v.mean for v in values], column), strict=True))
    own = {line.name: value_text(value, " %") for line, value in zip(block.lines, values, strict=True)}
    tops = [name for name, text in texts.items() if text == texts[top.name]]
    base = next((x for x in block.lines if (x.setting.method, x.setting.reduce) == ("none", "none")), None)
    other = ""
    if base is not None and base.name not in tops and texts[base.name] != DASH:
        gap = compare.difference(top, base, column)
        other = f"; no adaptation: {own[base.name]}{f', {_gap_text(gap)} points below' if gap else ''}"
    where = f"Table {table.number}: highest" if numbered else "Highest"
    what = "average" if column.kind == "average" else f"on {column.title}"
    on = " on the seeds that all lines have" if has_other_seeds(block.lines, column) else ""
    return f"{where} {what}{on}: {_shorten(tops, 'lines')}, {own[top.name]}{other}."


def _gap_text(gap: compare.Difference) -> str:
    """'0.3 (−0.4 to 1.0)'."""
    return f"{gap.points:z.1f} ({gap.low:z.1f} to {gap.high:z.1f})".replace("-", "−")


def differences_text(table: Table) -> str:
    """How far the others lie below the highest average, on the same images."""
    gaps = compare.differences(table)
    if not gaps:
        return ""
    kinds = {"t": "over seeds, by Student's t", "images": "over the images, each paired with itself"}
    how = " or ".join(kinds[kind] for kind in dict.fromkeys(gap.interval for gap in gaps))
    text = ", ".join(f"{gap.other} {_gap_text(gap)}" for gap in gaps)
    return f"Points below {gaps[0].line} in the same cells, with 95 % intervals {how}: {text}."


def why_several(results: Results) -> list[str]:
    """Sentences; none for one table."""
    specs = "Each spec has its own table; a row that several specs ask for stands in each."
    own = len(results.tables) > 1 and any(table.spec is not None for table in results.tables)
    return [*([specs] if own else []), *results.apart]


def missing_text(results: Results) -> str:
    """Line by line, the seeds of each domain together."""
    found = results.missing()
    if not found:
        return "Every line has a row for every domain and seed."
    by_line: dict[str, dict[str, list[int]]] = {}
    for cell in found:
        where = f" (table {cell.table})" if cell.table is not None else f" ({cell.spec}, not begun)"
        place = where if len(results.tables) > 1 or cell.table is None else ""
        by_line.setdefault(f"{cell.line}{place}", {}).setdefault(cell.domain, []).append(cell.seed)
    text = []
    for name, cells in by_line.items():
        by_seeds: dict[str, list[str]] = {}  # 'fog and snow (seeds 1, 2), contrast (seed 2)'
        for domain, seeds in cells.items():
            by_seeds.setdefault(_seeds_text(seeds), []).append(readable(domain))
        text.append(f"{name} on {', '.join(f'{_shorten(domains)} ({seeds})' for seeds, domains in by_seeds.items())}")
    more = f"; and {len(text) - _LISTED} more lines" if len(text) > _LISTED else ""
    verb = "cell has" if len(found) == 1 else "cells have"
    return f"{len(found)} {verb} no row, or not yet: {'; '.join(text[:_LISTED])}{more}."


def _shorten(names: Sequence[str], kind: str = "domains") -> str:
    return f"{len(names)} {kind}" if len(names) > 4 else join_names(names)


# ---- Markdown


def page_markdown(results: Results) -> str:
    """Every table, and how to read it."""
    parts = ["# Results", summary(results)]
    for table in results.tables:
        several = f"Table {table.number}: " if len(results.tables) > 1 else ""
        parts += [f"## {several}{table.title}", setting_text(table), markdown(table, with_paper=True)]
        parts += filter(None, [" ".join(how_to_read(table)), differences_text(table)])
        parts += [paper_note(table)] if has_paper(table) else []
    if why := why_several(results):
        parts += ["## Why there are several tables", "\n".join(f"- {text}" for text in why)]
    parts += ["## Missing", missing_text(results)] if results.missing() else []
    return "\n\n".join(parts) + "\n"


def markdown(table: Table, *, with_paper: bool = False, without: Collection[str] = ()) -> str:
    """One table per block. with_paper: a column of published averages beside ours. without: kinds of columns left out."""
    beside = with_paper and has_paper(table, [table.average])
    return "\n\n".join(_markdown_block(table, block, beside, without) for block in table.blocks)


def _markdown_block(table: Table, block: Block, with_paper: bool, without: Collection[str]) -> str:
    head, rows = ["method"], [[re.sub(r"([\\|*_`\[\]<])", r"\\\1", line.name)] for line in block.lines]
    for column in (column for column in block.select(table.columns) if column.kind not in without):
        beside = with_paper and column == table.average
        head += [column.title, "paper"] if beside else [column.title]
        for row, (line, text, value, mark) in zip(rows, read_column(block, column), strict=True):
            row.append(f"{f'**{text}**' if mark else text} {interval_text(value, brackets=True)}".strip())
            row += format_values([paper(table, line, column)], column) if beside else []
    lines = [f"**{block.title}**\n"] if block.title else []
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# ---- LaTeX

_ESCAPED = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$",
    "|": "$|$", "[": "{[}", "]": "{]}", "*": "{*}",  # at the start of a row \\ and \midrule would take them for options
})  # fmt: skip


def latex(results: Results) -> str:
    """All tables; a comment above them names the packages that the preamble needs."""
    packages = "% \\usepackage{booktabs}\n% \\usepackage{graphicx}\n"
    head = f"% Tables of `navia report`: \\input this file. The preamble needs\n{packages}"
    return "\n".join([head, *(latex_table(table) for table in results.tables)])


def latex_table(table: Table) -> str:
    """One table, or of many domains two: averages with their intervals, then every domain with its number alone."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment("<%", "%>", "<<", ">>", "<#", "#>", trim_blocks=True, loader=loader)
    environment.filters |= {"tex": _escape_latex, "any": any}
    caption = " ".join([f"{table.title}.", setting_text(table), *how_to_read(table)])
    more = f"{table.title}, domain by domain. Top-1 accuracy in percent; the intervals are in results.csv."
    given = {"caption": caption, "more": more, "label": f"navia-{table.number}", "lines": _latex_lines}
    text = environment.get_template("results.tex").render(table=table, **given)
    return re.sub("\n{2,}", "\n\n", text).strip() + "\n"


def _latex_lines(block: Block, columns: Sequence[Column]) -> Iterator[tuple[str, list[tuple[str, bool]], list[str]]]:
    """Name, values with marks of the best, and intervals of each line."""
    for cells in zip(*(read_column(block, column) for column in columns), strict=True):
        yield (
            cells[0][0].name,
            [(text, mark) for _, text, _, mark in cells],
            [interval_text(value) for _, _, value, _ in cells],
        )


def _escape_latex(text: str) -> str:
    return text.translate(_ESCAPED).replace(r" \%", r"~\%")


# ---- CSV


def csv_text(table: Table, *, header: bool = True) -> str:
    """One line per number, in full precision: tables may have different columns. Accuracies and ECE are in percent."""
    file = io.StringIO()
    rows = [row for line in table.lines for row in _csv_rows(table, line)]
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _csv_rows(table: Table, line: Line) -> Iterator[dict[str, Any]]:
    setting, protocol = line.setting, table.protocol
    options = json.dumps(line.options_by_domain, sort_keys=True) if line.options_by_domain else setting.options
    common: dict[str, Any] = {
        "table": table.number, "model": short_path(protocol["model"]), "data": short_path(protocol["data"]),
        "severity": protocol["severity"], "stream": protocol["stream"], "batch": protocol["batch"], "line": line.name,
        "method": setting.method, "reduce": setting.reduce, "options": options, "realtime": setting.realtime,
        "adapt_for": setting.adapt_for, "label": setting.label, "spec": table.spec,
    }  # fmt: skip
    values = [(column.name, "top1" if column.is_accuracy else "ece" if column.kind == "ece" else "cost", line.value(column),
               paper(table, line, column)) for column in table.columns]  # fmt: skip
    costs = ("gmacs_paper", "trainable", "realtime_ratio")
    for name, kind, value, theirs in [*values, *((cost, "cost", Value(line.median(cost)), None) for cost in costs)]:
        if value.mean is not None or theirs is not None:
            own = line.options_by_domain.get(name)
            yield common | {
                "options": options if own is None else json.dumps(own, sort_keys=True), "quantity": name, "kind": kind,
                "value": value.mean, "low": value.low, "high": value.high, "interval": value.interval,
                "seeds": value.seeds or None, "lowest_seed": value.lowest_seed, "highest_seed": value.highest_seed,
                "paper": theirs,
            }  # fmt: skip
