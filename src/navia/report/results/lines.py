"""Lines of a table: the rows of one setting, and what they come to in a column."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from navia.report.numbers import finite
from navia.report.results.values import Column, Row, Value, over_seeds, percent


@dataclass(frozen=True)
class Setting:
    """What makes a line. options: as JSON with sorted keys."""

    method: str
    reduce: str
    options: str
    realtime: bool
    adapt_for: int | None
    label: str | None
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
        given = [f"{key}={_plain(value)}" for key, value in self.given.items()]
        options = ", ".join(given if self.guarded else [*given, "without guard"])
        return f"{method}{'' if self.reduce == 'none' else f' + {self.reduce}'}{f' ({options})' if options else ''}"

    @property
    def name(self) -> str:
        after = "" if self.adapt_for is None else f", {self.adapt_for} batches"
        return (self.label or self.text) + after


def setting_of(row: Row) -> Setting:
    options = json.dumps(row["options"], sort_keys=True)
    guarded = row.get("guarded", True)
    return Setting(row["method"], row["reduce"], options, bool(row["realtime"]), row["adapt_for"], row["label"], guarded)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Line:
    """name: unique within its table. rows: by domain and seed. on_the_clock: those of the same setting in real time."""

    name: str
    setting: Setting
    rows: Mapping[tuple[str, int], Row]
    on_the_clock: Mapping[tuple[str, int], Row] = field(default_factory=dict)

    def of(self, domain: str) -> list[Row]:
        return [row for (where, _), row in self.rows.items() if where == domain]

    @property
    def guard_events(self) -> int:
        return sum(len(row["guard"]) for row in self.rows.values())

    @property
    def realtime_ratio(self) -> float | None:
        known = [ratio for row in self.rows.values() if (ratio := finite(row.get("realtime_ratio"))) is not None]
        return statistics.median(known) if known else None

    def value(self, column: Column) -> Value:
        if column.kind == "domain":
            return _accuracy(self.of(column.name))
        if column.kind == "clock":
            return replace(self, rows=self.on_the_clock)._mean_accuracy(column.members)
        if column.is_accuracy:
            return self._mean_accuracy(column.members)
        if column.kind == "ece":
            return self._mean_ece(column.members)
        field_name = {"gmacs": "gmacs", "ms": "ms_per_image", "memory": "peak_mib"}[column.kind]
        known = [value for row in self.rows.values() if (value := finite(row.get(field_name))) is not None]
        return Value(statistics.median(known)) if known else Value()

    def _mean_accuracy(self, members: Sequence[str]) -> Value:
        """Over domains; an interval only where every domain has the same seeds, as means over different seeds have none."""
        if len(members) == 1:
            return _accuracy(self.of(members[0]))
        cells = [_accuracy(self.of(domain)) for domain in members]
        known = [cell.mean for cell in cells if cell.mean is not None]
        if len(known) < len(members) or not known:
            return Value()
        seeds = [{seed for where, seed in self.rows if where == domain} for domain in members]
        if len(seeds[0]) > 1 and all(own == seeds[0] for own in seeds):
            by_seed = [statistics.fmean(percent(self.rows[domain, seed]["top1"]) for domain in members) for seed in seeds[0]]
            return over_seeds(by_seed)
        return Value(statistics.fmean(known), seeds=min(map(len, seeds)))

    def _mean_ece(self, members: Sequence[str]) -> Value:
        cells = [[percent(row["ece"]) for row in self.of(domain)] for domain in members]
        if not all(cells) or any(finite(value) is None for cell in cells for value in cell):
            return Value()
        return Value(statistics.fmean(statistics.fmean(cell) for cell in cells), seeds=min(map(len, cells)))


def _accuracy(rows: Sequence[Row]) -> Value:
    if len(rows) != 1:
        return over_seeds([percent(row["top1"]) for row in rows])
    mean, low, high = (finite(percent(rows[0][key])) for key in ("top1", "low", "high"))
    if mean is None or low is None or high is None:
        return Value(mean, seeds=1)
    return Value(mean, low, high, 1, "wilson")
