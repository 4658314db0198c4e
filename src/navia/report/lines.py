"""A line of a table: the rows of one setting, their mean in each column, and its 95 % interval.

The same image in another order, or under another corruption, is not a new image: its contributions to a mean are summed over
all rows before they are squared.
"""

import contextlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from navia.errors import InputError
from navia.evaluation.metrics import wilson
from navia.report.formatting import finite, join_names, readable

Row = Mapping[str, Any]
Rows = Mapping[tuple[str, int], Row]  # by domain and seed
Traces = Mapping[str, Mapping[str, Any]]  # by the key of a row
Weighted = Sequence[tuple[float, Row]]  # a sum of accuracies: the weight of each row
FEW_SEEDS = 5  # with fewer seeds, intervals are over the images
Z95 = 1.96  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True)
class Value:
    """A number in the unit of its column. interval: 95 %, Student's t over the seeds or Wilson's over the images.
    lowest_seed, highest_seed: of an accuracy where every domain has the same seeds, and more than one."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    interval: Literal["t", "wilson"] | None = None
    lowest_seed: float | None = None
    highest_seed: float | None = None


@dataclass(frozen=True)
class Column:
    """kind: domain (one corruption or part), dataset, group and average (means over `members`, with `weights` where these
    are not equal), clock (the average in real time), ... label: instead of its name, for display only."""

    kind: Literal["domain", "dataset", "group", "average", "clock", "ece", "gmacs", "ms", "memory"]
    name: str
    members: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    label: str = field(default="", compare=False)

    @property
    def shares(self) -> dict[str, float]:
        """The weight of each domain in the mean; the same for all, unless given."""
        weights = self.weights or (1 / max(len(self.members), 1),) * len(self.members)
        return dict(zip(self.members, weights, strict=True))

    @property
    def better(self) -> Literal["high", "low"]:
        return "high" if self.is_accuracy else "low"

    @property
    def is_accuracy(self) -> bool:
        return self.kind in ("domain", "dataset", "group", "average", "clock")

    @property
    def title(self) -> str:
        titles = {"ece": "ECE, %", "gmacs": "GMACs", "ms": "ms/image", "memory": "peak MiB"}
        return self.label or titles.get(self.kind) or readable(self.name)


GMACS, MS = Column("gmacs", "gmacs"), Column("ms", "ms")


@dataclass(frozen=True)
class Setting:
    """What defines a line. options: as JSON with sorted keys. label: its name, for display only. choose: how further options
    were chosen on each stream, as JSON; "": not at all. hide_guard: the table's note says that it was off."""

    method: str
    reduce: str
    options: str
    realtime: bool
    adapt_for: int | None
    label: str | None = field(default=None, compare=False)
    guarded: bool = True
    adapt_every: int | str = 1
    precision: str = "float32"
    choose: str = ""
    fisher_images: int | None = None
    hide_guard: bool = field(default=False, compare=False)

    @classmethod
    def from_row(cls, row: Row) -> "Setting":
        """Of a row, or of a cell of a kept spec."""
        options = json.dumps(row["options"], sort_keys=True)
        guarded = row.get("guarded", True) or (row["method"] == "none" and not row["options"])  # which has nothing to guard
        chosen = json.dumps(row["choose"], sort_keys=True) if row.get("choose") else ""
        later = (guarded, row.get("adapt_every", 1), row.get("precision", "float32"), chosen, row.get("fisher_images"))
        return cls(row["method"], row["reduce"], options, bool(row["realtime"]), row["adapt_for"], row["label"], *later)

    @property
    def given(self) -> dict[str, Any]:
        return dict(json.loads(self.options))

    @property
    def block(self) -> tuple[bool, bool]:
        return self.realtime, self.adapt_for is not None

    @property
    def text(self) -> str:
        """Method, reducer and options."""
        method = "no adaptation" if self.method == "none" else self.method
        sparse = {} if self.adapt_every == 1 else {"adapt_every": self.adapt_every}
        more = ["options chosen"] * bool(self.choose) + [self.precision] * (self.precision != "float32")
        more += [f"Fisher information of {self.fisher_images:,} images"] if self.fisher_images else []
        more += ["without guard"] * (not self.guarded and not self.hide_guard)
        options = ", ".join([*_option_texts(self.given | sparse), *more])
        return f"{method}{'' if self.reduce == 'none' else f' + {self.reduce}'}{f' ({options})' if options else ''}"

    @property
    def name(self) -> str:
        return (self.label or self.text) + ("" if self.adapt_for is None else f", {self.adapt_for} batches")


def _option_texts(options: Mapping[str, Any]) -> list[str]:
    """['budget=4', 'layers=deep']."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in options.items()]


@dataclass(frozen=True)
class Line:
    """name: unique within its table. realtime_rows: of the same setting in real time. scores: which images were right, where
    known. options_by_domain: where runs of one label have other options on other domains, or options were chosen on each;
    the setting has the shared."""

    name: str
    setting: Setting
    rows: Rows
    realtime_rows: Rows = field(default_factory=dict)
    scores: "Scores" = field(default_factory=dict, repr=False)
    options_by_domain: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _values: dict[Column, Value] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rows_of(self, domain: str) -> list[Row]:
        return [row for (where, _), row in self.rows.items() if where == domain]

    @property
    def text(self) -> str:
        """Method, reducer and options, domain by domain where these differ."""
        return f"{self.setting.text}{f'; {self.options_text}' if self.options_by_domain else ''}"

    @property
    def options_text(self) -> str:
        """'budget=4 on fog and snow; budget=5 on contrast'."""
        domains: dict[str, list[str]] = {}
        for domain, options in self.options_by_domain.items():
            own = {key: value for key, value in options.items() if key not in self.setting.given}
            domains.setdefault(", ".join(_option_texts(own)) or "defaults", []).append(readable(domain))
        return "; ".join(f"{text} on {join_names(where)}" for text, where in domains.items())

    @property
    def any_order(self) -> bool:
        """Without adaptation one seed stands for all, unless the order decides which images are scored."""
        whole = all(row["images"] is None and row["stream"] == "reset" for row in self.rows.values())
        return self.setting.method == "none" and self.setting.adapt_for is None and whole

    def median(self, field_name: str) -> float | None:
        """Of a number of the rows, where any row has it."""
        known = [value for row in self.rows.values() if (value := finite(row.get(field_name))) is not None]
        return statistics.median(known) if known else None

    def in_column(self, column: Column) -> Rows:
        """The rows of a column of accuracies or calibration errors."""
        return self.realtime_rows if column.kind == "clock" else self.rows

    def seeds(self, column: Column) -> dict[str, set[int]]:
        """Of each domain of the column."""
        rows = self.in_column(column)
        return {domain: {seed for where, seed in rows if where == domain} for domain in column.members}

    def only(self, seeds: Mapping[str, set[int]]) -> "Line":
        """The same line with some seeds of each domain."""
        rows, realtime = ({(d, seed): row for (d, seed), row in rows.items() if seed in seeds.get(d, ())}
                          for rows in (self.rows, self.realtime_rows))  # fmt: skip
        return replace(self, rows=rows, realtime_rows=realtime)

    def value(self, column: Column) -> Value:
        if column not in self._values:
            self._values[column] = self._mean_accuracy(column) if column.is_accuracy else self._error_or_cost(column)
        return self._values[column]

    def _mean_accuracy(self, column: Column) -> Value:
        """Mean over domains of the means over their seeds. The interval is Student's t over seeds where every domain has the
        same ones, and enough of them; otherwise it is over the images."""
        rows, seeds = self.in_column(column), list(self.seeds(column).items())
        fewest = min((len(own) for _, own in seeds), default=0)
        shares = column.shares
        weighted = [(shares[domain] / len(own), rows[domain, seed]) for domain, own in seeds for seed in own]
        mean = finite(sum(weight * percent(row["top1"]) for weight, row in weighted))
        if mean is None or not fewest:
            return Value(seeds=fewest)
        by_seed = []
        if fewest > 1 and all(own == seeds[0][1] for _, own in seeds):
            by_seed = [sum(shares[d] * percent(rows[d, seed]["top1"]) for d, _ in seeds) for seed in seeds[0][1]]
        if len(by_seed) >= FEW_SEEDS:
            return over_seeds(by_seed)
        low, high = _interval(mean / 100, weighted, self.scores)
        ends = min(by_seed, default=None), max(by_seed, default=None)
        return Value(mean, 100 * low, 100 * high, fewest, "wilson", *ends)

    def _error_or_cost(self, column: Column) -> Value:
        if column.kind != "ece":
            return Value(self.median({"gmacs": "gmacs", "ms": "ms_per_image", "memory": "peak_mib"}[column.kind]))
        cells = [[percent(row["ece"]) for row in self.rows_of(domain)] for domain in column.members]
        if not all(cells) or any(finite(value) is None for cell in cells for value in cell):
            return Value()
        means = zip(column.shares.values(), map(statistics.fmean, cells), strict=True)
        return Value(sum(share * mean for share, mean in means), seeds=min(map(len, cells)))


# ---- intervals


def percent(value: object) -> float:
    known = finite(value)
    return math.nan if known is None else 100 * known


def t95(count: int) -> float:
    """Two-sided 95 % quantile of Student's t for `count` values."""
    from scipy import stats

    if count < 2:
        raise InputError(f"an interval over seeds needs at least 2 of them, got {count}")
    return float(stats.t.ppf(0.975, count - 1))


def over_seeds(values: Sequence[float]) -> Value:
    """Mean and interval of one number measured with several seeds; of one seed the number alone."""
    if not values or any(finite(value) is None for value in values):
        return Value(seeds=len(values))
    centre = statistics.fmean(values)
    if len(values) == 1:
        return Value(centre, seeds=1)
    half = t95(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return Value(centre, centre - half, centre + half, len(values), "t", min(values), max(values))


class Scored(NamedTuple):
    """Images of one collection, by position: which of them a run scored, and which of these it got right."""

    collection: str
    seen: np.ndarray
    right: np.ndarray


Scores = Mapping[str, Sequence[Scored]]  # by the key of a row


def read_scores(traces: Traces) -> dict[str, list[Scored]]:
    """Of all traces that hold them."""
    found = {}
    for key, trace in traces.items():
        with contextlib.suppress(KeyError, TypeError, ValueError):  # none in this trace, or damaged
            found[key] = [
                Scored(str(part["collection"]), _bits(part, "seen"), _bits(part, "right")) for part in trace["scored"]
            ]
    return {key: scored for key, scored in found.items() if scored}


def _bits(part: Mapping[str, Any], name: str) -> np.ndarray:
    packed = np.frombuffer(bytes.fromhex(part[name]), np.uint8)
    if 8 * len(packed) < part["images"]:
        raise ValueError(f"{8 * len(packed)} bits for {part['images']} images")
    return np.unpackbits(packed, count=part["images"]).astype(bool)


def _variance(rows: Weighted, scores: Scores) -> tuple[float, int] | None:
    """Of the weighted sum of accuracies over the images, and the number of images; None if the rows do not say which."""
    sums: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    for weight, row in rows:
        own = scores.get(row["key"])
        count = sum(int(part.seen.sum()) for part in own or ())
        if not own or not count:
            return None
        mean = sum(int(part.right.sum()) for part in own) / count
        if not math.isclose(mean, row["top1"], abs_tol=1e-6):  # a trace of another run
            return None
        for part in own:
            sums.setdefault(part.collection, np.zeros(len(part.seen)))
            seen.setdefault(part.collection, np.zeros(len(part.seen), dtype=bool))
            sums[part.collection] += weight / count * part.seen * (part.right - mean)
            seen[part.collection] |= part.seen
    return sum(float((part**2).sum()) for part in sums.values()), sum(int(part.sum()) for part in seen.values())


def _interval(mean: float, rows: Weighted, scores: Scores) -> tuple[float, float]:
    """95 % interval of a mean accuracy (a share) over the images: Wilson's, with as many images as would vary as much. Where
    rows do not say which images were right, with the images of one row: no mean over runs on them varies more."""
    counts = [float(row["count"]) for _, row in rows]
    known = _variance(rows, scores) if len(rows) > 1 else None
    if known is None:
        count = min(counts)
    else:
        count = min(mean * (1 - mean) / known[0], sum(counts)) if known[0] > 0 else float(known[1])
    return wilson(min(mean, 1.0) * count, count)


def gap_interval(gap: float, rows: Weighted, scores: Scores) -> tuple[float, float] | None:
    """95 % interval of a difference of mean accuracies (shares) on the same images. Two images, one for each side, are added
    to the variance (Bonett and Price, 2012), so that few images with equal predictions do not look certain."""
    known = _variance(rows, scores)
    if known is None:
        return None
    half = Z95 * math.sqrt(known[0] + 2 / (known[1] + 2) ** 2)
    return gap - half, gap + half
