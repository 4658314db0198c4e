"""Lines of a table: the rows of one setting, and what they come to in a column."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from navia.report.numbers import finite
from navia.report.results.images import Scores, interval
from navia.report.results.values import FEW_SEEDS, Column, Row, Value, over_seeds, percent
from navia.report.words import listed, readable

Rows = Mapping[tuple[str, int], Row]  # by domain and seed


@dataclass(frozen=True)
class Setting:
    """What makes a line. options: as JSON with sorted keys. label: how it is called, for display only."""

    method: str
    reduce: str
    options: str
    realtime: bool
    adapt_for: int | None
    label: str | None = field(default=None, compare=False)
    guarded: bool = True

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
        given = options_texts(self.given)
        options = ", ".join(given if self.guarded else [*given, "without guard"])
        return f"{method}{'' if self.reduce == 'none' else f' + {self.reduce}'}{f' ({options})' if options else ''}"

    @property
    def name(self) -> str:
        after = "" if self.adapt_for is None else f", {self.adapt_for} batches"
        return (self.label or self.text) + after


def setting_of(row: Row) -> Setting:
    """Of a row, or of a cell of a kept spec."""
    options = json.dumps(row["options"], sort_keys=True)
    guarded = row.get("guarded", True)
    return Setting(row["method"], row["reduce"], options, bool(row["realtime"]), row["adapt_for"], row["label"], guarded)


def options_texts(options: Mapping[str, Any]) -> list[str]:
    """['budget=4', 'layers=deep']."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in options.items()]


@dataclass(frozen=True)
class Line:
    """name: unique within its table. on_the_clock: rows of the same setting in real time. scores: which images the rows got
    right, where that is known. options_by_domain: where runs of one label have other options on other domains; those of the
    setting are what they share then."""

    name: str
    setting: Setting
    rows: Rows
    on_the_clock: Rows = field(default_factory=dict)
    scores: Scores = field(default_factory=dict, repr=False)
    options_by_domain: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _values: dict[Column, Value] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, domain: str) -> list[Row]:
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
            domains.setdefault(", ".join(options_texts(own)) or "defaults", []).append(readable(domain))
        return "; ".join(f"{text} on {listed(where)}" for text, where in domains.items())

    @property
    def any_order(self) -> bool:
        """Without adaptation the order of the same images changes nothing, unless it decides which are scored: one seed
        stands for all."""
        whole = all(row["images"] is None and row["stream"] == "reset" for row in self.rows.values())
        return self.setting.method == "none" and self.setting.adapt_for is None and whole

    @property
    def guard_events(self) -> int:
        return sum(len(row["guard"]) for row in self.rows.values())

    @property
    def realtime_ratio(self) -> float | None:
        known = [ratio for row in self.rows.values() if (ratio := finite(row.get("realtime_ratio"))) is not None]
        return statistics.median(known) if known else None

    def in_column(self, column: Column) -> Rows:
        """The rows that a column of accuracies or calibration errors is made of."""
        return self.on_the_clock if column.kind == "clock" else self.rows

    def seeds(self, column: Column) -> dict[str, set[int]]:
        """Of each domain of the column."""
        rows = self.in_column(column)
        return {domain: {seed for where, seed in rows if where == domain} for domain in column.members}

    def only(self, seeds: Mapping[str, set[int]]) -> "Line":
        """The same line with some seeds of each domain."""
        kept = [
            {(domain, seed): row for (domain, seed), row in rows.items() if seed in seeds.get(domain, ())}
            for rows in (self.rows, self.on_the_clock)
        ]
        return replace(self, rows=kept[0], on_the_clock=kept[1])

    def value(self, column: Column) -> Value:
        if column not in self._values:
            self._values[column] = self._value(column)
        return self._values[column]

    def _value(self, column: Column) -> Value:
        if column.is_accuracy:
            return self._mean_accuracy(column)
        if column.kind == "ece":
            return self._mean_ece(column.members)
        field_name = {"gmacs": "gmacs", "ms": "ms_per_image", "memory": "peak_mib"}[column.kind]
        known = [value for row in self.rows.values() if (value := finite(row.get(field_name))) is not None]
        return Value(statistics.median(known)) if known else Value()

    def _mean_accuracy(self, column: Column) -> Value:
        """Mean over domains of the means over their seeds. The interval is Student's t over seeds where every domain has the
        same ones, and enough of them; otherwise it is over the images."""
        rows, seeds = self.in_column(column), list(self.seeds(column).items())
        fewest = min((len(own) for _, own in seeds), default=0)
        weighted = [(1 / len(seeds) / len(own), rows[domain, seed]) for domain, own in seeds for seed in own]
        mean = finite(sum(weight * percent(row["top1"]) for weight, row in weighted))
        if mean is None or not fewest:
            return Value(seeds=fewest)
        by_seed = []
        if fewest > 1 and all(own == seeds[0][1] for _, own in seeds):
            by_seed = [statistics.fmean(percent(rows[d, seed]["top1"]) for d, _ in seeds) for seed in seeds[0][1]]
        if len(by_seed) >= FEW_SEEDS:
            return over_seeds(by_seed)
        low, high = interval(mean / 100, weighted, self.scores)
        ends = min(by_seed, default=None), max(by_seed, default=None)
        return Value(mean, 100 * low, 100 * high, fewest, "wilson", *ends)

    def _mean_ece(self, members: Sequence[str]) -> Value:
        cells = [[percent(row["ece"]) for row in self.of(domain)] for domain in members]
        if not all(cells) or any(finite(value) is None for cell in cells for value in cell):
            return Value()
        return Value(statistics.fmean(statistics.fmean(cell) for cell in cells), seeds=min(map(len, cells)))
