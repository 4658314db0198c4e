"""How long cells take: for the time left, and so that a cluster begins with the longest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from navia.bench.cell import Cell
from navia.methods.base import METHODS

Row = Mapping[str, Any]
LIKENESS = (("model", "method", "reduce"), ("model", "method"), ("model",), ())


def work(cell: Cell, images: float = 1) -> float:
    """Dense forwards of single images that a cell is worth, roughly; images: of a domain whose number nobody has given."""
    return METHODS.get(cell.method).relative_cost * (cell.images or images) * len(cell.domains)


def longest_first(wanted: Sequence[Cell]) -> list[Cell]:
    """Begun last, a long cell would keep one worker busy after all others have finished."""
    return sorted(wanted, key=work, reverse=True)


@dataclass
class _Alike:
    """Sums over rows of one kind. images: of each of their domains, on average. work: dense forwards of single images."""

    rows: int = 0
    images: float = 0.0
    work: float = 0.0
    seconds: float = 0.0


class Pace:
    """What finished rows tell of the time that cells take. Every row is looked at once, when it is added."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._methods = set(METHODS.names())
        self._groups: dict[tuple[str, ...], _Alike] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Rows of methods that are not installed any more tell nothing."""
        method, images = row["method"], _images(row)
        if method not in self._methods:
            return
        kind = {"model": row["model"], "method": method, "reduce": row["reduce"]}
        domains, seconds = len(row["domains"]), row["wall_seconds"]
        for names in LIKENESS:
            group = self._groups.setdefault(tuple(kind[name] for name in names), _Alike())
            group.rows += 1
            group.images += images / domains
            group.work += METHODS.get(method).relative_cost * images
            group.seconds += seconds

    def seconds(self, cell: Cell, given: int, open_ended: int) -> float | None:
        """Of cells with this one's model, method and reducer, by the rows that are most like it; None: there are no rows.
        given: their images. open_ended: domains of theirs whose number of images nobody has given."""
        for names in LIKENESS:
            group = self._groups.get(tuple(getattr(cell, name) for name in names))
            if group is not None:
                images = given + open_ended * group.images / group.rows
                return METHODS.get(cell.method).relative_cost * images * group.seconds / group.work
        return None


@dataclass
class _Left:
    """Cells of one model, method and reducer: one of them, how many, and what `Pace.seconds` asks for."""

    like: Cell
    cells: int = 0
    given: int = 0
    open_ended: int = 0


class Waiting:
    """Cells that are still to be run. The time they take is summed by kind, not cell by cell."""

    def __init__(self, wanted: Iterable[Cell]) -> None:
        self._kinds: dict[tuple[str, ...], _Left] = {}
        for cell in wanted:
            self._change(cell, 1)

    def remove(self, cell: Cell) -> None:
        self._change(cell, -1)

    def _change(self, cell: Cell, by: int) -> None:
        kind = (cell.model, cell.method, cell.reduce)
        left = self._kinds.setdefault(kind, _Left(cell))
        left.cells += by
        left.given += by * (cell.images or 0) * len(cell.domains)
        left.open_ended += by * len(cell.domains) * (cell.images is None)
        if not left.cells:
            del self._kinds[kind]

    def seconds(self, pace: Pace) -> float | None:
        """Of all of them one after the other; None: there is nothing to judge by."""
        each = [pace.seconds(left.like, left.given, left.open_ended) for left in self._kinds.values()]
        return None if None in each else sum(filter(None, each))


def expected_seconds(cell: Cell, rows: Sequence[Row]) -> float | None:
    """Of one cell by these rows."""
    return total_seconds([cell], rows)


def total_seconds(wanted: Sequence[Cell], rows: Sequence[Row]) -> float | None:
    """Of all cells one after the other."""
    return Waiting(wanted).seconds(Pace(rows))


def _images(row: Row) -> int:
    """Of the whole stream: `count` are those that were scored."""
    return int(row["fingerprint"]["images"])
