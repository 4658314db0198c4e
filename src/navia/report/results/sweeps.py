"""Lines that differ in one number: a rate, the cost of a reducer, or the batches that were adapted to."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from navia.methods.base import METHODS
from navia.report.numbers import finite
from navia.report.results.compare import compared
from navia.report.results.lines import Line, Setting
from navia.report.results.tables import Table
from navia.report.results.values import GMACS, Column

RATES = ("eta_delta", "eta_delta_l")


@dataclass(frozen=True)
class Sweep:
    """Lines that differ in one number only, by that number."""

    name: str
    lines: tuple[tuple[float, Line], ...]


def rate_sweeps(table: Table, rate: str) -> list[Sweep]:
    """Lines that differ only in the option `rate`, at least two values of it; one that is not given has its default."""
    found: dict[tuple[str, str, str, tuple[bool, bool]], dict[float, Line]] = {}
    for line in table.lines:
        if line.options_by_domain:
            continue
        options = line.setting.given
        value = finite(options.pop(rate, _default(line.setting.method, rate)))
        if value is not None:
            rest = json.dumps(options, sort_keys=True)
            found.setdefault((line.setting.method, line.setting.reduce, rest, line.setting.block), {})[value] = line
    return [
        Sweep(Setting(method, reduce, rest, False, None).text, tuple(sorted(lines.items())))
        for (method, reduce, rest, _), lines in found.items()
        if len(lines) > 1
    ]


def _default(method: str, option: str) -> object:
    """None: the method has no such option, or is not known here (rows may be of someone's own)."""
    return getattr(METHODS.get(method).Options(), option, None) if method in METHODS.names() else None


def relative(values: Sequence[float | None]) -> list[float]:
    """(A - Amin) / (Amax - Amin), as the paper draws learning rates; NaN where that is not defined."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [math.nan if value is None or high == low else (value - low) / (high - low) for value in values]


def relative_curves(sweep: Sweep, domains: Sequence[str]) -> dict[str, list[float]]:
    """By domain; those without two different accuracies have no relative one."""
    lines = [line for _, line in sweep.lines]
    found = {d: relative([value.mean for value in compared(lines, Column("domain", d, (d,)))]) for d in domains}
    return {domain: values for domain, values in found.items() if not all(map(math.isnan, values))}


def reduction_sweeps(table: Table) -> list[Sweep]:
    """Per method the lines over one family of reducers, by cost; without reduction is a point of each family."""
    plain = [line for block in table.blocks if not block.title for line in block.lines if not line.options_by_domain]
    by_run: dict[tuple[str, str], list[Line]] = {}
    for line in plain:
        by_run.setdefault((line.setting.method, line.setting.options), []).append(line)
    sweeps = []
    for (method, options), lines in by_run.items():
        families = dict.fromkeys(_family(line) for line in lines if line.setting.reduce != "none")
        for family in families:
            own = [line for line in lines if _family(line) in (family, "none")]
            cost = [(line.value(GMACS).mean, line) for line in own]
            points = sorted(((x, line) for x, line in cost if x is not None), key=lambda pair: pair[0])
            name = Setting(method, family if len(families) > 1 else "none", options, False, None).text
            sweeps.append(Sweep(name, tuple(points)))
    curves = [sweep for sweep in sweeps if len(sweep.lines) > 1]
    return curves if any(len(sweep.lines) > 2 for sweep in curves) else []


def _family(line: Line) -> str:
    return line.setting.reduce.partition(":")[0]


def convergence(table: Table) -> list[Sweep]:
    """Per method and reducer the lines over the number of batches that were adapted to."""
    found: dict[Setting, dict[float, Line]] = {}
    for line in table.lines:
        if line.setting.adapt_for is not None and not line.options_by_domain:
            found.setdefault(replace(line.setting, adapt_for=None), {})[float(line.setting.adapt_for)] = line
    return [Sweep(setting.name, tuple(sorted(lines.items()))) for setting, lines in found.items() if len(lines) > 1]
