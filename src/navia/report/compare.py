"""Lines against each other on what both have (the same seeds and images), against no adaptation, and against the paper."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from navia.bench.presets import Published, label_of, published
from navia.data.corruptions import names
from navia.methods import features
from navia.report.formatting import DASH, finite, format_column
from navia.report.lines import FEW_SEEDS, Column, Line, Row, Traces, Value, gap_interval, over_seeds, percent
from navia.report.tables import Block, Table

COLLAPSE_POINTS = 5.0  # below no adaptation by more than this
COLLAPSE_SHARE = 0.5  # of the classes that no adaptation predicts

Seeds = Mapping[str, set[int]]  # by domain


@dataclass(frozen=True)
class Difference:
    """Points of `line` above `other`, with the 95 % interval: Student's t over common seeds, or over common images."""

    line: str
    other: str
    points: float
    low: float
    high: float
    seeds: int
    interval: Literal["t", "images"]


def common_seeds(lines: Sequence[Line], column: Column) -> Seeds:
    """The seeds of each domain that all lines with a value have; a line whose order does not matter has all."""
    ranked = [line for line in lines if line.value(column).mean is not None]
    bound = [line.seeds(column) for line in ranked if not line.any_order] or [line.seeds(column) for line in ranked]
    return {domain: set.intersection(*(own[domain] for own in bound)) if bound else set() for domain in column.members}


def compared(lines: Sequence[Line], column: Column) -> list[Value]:
    """The values that lines are ranked by: on the common seeds; without a mean where there are none."""
    if not (column.is_accuracy or column.kind == "ece"):
        return [line.value(column) for line in lines]
    seeds, found = common_seeds(lines, column), []
    for line in lines:
        value = line.value(column)
        whole = line.any_order or line.seeds(column) == seeds
        shown = value.mean is not None and (all(seeds.values()) or not whole)
        found.append((value if whole else line.only(seeds).value(column)) if shown else Value())
    return found


def has_other_seeds(lines: Sequence[Line], column: Column) -> bool:
    """Whether some line has seeds that others do not have."""
    seeds = common_seeds(lines, column)
    ranked = [line for line in lines if line.value(column).mean is not None and not line.any_order]
    return any(line.seeds(column) != seeds for line in ranked)


def difference(line: Line, other: Line, column: Column) -> Difference | None:
    """None: nothing in common, or the rows do not say which images they got right."""
    if line.value(column).mean is None or other.value(column).mean is None:
        return None
    seeds = common_seeds([line, other], column)
    if not all(seeds.values()):
        return None
    places = [(domain, seed) for domain, own in seeds.items() for seed in own]
    pairs = {place: (_row(line, column, *place), _row(other, column, *place)) for place in places}
    fewest, first = min(map(len, seeds.values())), next(iter(seeds.values()))
    if fewest >= FEW_SEEDS and all(own == first for own in seeds.values()):
        gaps = {place: percent(one["top1"]) - percent(two["top1"]) for place, (one, two) in pairs.items()}
        value = over_seeds([statistics.fmean(gaps[domain, seed] for domain in seeds) for seed in first])
        if value.mean is None or value.low is None or value.high is None:
            return None
        return Difference(line.name, other.name, value.mean, value.low, value.high, fewest, "t")
    shares = {domain: 1 / len(seeds) / len(own) for domain, own in seeds.items()}
    weighted = [(sign * shares[domain], pair[sign < 0]) for (domain, _), pair in pairs.items() for sign in (1, -1)]
    gap = sum(weight * row["top1"] for weight, row in weighted)
    ends = gap_interval(gap, weighted, {**other.scores, **line.scores})
    return ends and Difference(line.name, other.name, 100 * gap, 100 * ends[0], 100 * ends[1], fewest, "images")


def _row(line: Line, column: Column, domain: str, seed: int) -> Row:
    rows = line.in_column(column)
    return rows[domain, seed] if (domain, seed) in rows else next(row for (where, _), row in rows.items() if where == domain)


def highest(table: Table) -> tuple[Block, Line, list[Value]] | None:
    """The first block, its line with the highest average on common seeds, and its lines' values there, if it has two."""
    block = table.blocks[0]
    values = compared(block.lines, table.average)
    known = [(value.mean, -i) for i, value in enumerate(values) if value.mean is not None]
    return None if len(known) < 2 or block.title else (block, block.lines[-max(known)[1]], values)


def differences(table: Table) -> list[Difference]:
    """Of the highest line to each other one of its block."""
    if (found := highest(table)) is None:
        return []
    gaps = [difference(found[1], line, table.average) for line in found[0].lines if line is not found[1]]
    return [gap for gap in gaps if gap is not None]


# ---- a column as it is read


def read_column(block: Block, column: Column) -> list[tuple[Line, str, Value, bool]]:
    """Each line with its formatted value, the value with its interval, and whether it is the best."""
    values = [line.value(column) for line in block.lines]
    texts = format_values([value.mean for value in values], column)
    return list(zip(block.lines, texts, values, best(block, column), strict=True))


def format_values(values: Sequence[float | None], column: Column) -> list[str]:
    if column.is_accuracy or column.kind == "ece":
        return [DASH if value is None else f"{value:z.1f}".replace("-", "−") for value in values]
    return format_column(values)


def best(block: Block, column: Column) -> list[bool]:
    """Which lines read the same as the best one, on the common seeds; none where all do."""
    values = [value.mean for value in compared(block.lines, column)]
    known = [(value, i) for i, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return [False] * len(values)
    texts = format_values(values, column)
    top = (max if column.better == "high" else min)(known)[1]
    marks = [text == texts[top] for text in texts]
    return marks if any(not marks[i] for _, i in known) else [False] * len(values)


def interval_text(value: Value, brackets: bool = False) -> str:
    """'± 0.4' over seeds, '58.1–64.3' over images; brackets: '(58.1–64.3)'. Empty for a value without interval."""
    if value.mean is None or value.low is None or value.high is None:
        return ""
    text = f"± {value.high - value.mean:.1f}" if value.interval == "t" else f"{value.low:.1f}–{value.high:.1f}"
    return f"({text})" if brackets and value.interval == "wilson" else text


def value_text(value: Value, unit: str = "") -> str:
    """'61.2 (58.1–64.3)'; a dash without a mean."""
    return DASH if value.mean is None else f"{value.mean:.1f}{unit} {interval_text(value, brackets=True)}".strip()


# ---- runs that went wrong


class Collapse(NamedTuple):
    """A row that went wrong. source: the row of the source model, if there is one."""

    line: Line
    domain: str
    row: Row
    source: Row | None


def collapses(table: Table, traces: Traces) -> list[Collapse]:
    """Rows far below no adaptation, caught by the guard, or predicting few classes; the worst first."""
    found = []
    for line in table.lines:
        for (domain, seed), row in line.rows.items():
            source = _source_row(table, line, domain, seed)
            if line.setting.method != "none" and _collapsed(row, source, traces):
                found.append(Collapse(line, domain, row, source))
    return sorted(found, key=lambda c: finite(c.row["top1"]) or 0.0)


def _source_row(table: Table, line: Line, domain: str, seed: int) -> Row | None:
    """No adaptation on the same images: with all tokens, of the same seed where there is one."""
    same = [x for x in table.lines if x.setting.method == "none" and x.setting.adapt_for == line.setting.adapt_for]
    others = sorted((x for x in same if x.rows_of(domain)), key=lambda other: other.setting.reduce != "none")
    return others[0].rows.get((domain, seed), others[0].rows_of(domain)[0]) if others else None


def _collapsed(row: Row, source: Row | None, traces: Traces) -> bool:
    if source is None or row["guard"]:
        return bool(row["guard"])
    if percent(source["top1"]) - percent(row["top1"]) > COLLAPSE_POINTS:
        return True
    ours, theirs = (effective_classes(r, traces) for r in (row, source))
    return ours is not None and theirs is not None and ours < COLLAPSE_SHARE * theirs


def effective_classes(row: Row | None, traces: Traces) -> float | None:
    """exp of the entropy of how often each class was predicted: 10 for ten equally frequent classes, 1 for a single one."""
    counts = traces.get(row["key"], {}).get("predicted", ()) if row else ()
    return features.effective_classes(counts) if sum(counts) > 0 else None


# ---- published values


def paper(table: Table, line: Line, column: Column) -> float | None:
    """What the paper prints for this cell, in percent: only where the data and the protocol are the paper's."""
    values = paper_values(table, line)
    return None if values is None or not column.is_accuracy else values.values.get(paper_column(table, column) or "")


def paper_values(table: Table, line: Line) -> Published | None:
    setting, protocol = line.setting, table.protocol
    if setting.block != (False, False) or protocol["stream"] != "reset" or protocol["label shift"] is not None:
        return None
    same_run = None if line.options_by_domain else label_of(setting.method, setting.reduce, setting.given)
    return published(setting.label) or published(same_run)


def paper_column(table: Table, column: Column) -> str | None:
    """The paper's name of a column: a corruption at severity 5, their average, or one of the other three data sets."""
    kind, classes = str(table.protocol["kind of data"]).partition(",")[0], table.protocol["classes"]
    if table.protocol["severity"] == 5 and classes == 1000:
        whole = column.kind == "average" and column.members == names()
        return "imagenet-c" if whole else column.name if column.kind == "domain" and column.name in names() else None
    if column.kind != "domain" or table.protocol["severity"]:
        return None
    sketched = kind == "imagenet" and classes == 1000 and "sketch" in column.name.casefold()
    return "imagenet-sketch" if sketched else kind if kind in ("imagenet-r", "imagenet-v2") else None


def has_paper(table: Table, columns: Sequence[Column] | None = None) -> bool:
    """Whether the paper prints anything for the table, or for some of its columns."""
    return any(paper(table, line, column) is not None for line in table.lines for column in columns or table.columns)
