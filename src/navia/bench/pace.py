"""How long cells take: for the time left, and so that a cluster begins with the longest."""

from collections.abc import Mapping, Sequence
from typing import Any

from navia.adapt.method import METHODS
from navia.bench.cell import Cell

Row = Mapping[str, Any]
LIKENESS = (("model", "method", "reduce"), ("model", "method"), ("model",), ())


def work(cell: Cell, images: float = 1) -> float:
    """Dense forwards of single images that a cell is worth, roughly; images: of a domain whose number nobody has given."""
    return METHODS.get(cell.method).effort * (cell.images or images) * len(cell.domains)


def longest_first(wanted: Sequence[Cell]) -> list[Cell]:
    """Begun last, a long cell would keep one worker busy after all others have finished."""
    return sorted(wanted, key=work, reverse=True)


def expected_seconds(cell: Cell, rows: Sequence[Row]) -> float | None:
    """By the rows that are most like it; None: there are no rows (or only of methods that are not installed any more)."""
    known = [row for row in rows if row["method"] in METHODS.names()]
    for names in LIKENESS:
        alike = [row for row in known if all(row[name] == getattr(cell, name) for name in names)]
        if alike:
            images = sum(_images(row) / len(row["domains"]) for row in alike) / len(alike)
            done = sum(METHODS.get(row["method"]).effort * _images(row) for row in alike)
            return work(cell, images) * sum(row["wall_seconds"] for row in alike) / done
    return None


def _images(row: Row) -> int:
    """Of the whole stream: `count` are those that were scored."""
    return int(row["fingerprint"]["images"])


def total_seconds(wanted: Sequence[Cell], rows: Sequence[Row]) -> float | None:
    """Of all cells one after the other."""
    each = [expected_seconds(cell, rows) for cell in wanted]
    return None if None in each else sum(filter(None, each))
