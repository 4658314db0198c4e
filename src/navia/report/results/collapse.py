"""Runs that went wrong: far below no adaptation, caught by the guard, or answering with few classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from navia.report.numbers import finite
from navia.report.results.lines import Line
from navia.report.results.tables import Table
from navia.report.results.values import Row, Traces, percent

COLLAPSE_POINTS = 5.0  # below no adaptation by more than this
COLLAPSE_SHARE = 0.5  # of the classes that no adaptation answers with


@dataclass(frozen=True)
class Collapse:
    """A row that went wrong. plain: the row without adaptation, if there is one."""

    line: Line
    domain: str
    row: Row
    plain: Row | None


def collapses(table: Table, traces: Traces) -> list[Collapse]:
    """Rows far below no adaptation, caught by the guard, or answering with few classes; the worst first."""
    found = []
    for line in table.lines:
        for (domain, seed), row in line.rows.items():
            plain = _plain_row(table, line, domain, seed)
            if line.setting.method != "none" and _collapsed(row, plain, traces):
                found.append(Collapse(line, domain, row, plain))
    return sorted(found, key=lambda c: finite(c.row["top1"]) or 0.0)


def _plain_row(table: Table, line: Line, domain: str, seed: int) -> Row | None:
    """No adaptation on the same images: with all tokens, of the same seed where there is one."""
    others = [
        other
        for other in table.lines
        if other.setting.method == "none" and other.setting.adapt_for == line.setting.adapt_for and other.of(domain)
    ]
    others.sort(key=lambda other: other.setting.reduce != "none")
    return others[0].rows.get((domain, seed), others[0].of(domain)[0]) if others else None


def _collapsed(row: Row, plain: Row | None, traces: Traces) -> bool:
    if plain is None or row["guard"]:
        return bool(row["guard"])
    if percent(plain["top1"]) - percent(row["top1"]) > COLLAPSE_POINTS:
        return True
    ours, theirs = (effective_classes(traces.get(r["key"], {}).get("predicted", ())) for r in (row, plain))
    return ours is not None and theirs is not None and ours < COLLAPSE_SHARE * theirs


def effective_classes(predicted: Sequence[float]) -> float | None:
    """exp of the entropy of how often each class was answered: 10 for ten equally frequent classes, 1 for a single one."""
    total = sum(predicted)
    if total <= 0:
        return None
    return math.exp(-sum(count / total * math.log(count / total) for count in predicted if count > 0))
