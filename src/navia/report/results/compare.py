"""Lines against each other, on what both have: the same seeds of the same domains, and the same images."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from navia.report.results.images import gap_interval
from navia.report.results.lines import Line
from navia.report.results.tables import Block, Table
from navia.report.results.values import FEW_SEEDS, Column, Row, Value, over_seeds, percent

Seeds = Mapping[str, set[int]]  # by domain


@dataclass(frozen=True)
class Difference:
    """How many points `line` is above `other`, and the 95 % interval: Student's t over common seeds, or over the images that
    both answered."""

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
    """What lines are ranked by: their values on the common seeds; without a mean where there are none."""
    if not (column.is_accuracy or column.kind == "ece"):
        return [line.value(column) for line in lines]
    seeds = common_seeds(lines, column)
    return [_on(line, column, seeds) for line in lines]


def _on(line: Line, column: Column, seeds: Seeds) -> Value:
    if line.value(column).mean is None:
        return Value()
    if line.any_order or line.seeds(column) == seeds:
        return line.value(column) if all(seeds.values()) else Value()
    return line.only(seeds).value(column)


def is_cut(lines: Sequence[Line], column: Column) -> bool:
    """Whether some line shows seeds that others do not have."""
    seeds = common_seeds(lines, column)
    ranked = [line for line in lines if line.value(column).mean is not None and not line.any_order]
    return any(line.seeds(column) != seeds for line in ranked)


def difference(line: Line, other: Line, column: Column) -> Difference | None:
    """None: nothing in common, or the rows do not tell which images they got right."""
    if line.value(column).mean is None or other.value(column).mean is None:
        return None
    seeds = common_seeds([line, other], column)
    if not all(seeds.values()):
        return None
    pairs = [
        (1 / len(seeds) / len(own), _row(line, column, domain, seed), _row(other, column, domain, seed))
        for domain, own in seeds.items()
        for seed in own
    ]
    fewest, first = min(map(len, seeds.values())), next(iter(seeds.values()))
    if fewest >= FEW_SEEDS and all(own == first for own in seeds.values()):
        gaps = [
            statistics.fmean(
                percent(_row(line, column, domain, seed)["top1"]) - percent(_row(other, column, domain, seed)["top1"])
                for domain in seeds
            )
            for seed in first
        ]
        value = over_seeds(gaps)
        if value.mean is None or value.low is None or value.high is None:
            return None
        return Difference(line.name, other.name, value.mean, value.low, value.high, fewest, "t")
    gap = sum(weight * (one["top1"] - two["top1"]) for weight, one, two in pairs)
    weighted = [*((weight, one) for weight, one, _ in pairs), *((-weight, two) for weight, _, two in pairs)]
    ends = gap_interval(gap, weighted, {**other.scores, **line.scores})
    return ends and Difference(line.name, other.name, 100 * gap, 100 * ends[0], 100 * ends[1], fewest, "images")


def _row(line: Line, column: Column, domain: str, seed: int) -> Row:
    rows = line.in_column(column)
    return rows[domain, seed] if (domain, seed) in rows else next(row for (where, _), row in rows.items() if where == domain)


def highest(table: Table) -> tuple[Block, Line, list[Value]] | None:
    """The first block, its line with the highest average on common seeds, and all its lines' values there. None: there are
    not two lines to compare."""
    block = table.blocks[0]
    values = compared(block.lines, table.average)
    known = [(value.mean, i) for i, value in enumerate(values) if value.mean is not None]
    if len(known) < 2 or block.title:
        return None
    return block, block.lines[max(known, key=lambda pair: (pair[0], -pair[1]))[1]], values


def differences(table: Table) -> list[Difference]:
    """Of the highest line to each other one of its block."""
    found = highest(table)
    if found is None:
        return []
    block, top, _ = found
    others = [line for line in block.lines if line is not top]
    return [gap for line in others if (gap := difference(top, line, table.average)) is not None]
