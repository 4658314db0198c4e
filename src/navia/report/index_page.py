"""Results as one page: tables that sort, accuracy against cost, curves along the stream, what collapsed, how it was run."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from navia.report import page
from navia.report.bars import bars
from navia.report.examples import Examples, class_names
from navia.report.index_views import table_sections, unbroken
from navia.report.numbers import DASH, finite, shown
from navia.report.page import Section, facts, pictures, spaced
from navia.report.results import Collapse, Line, Results, Row, Table, Traces, collapses, effective_classes, short_path
from navia.report.svg import beside
from navia.report.tables import missing_text, summary, why_several
from navia.report.words import readable

SHOWN_COLLAPSES = 8
TOP_CLASSES = 8


def index_page(
    results: Results,
    traces: Traces,
    examples: Examples = ((), ""),
    notes: Sequence[str] = (),
) -> str:
    """examples: pictures of the data, and what to say about them. notes: what else the reader should know, as sentences."""
    sections = [section for table in results.tables for section in table_sections(table, traces, len(results.tables) > 1)]
    if why := why_several(results):
        sections.append(Section("Why there are several tables", _list(why)))
    sections.append(_collapsed(results, traces))
    if examples[0] or examples[1]:
        sections.append(Section("What the data look like", pictures(examples[0]), examples[1]))
    sections.append(
        Section("Protocol", _protocol(results), "Open a line for what made it: two rows may be compared if all agrees.")
    )
    lead = unbroken(f"{summary(results)}\n\n{' '.join([missing_text(results), *notes])}")
    return page.page(_title(results), lead, sections)


def _title(results: Results) -> str:
    if len(results.tables) == 1:
        return results.tables[0].title
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    return f"{', '.join(models)}: {len(results.tables)} tables of results"


def _list(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


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
    body = spaced(page.table(columns, rows)) + beside(drawn[:SHOWN_COLLAPSES])
    return Section("Collapsed runs", body, rule + more)


def _collapse_cells(table: Table, collapse: Collapse, traces: Traces, several: bool) -> list[page.Cell]:
    row, plain = collapse.row, collapse.plain
    ours, theirs = (effective_classes(traces.get(r["key"], {}).get("predicted", ())) if r else None for r in (row, plain))
    return [
        page.Cell(collapse.line.name, small=f"table {table.number}" if several else None),
        page.Cell(readable(collapse.domain)),
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
    title = f"{collapse.line.name} on {readable(collapse.domain)}, seed {collapse.row['seed']}"
    return bars(groups, series, "share of answers, %", title)


# ---- protocol


def _protocol(results: Results) -> str:
    parts = []
    for table in results.tables:
        before = f"Table {table.number}: " if len(results.tables) > 1 else ""
        shared = {key: "not given" if value is None else str(value) for key, value in table.protocol.items()}
        alike = _alike(table.rows)
        parts.append(facts({**dict(sorted(alike)), **shared}, f"{before}what all rows share"))
        parts += [_line_protocol(before, line, alike) for line in table.lines]
    return "\n".join(parts)


def _alike(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """What several rows all say: told once, not again with each."""
    return set.intersection(*(set(_row_facts(row).items()) for row in rows)) if len(rows) > 1 else set()


def _line_protocol(before: str, line: Line, alike: set[tuple[str, str]]) -> str:
    """All rows of a line behind one summary, each behind its own with what not all rows share."""
    rows = [
        facts(dict(item for item in _row_facts(row).items() if item not in alike), _row_title(domain, row))
        for (domain, _), row in line.rows.items()
    ]
    count = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    return f'<details class="facts"><summary>{escape(f"{before}{line.name}, {count}")}</summary>{"".join(rows)}</details>'


def _row_title(domain: str, row: Row) -> str:
    top1 = finite(row["top1"])
    return f"{readable(domain)}, seed {row['seed']}: {DASH if top1 is None else f'{100 * top1:.1f} %'}"


def _row_facts(row: Row) -> dict[str, str]:
    return {name: _fact(value) for name, value in _flat(row)}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield readable(f"{before}{key}"), value


def _fact(value: object) -> str:
    if value is None or value == [] or value == {}:
        return DASH
    if isinstance(value, float):
        return DASH if finite(value) is None else f"{value:.6g}"
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
