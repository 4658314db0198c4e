"""Lines against each other on what both have (the same seeds and images), against no adaptation, and against the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from navia.methods import features
from navia.report.formatting import DASH, finite, format_column
from navia.report.lines import FEW_SEEDS, MS, Column, Line, Row, Scores, Traces, Value, gap_interval, over_seeds, percent
from navia.report.tables import Block, Table

COLLAPSE_POINTS = 5.0  # below no adaptation by more than this
COLLAPSE_SHARE = 0.5  # of the classes that no adaptation predicts
_OURS = ("navia", "navia_plus")
_LAYERNORM = ("navia", "align", "tent")  # one forward and one backward pass to the LayerNorms
CLAIMED_TIME = -20.0  # percent, of NAVIA at r = 8: the paper says "more than 20 %"

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
        value = over_seeds([sum(share * gaps[domain, seed] for domain, share in column.shares.items()) for seed in first])
        if value.mean is None or value.low is None or value.high is None:
            return None
        return Difference(line.name, other.name, value.mean, value.low, value.high, fewest, "t")
    shares = {domain: column.shares[domain] / len(own) for domain, own in seeds.items()}
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


# ---- pair by pair


@dataclass(frozen=True)
class Paired:
    """Two lines on the same images in the same orders. A pair is one domain and seed; wins: pairs in which `line` has the
    higher accuracy. only_line, only_other: predictions that one of both got right, of `predictions`, where that is known."""

    line: str
    other: str
    points: float
    low: float | None
    high: float | None
    interval: Literal["t", "images"] | None
    wins: int
    losses: int
    ties: int
    only_line: int | None = None
    only_other: int | None = None
    predictions: int | None = None

    @property
    def pairs(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def settled(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def paired(line: Line, other: Line, column: Column) -> Paired | None:
    """Compare two lines in a column of accuracies.

    Args:
        line: The one whose points and wins are given.
        other: Another line of the same table.
        column: For example `table.average`.

    Returns:
        The comparison, or None if the lines have no pair in common in some domain. Without the traces that say which images
        were right it has no interval, unless there are enough seeds for one over them.
    """
    if not column.is_accuracy or line.value(column).mean is None or other.value(column).mean is None:
        return None
    seeds = common_seeds([line, other], column)
    if not all(seeds.values()):
        return None
    rows = [(domain, _row(line, column, domain, seed), _row(other, column, domain, seed))
            for domain, own in seeds.items() for seed in sorted(own)]  # fmt: skip
    shares = column.shares
    points = sum(
        shares[domain] / len(seeds[domain]) * (percent(one["top1"]) - percent(two["top1"])) for domain, one, two in rows
    )
    gap = difference(line, other, column)
    signs = [(one["top1"] > two["top1"]) - (one["top1"] < two["top1"]) for _, one, two in rows]
    counts = [_right_alone(one, two, {**other.scores, **line.scores}) for _, one, two in rows]
    known = [found for found in counts if found is not None]
    pair = Paired(line.name, other.name, points, None, None, None, signs.count(1), signs.count(-1), signs.count(0))
    if gap is not None:
        pair = replace(pair, low=gap.low, high=gap.high, interval=gap.interval)
    if len(known) < len(counts):
        return pair
    mine, theirs, both = map(sum, zip(*known, strict=True))
    return replace(pair, only_line=mine, only_other=theirs, predictions=both)


def _right_alone(one: Row, two: Row, scores: Scores) -> tuple[int, int, int] | None:
    """Images that only `one`, and that only `two` got right, of how many that both scored."""
    mine, theirs = ({part.collection: part for part in scores.get(row["key"], ())} for row in (one, two))
    if not mine or mine.keys() != theirs.keys() or any(len(mine[key].seen) != len(theirs[key].seen) for key in mine):
        return None
    both = {key: mine[key].seen & theirs[key].seen for key in mine}
    ours = sum(int((both[key] & mine[key].right & ~theirs[key].right).sum()) for key in mine)
    other = sum(int((both[key] & theirs[key].right & ~mine[key].right).sum()) for key in mine)
    return ours, other, sum(int(seen.sum()) for seen in both.values())


def baselines(table: Table) -> list[tuple[str, dict[str, Line]]]:
    """What the lines of the first block are compared with: (title, line to compare with by the name of the line)."""
    block = table.blocks[0]
    if block.title or len(block.lines) < 2:
        return []
    lines, found = block.lines, highest(table)
    source = next((line for line in lines if (line.setting.method, line.setting.reduce) == ("none", "none")), None)
    reduced = [
        line for line in lines if line.setting.method in _OURS and line.setting.reduce != "none" and not _is_align(line)
    ]
    dense = [x for x in lines if x.setting.reduce == "none"]
    full = next((x for x in dense if x.setting.method == "navia" and not _is_align(x)), next(filter(_is_align, dense), None))
    same = {x.name: y for x in reduced for y in lines if _is_align(y) and y.setting.reduce == x.setting.reduce}
    against = [
        ("no adaptation", {line.name: source for line in lines if line is not source} if source else {}),
        ("the highest", {line.name: found[1] for line in lines if line is not found[1]} if found else {}),
        ("align with the same tokens", same),
        ("all tokens", {line.name: full for line in reduced} if full else {}),
    ]
    return [(title, own) for title, own in against if own]


def _is_align(line: Line) -> bool:
    """LayerNorm tuning by Eq. 7 alone: also NAVIA with both of its augmentations off."""
    given = line.setting.given
    return line.setting.method == "align" or (
        line.setting.method == "navia" and given.get("embedding") is False and given.get("biases") is False
    )


def comparisons(table: Table) -> list[tuple[str, dict[str, Paired]]]:
    """By what the lines are compared with (see `baselines`): each line that can be compared with it, by its name."""
    found = []
    for title, others in baselines(table):
        lines = [(line, others[line.name]) for line in table.blocks[0].lines if line.name in others]
        own = {line.name: pair for line, other in lines if (pair := paired(line, other, table.average))}
        found += [(title, own)] if own else []
    return found


def guard_pairs(table: Table) -> list[tuple[Line, Line]]:
    """Lines of the same setting with and without the guard."""
    off = {replace(line.setting, guarded=True): line for line in table.lines if not line.setting.guarded}
    on = [line for line in table.lines if line.setting.guarded]
    return [(line, off[line.setting]) for line in on if line.setting in off]


class StepTime(NamedTuple):
    """Time of a step with fewer tokens against one with all: percent is the change. paper: what the paper claims."""

    line: Line
    dense: Line
    percent: float
    paper: float | None


def step_times(table: Table) -> list[StepTime]:
    """Lines with fewer tokens against the dense line of their method, or of another that tunes the LayerNorms by one
    backward pass; only where all rows ran on the same device with the same number of threads."""
    lines = [line for line in table.blocks[0].lines if line.setting.adapt_for is None and line.setting.method != "none"]
    found = []
    for line in (line for line in lines if line.setting.reduce != "none"):
        alike = (line.setting.method, *(_LAYERNORM if line.setting.method in _LAYERNORM else ()))
        dense = [x for method in alike for x in lines if (x.setting.method, x.setting.reduce) == (method, "none")]
        fair = [x for x in dense if _device(x) == _device(line) and len(_device(x)) == 1 and _same_step(x, line)]
        if fair and (ours := line.value(MS).mean) is not None and (theirs := fair[0].value(MS).mean):
            claimed = (line.setting.method, line.setting.reduce) == ("navia", "tome:8")
            found.append(StepTime(line, fair[0], 100 * (ours / theirs - 1), CLAIMED_TIME if claimed else None))
    return found


def _device(line: Line) -> set[tuple[object, object]]:
    return {(row["fingerprint"].get("threads"), row["fingerprint"].get("device")) for row in line.rows.values()}


def _same_step(line: Line, other: Line) -> bool:
    one, two = line.setting, other.setting
    return (one.adapt_every, one.precision) == (two.adapt_every, two.precision)


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
