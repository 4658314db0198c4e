"""Rows of a benchmark -> tables of what may be compared, and why the rest may not.

Each kept spec has its own table; other rows are grouped by protocol. Named data sets of a spec are columns of one table.
Lines that measure something else (real time, or scored after a given number of batches) are blocks of their own.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from navia.bench.row import check_rows
from navia.data.corruptions import CORRUPTIONS, names
from navia.report.formatting import join_names, readable
from navia.report.groups import (
    Group,
    Study,
    by_protocol,
    domain_of,
    groups_of_spec,
    join_studies,
    line_key,
    short_path,
    studies_of,
    value_text,
    why_apart,
)
from navia.report.lines import GMACS, MS, Column, Line, Row, Rows, Scores, Setting, Traces, read_scores

_MOST_DOMAINS = 6
_NONE = object()
_GROUPS = ("noise", "blur", "weather", "digital")
_BLOCKS = {
    (False, False): "",
    (True, False): "In real time: images arrive at the rate of the source model without reduction",
    (False, True): "Adapted to the first batches, scored on the last third of the stream",
    (True, True): "In real time and scored on the last third of the stream",
}
# what distinguishes tables of the same title
_TELLING = ("stream", "batch", "limit of images", "label shift", "weights", "classes", "version of navia", "data")


@dataclass(frozen=True)
class Block:
    """Lines that measure the same."""

    title: str
    lines: tuple[Line, ...]

    @property
    def has_realtime(self) -> bool:
        return any(line.realtime_rows for line in self.lines)

    def select(self, columns: Sequence[Column]) -> list[Column]:
        """The columns of a table that the block has values for."""
        return [column for column in columns if column.kind != "clock" or self.has_realtime]


@dataclass(frozen=True)
class Missing:
    """A cell without a row. table: None if none of its cells has a row. spec: None if only other lines have the cell."""

    table: int | None
    spec: str | None
    line: str
    domain: str
    seed: int


@dataclass(frozen=True)
class Dataset:
    """One of the data sets of a table. name: in its spec; None: it has none. protocol: what its rows share; empty without
    rows. domains: those with rows, by their names in the table -> their own names. asked: how many were asked for."""

    name: str | None
    protocol: Mapping[str, Any]
    domains: Mapping[str, str]
    asked: int

    @property
    def title(self) -> str:
        return readable(self.name) if self.name else short_path(self.protocol["data"])

    @property
    def column(self) -> Column:
        """Its only domain, or the mean over its domains; without members where it has no rows."""
        if self.asked == 1 and self.domains:
            (domain,) = self.domains
            return Column("domain", domain, (domain,))
        averaged = averaged_domains(self.domains)
        part = f"{self.title}, {len(averaged)} of {self.asked}" if 0 < len(averaged) < self.asked else self.title
        return Column("dataset", str(self.name), averaged, label=part)


def averaged_domains(domains: Mapping[str, str]) -> tuple[str, ...]:
    """The 15 corruptions, if all are there: their four others are not averaged."""
    whole = set(names()) <= set(domains.values())
    return tuple(key for key, own in domains.items() if not whole or own in names())


@dataclass(frozen=True)
class Table:
    """protocol: what all rows share, name -> value. datasets: one, or those of a spec with several named ones. repeated:
    cells that were run more than once with other results. suffix: of the title where others read the same. spec: which asked
    for them. lost: cells (line, domain, seed) without row."""

    number: int
    protocol: Mapping[str, Any]
    datasets: tuple[Dataset, ...]
    blocks: tuple[Block, ...]
    repeated: tuple[str, ...] = ()
    suffix: str = ""
    spec: str | None = None
    lost: tuple[tuple[str, str, int], ...] = ()

    @property
    def lines(self) -> list[Line]:
        return [line for block in self.blocks for line in block.lines]

    @property
    def rows(self) -> list[Row]:
        return [row for line in self.lines for row in line.rows.values()]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(domain for dataset in self.datasets for domain in dataset.domains)

    def dataset_of(self, domain: str) -> Dataset:
        return next(dataset for dataset in self.datasets if domain in dataset.domains)

    @property
    def title(self) -> str:
        spec, on = f"{self.spec}: " if self.spec else "", join_names([dataset.title for dataset in self.datasets])
        if len(self.datasets) == 1:
            severity = self.protocol["severity"]
            on = f"{short_path(self.protocol['data'])}{f', severity {severity}' if severity else ''}"
        return f"{spec}{short_path(self.protocol['model'])} on {on}{self.suffix}"

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Domains, then averages where the table has all their members (the 15 corruptions if it can be), then costs."""
        averages, first = self._averages(), self._with_rows[0]
        whole = next((c for c in averages if c.kind == "average"), Column("average", "", averaged_domains(first.domains)))
        realtime = Column("clock", "in real time", whole.members, whole.weights)
        return (
            *(Column("domain", domain, (domain,)) for domain in self.domains),
            *self._groups(),
            *averages,
            *([realtime] if any(block.has_realtime for block in self.blocks) else []),
            *(Column("ece", "ece", whole.members, whole.weights), GMACS, MS, Column("memory", "memory")),
        )

    @property
    def _with_rows(self) -> list[Dataset]:
        return [dataset for dataset in self.datasets if dataset.domains]

    def _averages(self) -> list[Column]:
        """Of the domains of one data set; of several their own, and the mean over them with equal weights."""
        if len(self.datasets) == 1:
            averaged = averaged_domains(self.datasets[0].domains)
            known = len(averaged) == len(self.domains) and all(domain in self.domains for _, domain, _ in self.lost)
            name = "average" if known else f"average of {len(averaged)}"
            return [Column("average", name, averaged)] if len(self.domains) > 1 else []
        own, found = [dataset.column for dataset in self.datasets], self._with_rows
        if len(found) < 2:
            return [column for column in own if column.kind == "dataset"]
        shares = {domain: 1 / len(found) / len(d.column.members) for d in found for domain in d.column.members}
        name = "average" if len(found) == len(own) else f"average of {len(found)} data sets"
        average = Column("average", name, tuple(shares), tuple(shares.values()))
        return [*(column for column in own if column.kind == "dataset"), average]

    def _groups(self) -> list[Column]:
        """Noise, blur, weather and digital, where a data set has all their members and more."""
        found = []
        for dataset in self.datasets:
            keys = {own: key for key, own in dataset.domains.items()}
            for group in _GROUPS:
                members = tuple(keys[own] for own in CORRUPTIONS[group] if own in keys)
                if len(members) == len(CORRUPTIONS[group]) < len(averaged_domains(dataset.domains)):
                    twice = sum(set(CORRUPTIONS[group]) <= set(other.domains.values()) for other in self.datasets) > 1
                    found.append(Column("group", f"{dataset.name} {group}" if twice else group, members))
        return found

    @property
    def single(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "domain")

    @property
    def summed(self) -> tuple[Column, ...]:
        """All other columns: averages and costs."""
        return tuple(column for column in self.columns if column.kind != "domain")

    @property
    def main(self) -> tuple[Column, ...]:
        """The columns of the first view: data sets, averages and costs; of one data set with few domains all columns."""
        if len(self.datasets) == 1:
            return self.summed if len(self.domains) > _MOST_DOMAINS else self.columns
        rest = [column for column in self.summed if column.kind not in ("group", "dataset")]
        return (*(dataset.column for dataset in self.datasets), *rest)

    @property
    def parts(self) -> tuple[Column, ...]:
        """The columns of the second view, domain by domain: what the first one has only as averages."""
        return tuple(c for c in self.columns if c not in self.main)

    @property
    def average(self) -> Column:
        """The average, or the only domain or data set."""
        only = self.columns[0] if len(self.datasets) == 1 else self._with_rows[0].column
        return next((c for c in self.columns if c.kind == "average"), only)

    @property
    def seeds(self) -> list[int]:
        return sorted({row["seed"] for row in self.rows})

    def missing(self) -> list[Missing]:
        """What the spec asks for. Without a spec a line should have all domains of the table and all seeds of its block."""
        if self.spec is not None:
            return [Missing(self.number, self.spec, line, domain, seed) for line, domain, seed in self.lost]
        return [
            Missing(self.number, None, line.name, domain, seed)
            for block in self.blocks
            for line in block.lines
            for domain in self.domains
            for seed in sorted({seed for other in block.lines for _, seed in other.rows})
            if (domain, seed) not in line.rows and not (line.any_order and line.rows_of(domain))
        ]


@dataclass(frozen=True)
class Results:
    """apart: sentences why tables must not be compared with earlier ones. unbegun: cells of tables that have no row yet."""

    tables: tuple[Table, ...]
    apart: tuple[str, ...]
    rows: int
    unbegun: tuple[Missing, ...] = ()

    def missing(self) -> list[Missing]:
        return [*(missing for table in self.tables for missing in table.missing()), *self.unbegun]


def tabulate(
    rows: Sequence[Row], where: str = "the rows", specs: Sequence[Mapping[str, Any]] = (), traces: Traces | None = None
) -> Results:
    """Tables in the order of the kept specs (`Store.specs`), then of all other rows in the order in which they were run. A
    row stands in the table of each spec that asks for it, under its label there. traces: for intervals over images."""
    check_rows(rows, where)
    by_key = {row["key"]: row for row in rows}
    groups: list[Group] = []
    unbegun: list[Row] = []
    for spec in specs:
        own, lost = groups_of_spec(spec, by_key)
        groups += own
        unbegun += [{**cell, "spec": str(spec["name"])} for cell in lost]
    asked = {cell["key"] for spec in specs for cell in spec["cells"]}
    groups = join_studies([*groups, *by_protocol(None, [row for row in rows if row["key"] not in asked])])
    order = [*dict.fromkeys(cell.get("dataset") for spec in specs for cell in spec["cells"])]
    order += [row.get("dataset") for row in rows]
    studies = [sorted(study, key=lambda group: order.index(group.dataset)) for study in studies_of(groups)]
    scores = read_scores(traces or {})
    tables = [_table(number, study, scores) for number, study in enumerate(studies, 1)]
    apart = filter(None, (why_apart(number, studies) for number in range(1, len(studies))))
    cells = [Missing(None, c["spec"], Setting.from_row(c).name, domain_of(c)[0], c["seed"]) for c in unbegun]
    return Results(_distinct_titles(tables), tuple(apart), len(rows), tuple(cells))


# ---- the lines of a table


def _table(number: int, study: Study, scores: Scores) -> Table:
    keys = _domain_keys(study)
    by_setting: dict[Setting, dict[tuple[str, int], Row]] = {}
    asked: dict[Setting, set[str]] = {}
    repeated: list[str] = []
    without_row: list[tuple[Setting, str, int]] = []
    for group in study:
        done = {row["key"] for row in group.rows}
        for cell in group.cells:
            setting, domain = Setting.from_row(cell), keys[group.dataset, domain_of(cell)[0]]
            asked.setdefault(setting, set()).add(domain)
            without_row += [(setting, domain, cell["seed"])] if cell["key"] not in done else []
        for row in group.rows:
            setting, place = Setting.from_row(row), (keys[group.dataset, domain_of(row)[0]], row["seed"])
            earlier = by_setting.setdefault(setting, {}).get(place)
            if earlier is not None and earlier["top1"] != row["top1"]:
                repeated.append(f"{setting.name} on {readable(place[0])}, seed {place[1]}")
            if earlier is None or row.get("tsne") or not earlier.get("tsne"):  # the same run, but only one has a t-SNE
                by_setting[setting][place] = row
    always_off = not any(setting.guarded for setting in asked if setting.method != "none")
    shown = {setting: replace(setting, hide_guard=always_off) for setting in asked}
    lost = [(shown[setting].name, domain, seed) for setting, domain, seed in without_row]
    lines = [Line(shown[setting].name, shown[setting], rows, scores=scores) for setting, rows in by_setting.items()]
    lines = _pair_realtime(_distinct_names([_with_choice(line) for line in _one_per_label(lines, asked)]))
    split = {kind: tuple(line for line in lines if line.setting.block == kind) for kind in _BLOCKS}
    blocks = tuple(Block(_BLOCKS[kind], own) for kind, own in split.items() if own)
    protocols = [group.protocol for group in study if group.rows]
    shared = {key: value for key, value in protocols[0].items() if all(one.get(key, _NONE) == value for one in protocols)}
    datasets = tuple(_dataset(group, keys) for group in study)
    return Table(number, shared, datasets, blocks, tuple(repeated), "", study[0].spec, tuple(lost))


def _domain_keys(study: Study) -> dict[tuple[str | None, str], str]:
    """Names of domains in the table, by data set and own name: a data set with one domain gives it its name, and a name that
    several data sets have says of which it is."""
    found = {group.dataset: dict.fromkeys(domain_of(cell)[0] for cell in group.cells) for group in study}
    if len(study) == 1:
        return {(dataset, domain): domain for dataset, own in found.items() for domain in own}
    times = Counter(domain for own in found.values() if len(own) > 1 for domain in own)
    return {
        (dataset, domain): str(dataset) if len(own) == 1 else f"{dataset}: {domain}" if times[domain] > 1 else domain
        for dataset, own in found.items()
        for domain in own
    }


def _dataset(group: Group, keys: Mapping[tuple[str | None, str], str]) -> Dataset:
    """Its domains in the order of the paper, then the others as they came."""
    order = {name: i for i, name in enumerate(names(extra=True))}
    own = sorted(dict.fromkeys(domain_of(row)[0] for row in group.rows), key=lambda name: order.get(name, len(order)))
    asked = len({domain_of(cell)[0] for cell in group.cells})
    return Dataset(group.dataset, group.protocol, {keys[group.dataset, name]: name for name in own}, asked)


def _one_per_label(lines: Sequence[Line], asked: Mapping[Setting, set[str]]) -> list[Line]:
    """Runs of one label that differ in options, each with its own domains (asked), are one line."""
    groups: dict[Setting, list[Line]] = {}
    for line in lines:
        groups.setdefault(line_key({**next(iter(line.rows.values())), "label": line.setting.label}), []).append(line)
    merged: list[Line] = []
    for own in groups.values():
        disjoint = sum(len(asked[line.setting]) for line in own) == len(set().union(*(asked[x.setting] for x in own)))
        if len(own) == 1 or not disjoint:
            merged += own
            continue
        given = [line.setting.given for line in own]
        shared = {key: value for key, value in given[0].items() if all(key in one and one[key] == value for one in given)}
        rows: Rows = {place: row for line in own for place, row in line.rows.items()}
        setting = replace(own[0].setting, options=json.dumps(shared, sort_keys=True))
        options = {domain: line.setting.given for line in own for domain, _ in line.rows}
        merged.append(replace(own[0], setting=setting, rows=rows, options_by_domain=options))
    return merged


def _with_choice(line: Line) -> Line:
    """With the options that were chosen on each domain; of several seeds all values."""
    if not line.setting.choose:
        return line
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (domain, _), row in line.rows.items():
        for name, value in {**row["options"], **(row.get("choice") or {"options": {}})["options"]}.items():
            found.setdefault(domain, {}).setdefault(name, {})[json.dumps(value)] = value
    options = {
        domain: {name: next(iter(v.values())) if len(v) == 1 else " or ".join(v) for name, v in own.items()}
        for domain, own in found.items()
    }
    return replace(line, options_by_domain=options)


def _distinct_titles(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Tables of the same title also say what differs between them."""
    titled = []
    for table in tables:
        alike = [other.protocol for other in tables if other.title == table.title]
        differing = [key for key in _TELLING if any(protocol.get(key) != table.protocol.get(key) for protocol in alike)]
        titled.append(
            replace(table, suffix="".join(f", {key} {value_text(table.protocol.get(key))}" for key in differing[:2]))
        )
    return tuple(titled)


def _distinct_names(lines: Sequence[Line]) -> list[Line]:
    """Where one label stands for several settings, each line also names its setting."""
    names, found = Counter((line.name, line.setting.block) for line in lines), []
    for line in lines:
        longer = f"{line.setting.label or ''}: {replace(line.setting, label=None).name}".removeprefix(": ")
        found.append(replace(line, name=longer) if names[line.name, line.setting.block] > 1 else line)
    return found


def _pair_realtime(lines: Sequence[Line]) -> list[Line]:
    """Give each line the rows of the same setting in real time; without adaptation no image is missed."""

    def run(line: Line) -> tuple[Setting, str]:
        return replace(line.setting, realtime=False), json.dumps(line.options_by_domain, sort_keys=True)

    found = {run(line): line.rows for line in lines if line.setting.realtime}
    paired = [line if line.setting.realtime else replace(line, realtime_rows=found.get(run(line), {})) for line in lines]
    if not any(line.realtime_rows for line in paired):
        return paired
    source_model = Setting("none", "none", "{}", False, None)
    return [replace(line, realtime_rows=line.rows) if line.setting == source_model else line for line in paired]
