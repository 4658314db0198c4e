"""Numbers in a cell: their mean, their interval, and the column whose unit they have."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from navia.errors import InputError
from navia.report.numbers import finite
from navia.report.words import readable

Row = Mapping[str, Any]
Traces = Mapping[str, Mapping[str, Any]]  # by the key of a row
FEW_SEEDS = 5  # with fewer, Student's t over them says nothing: intervals are over the images then

# two-sided 95 % quantiles of Student's t for 1, 2, 3, ... degrees of freedom
_T95 = (
    12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814,
    2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596,
    2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841, 2.04523, 2.04227,
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A number in the unit of its column. interval: 95 %, either Student's t over the seeds or Wilson's over the images.
    lowest_seed, highest_seed: an accuracy with single seeds, where every domain has the same several ones."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    interval: Literal["t", "wilson"] | None = None
    lowest_seed: float | None = None
    highest_seed: float | None = None


@dataclass(frozen=True)
class Column:
    """kind: domain (one corruption or part), group and average (means over `members`), clock (their mean in real time), ece,
    gmacs, ms, memory."""

    kind: Literal["domain", "group", "average", "clock", "ece", "gmacs", "ms", "memory"]
    name: str
    members: tuple[str, ...] = ()

    @property
    def better(self) -> Literal["high", "low"]:
        return "high" if self.is_accuracy else "low"

    @property
    def is_accuracy(self) -> bool:
        return self.kind in ("domain", "group", "average", "clock")

    @property
    def title(self) -> str:
        titles = {"ece": "ECE, %", "gmacs": "GMACs", "ms": "ms/image", "memory": "peak MiB"}
        return titles.get(self.kind) or readable(self.name)


GMACS, MS = Column("gmacs", "gmacs"), Column("ms", "ms")


def t95(count: int) -> float:
    """Two-sided 95 % quantile of Student's t for `count` values; beyond the table by its expansion around the normal's."""
    if count < 2:
        raise InputError(f"an interval over seeds needs at least 2 of them, got {count}")
    if count - 1 <= len(_T95):
        return _T95[count - 2]
    z, n = 1.959964, float(count - 1)
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / n**power for power, term in enumerate(terms, 1))


def over_seeds(values: Sequence[float]) -> Value:
    """Mean and interval of one number measured with several seeds; of one seed the number alone."""
    if not values or any(finite(value) is None for value in values):
        return Value(seeds=len(values))
    centre = statistics.fmean(values)
    if len(values) == 1:
        return Value(centre, seeds=1)
    half = t95(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return Value(centre, centre - half, centre + half, len(values), "t", min(values), max(values))


def percent(value: object) -> float:
    known = finite(value)
    return math.nan if known is None else 100 * known
