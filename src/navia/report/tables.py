"""Rows of a benchmark -> tables of what may be compared, and why the rest may not.

Each kept spec has its own table; other rows are grouped by protocol: everything but the method under test was the same.
Lines that measure something else (real time, or scored after a given number of batches) are blocks of their own.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from navia.bench.row import check_rows
from navia.data.corruptions import CORRUPTIONS, names
from navia.report.formatting import readable
from navia.report.lines import GMACS, MS, Column, Line, Row, Rows, Scores, Setting, Traces, read_scores

_MOST_DOMAINS = 6
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
class Table:
    """protocol: what all rows share, name -> value. repeated: cells that were run more than once with other results. suffix:
    of the title where others read the same. spec: which asked for them. lost: cells (line, domain, seed) without row."""

    number: int
    protocol: Mapping[str, Any]
    domains: tuple[str, ...]
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
    def title(self) -> str:
        model, data, severity = (self.protocol[key] for key in ("model", "data", "severity"))
        spec, severity = f"{self.spec}: " if self.spec else "", f", severity {severity}" if severity else ""
        return f"{spec}{short_path(model)} on {short_path(data)}{severity}{self.suffix}"

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Domains, then averages where the table has all their members (the 15 corruptions if it can be), then costs."""
        averaged = tuple(names()) if set(names()) <= set(self.domains) else self.domains
        groups = [Column("group", group, CORRUPTIONS[group]) for group in _GROUPS]
        whole = len(averaged) == len(self.domains) and all(domain in self.domains for _, domain, _ in self.lost)
        average = Column("average", "average" if whole else f"average of {len(averaged)}", averaged)
        realtime = Column("clock", "in real time", averaged)
        return (
            *(Column("domain", domain, (domain,)) for domain in self.domains),
            *(column for column in groups if set(column.members) < set(averaged)),
            *([average] if len(self.domains) > 1 else []),
            *([realtime] if any(block.has_realtime for block in self.blocks) else []),
            *(Column("ece", "ece", averaged), GMACS, MS, Column("memory", "memory")),
        )

    @property
    def single(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "domain")

    @property
    def summed(self) -> tuple[Column, ...]:
        """All other columns: averages and costs."""
        return tuple(column for column in self.columns if column.kind != "domain")

    @property
    def is_wide(self) -> bool:
        """More domains than fit beside averages and costs."""
        return len(self.domains) > _MOST_DOMAINS

    @property
    def average(self) -> Column:
        """The average, or the only domain."""
        return next((c for c in self.columns if c.kind == "average"), self.columns[0])

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
    groups: list[_Group] = []
    unbegun: list[Missing] = []
    for spec in specs:
        own, lost = _groups_of_spec(spec, by_key)
        groups += own
        unbegun += lost
    asked = {cell["key"] for spec in specs for cell in spec["cells"]}
    groups = _join_pieces([*groups, *_by_protocol(None, [row for row in rows if row["key"] not in asked])])
    scores = read_scores(traces or {})
    tables = [_table(number, group, scores) for number, group in enumerate(groups, 1)]
    apart = filter(None, (_why_apart(number, groups) for number in range(1, len(groups))))
    return Results(_distinct_titles(tables), tuple(apart), len(rows), tuple(unbegun))


# ---- what may be compared


def domain_of(row: Row) -> tuple[str, int]:
    """Name and severity; in a downloaded ImageNet-C both are in the name of the part ("fog/5"). A stream is one domain."""
    found = re.fullmatch(r"(.+)/([1-5])", row["domain"])
    if not row["corrupted"] and found and found[1] in names(extra=True):
        return found[1], int(found[2])
    return row["domain"] or row["stream"], row["severity"]


def _protocol_of(row: Row) -> dict[str, Any]:
    """What rows of one table share."""
    prints = row["fingerprint"]
    streamed = {"domains of the stream": tuple(row["domains"])} if not row["domain"] and row.get("domains") else {}
    return {
        "model": row["model"], "weights": prints["weights"], "preprocessing": prints["preprocessing"],
        "data": row["data"], "kind of data": prints["data"], "severity": domain_of(row)[1],
        "stream": row["stream"], **streamed, "reset policy": prints["reset"],
        "limit of images": row["images"], "label shift": row["label_shift"], "batch": row["batch"],
        "number of source images": row["source_images"],
        "source": row["source_path"] or "clean images of the same data that are not in the stream",
        "classes": prints["classes"], "version of navia": prints["versions"]["navia"],
    }  # fmt: skip


def _identity_of(row: Row) -> dict[str, Any]:
    """The protocol for comparison: data by their digest, wherever they lie, where a row has it."""
    return _protocol_of(row) | {name: row[f"{name}_digest"] for name in ("data", "source") if row.get(f"{name}_digest")}


def _known_protocol(cell: Row) -> tuple[object, ...]:
    """The part of the protocol that is known before a cell runs."""
    return (
        cell["model"], cell.get("weights_digest") or cell.get("checkpoint"), cell.get("crop_only"),
        cell.get("data_digest") or cell["data"], cell["corrupted"], domain_of(cell)[1], cell["stream"],
        () if cell["domain"] else tuple(cell["domains"]), cell["images"], cell["label_shift"], cell["batch"],
        cell["source_images"], cell.get("source_digest") or cell["source_path"],
    )  # fmt: skip


@dataclass
class _Group:
    """Cells of one table: rows of one protocol whose images agree. cells: what was asked for, as rows if they are there."""

    spec: str | None
    protocol: Mapping[str, Any]
    identity: Mapping[str, Any]
    cells: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    image_digests: dict[tuple[str, int], str] = field(default_factory=dict)
    image_counts: dict[str, int] = field(default_factory=dict)

    def accepts(self, row: Row) -> bool:
        return _identity_of(row) == self.identity and not self.conflict(row)

    def conflict(self, row: Row) -> str:
        """What does not agree although the protocol does."""
        prints, part = row["fingerprint"], _part_of(row)
        images = self.image_counts.get(part, prints["images"])
        if images != prints["images"]:
            return f"another number of images ({images:,} and {prints['images']:,})"
        if self.image_digests.get((part, row["seed"]), prints["pictures"]) != prints["pictures"]:
            return f"other images or another order of them (seed {row['seed']}{f', {part}' if part else ''})"
        return ""

    def add(self, row: Row) -> None:
        self.image_counts[_part_of(row)] = row["fingerprint"]["images"]
        self.image_digests[_part_of(row), row["seed"]] = row["fingerprint"]["pictures"]
        self.rows.append(row)


def _part_of(row: Row) -> str:
    """Generated corruptions all come from the same images; parts that were found have their own."""
    return "" if row["corrupted"] else row["domain"]


def _why_apart(number: int, groups: Sequence[_Group]) -> str:
    """What separates a table from the most similar earlier one; nothing, where it may be compared with one."""
    reasons = [_reasons(groups[number], earlier) for earlier in groups[:number]]
    if not all(reasons):
        return ""
    nearest = min(range(number), key=lambda i: len(reasons[i]))
    return f"Table {number + 1} is not comparable with table {nearest + 1}: {'; '.join(reasons[nearest])}."


def _reasons(group: _Group, other: _Group) -> list[str]:
    found = []
    for key in dict.fromkeys([*other.identity, *group.identity]):
        if other.identity.get(key) != group.identity.get(key):
            whole = [_value_text(one.protocol.get(key)) for one in (other, group)]
            short = list(map(short_path, whole)) if key in ("model", "data", "source") else whole
            found.append(f"other {key} ({' and '.join(whole if short[0] == short[1] else short)})")
    return found or [*filter(None, map(other.conflict, group.rows))][:1]


def _value_text(value: object) -> str:
    return "not given" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)


def short_path(path: str) -> str:
    """The last part of a path, after its "hf:" if it has one: the folders above it mean nothing on another computer."""
    library, colon, place = path.rpartition(":")
    local = not colon or place.startswith((".", "/", "~"))
    return f"{library}{colon}{PurePath(place).name or place}" if local else path


# ---- which rows make a table


def _groups_of_spec(spec: Mapping[str, Any], by_key: Mapping[str, Row]) -> tuple[list[_Group], list[Missing]]:
    """Of one spec, and its cells whose table has no row yet."""
    name, lost = str(spec["name"]), []
    found = {cell["key"]: {**by_key[cell["key"]], "label": cell["label"]} for cell in spec["cells"] if cell["key"] in by_key}
    groups = _by_protocol(name, found.values())
    for cell in (cell for cell in spec["cells"] if cell["key"] not in by_key):
        group = next((group for group in groups if _known_protocol(group.rows[0]) == _known_protocol(cell)), None)
        if group is None:
            lost.append(Missing(None, name, Setting.from_row(cell).name, domain_of(cell)[0], cell["seed"]))
        else:
            group.cells.append(cell)
    return groups, lost


def _by_protocol(spec: str | None, rows: Iterable[Row]) -> list[_Group]:
    groups: list[_Group] = []
    for row in rows:
        group = next((group for group in groups if group.accepts(row)), None)
        if group is None:
            groups.append(group := _Group(spec, _protocol_of(row), _identity_of(row)))
        group.cells.append(row)
        group.add(row)
    return groups


def _join_pieces(groups: Sequence[_Group]) -> list[_Group]:
    """A study that was run in pieces, with other domains or seeds each time, is one table."""
    joined: list[_Group] = []
    for group in groups:
        earlier = next((one for one in joined if _fit(one, group)), None)
        if earlier is None:
            joined.append(group)
            continue
        known = {cell["key"] for cell in earlier.cells}
        earlier.cells += [cell for cell in group.cells if cell["key"] not in known]
        for row in group.rows:
            if row["key"] not in known:
                earlier.add(row)
        specs = [*(earlier.spec or "").split(", "), group.spec or ""]
        earlier.spec = ", ".join(dict.fromkeys(filter(None, specs))) or None
    return joined


def _fit(one: _Group, other: _Group) -> bool:
    """Whether both have the same lines, comparable, and no domain on which a line differs."""
    if set(map(_line_key, one.cells)) != set(map(_line_key, other.cells)) or not all(map(one.accepts, other.rows)):
        return False
    options = {(_line_key(cell), domain_of(cell)[0]): Setting.from_row(cell) for cell in one.cells}
    keys = {(_line_key(cell), domain_of(cell)[0], cell["seed"]): cell["key"] for cell in one.cells}
    for cell in other.cells:
        place, setting = (_line_key(cell), domain_of(cell)[0]), Setting.from_row(cell)
        if options.get(place, setting) != setting or keys.get((*place, cell["seed"]), cell["key"]) != cell["key"]:
            return False
    return True


def _line_key(cell: Row) -> Setting:
    """What a reader takes for one line: a label with its method and reducer, whatever the options are."""
    setting = Setting.from_row(cell)
    return setting if setting.label is None else replace(setting, options=json.dumps({"label": setting.label}))


# ---- the lines of a table


def _table(number: int, group: _Group, scores: Scores) -> Table:
    by_setting: dict[Setting, dict[tuple[str, int], Row]] = {}
    asked: dict[Setting, set[str]] = {}
    repeated: list[str] = []
    for cell in group.cells:
        asked.setdefault(Setting.from_row(cell), set()).add(domain_of(cell)[0])
    for row in group.rows:
        setting, place = Setting.from_row(row), (domain_of(row)[0], row["seed"])
        earlier = by_setting.setdefault(setting, {}).get(place)
        if earlier is not None and earlier["top1"] != row["top1"]:
            repeated.append(f"{setting.name} on {readable(place[0])}, seed {place[1]}")
        if earlier is None or row.get("tsne") or not earlier.get("tsne"):  # the same run, but only one has a t-SNE
            by_setting[setting][place] = row
    lines = [Line(setting.name, setting, rows, scores=scores) for setting, rows in by_setting.items()]
    lines = _pair_realtime(_distinct_names(_one_per_label(lines, asked)))
    order = {name: i for i, name in enumerate(names(extra=True))}  # as in the paper, then the others as they came
    domains = sorted(dict.fromkeys(d for line in lines for d, _ in line.rows), key=lambda d: order.get(d, len(order)))
    done = {row["key"] for row in group.rows}
    lost = [(Setting.from_row(c).name, domain_of(c)[0], c["seed"]) for c in group.cells if c["key"] not in done]
    split = {kind: tuple(line for line in lines if line.setting.block == kind) for kind in _BLOCKS}
    blocks = tuple(Block(_BLOCKS[kind], own) for kind, own in split.items() if own)
    return Table(number, group.protocol, tuple(domains), blocks, tuple(repeated), "", group.spec, tuple(lost))


def _one_per_label(lines: Sequence[Line], asked: Mapping[Setting, set[str]]) -> list[Line]:
    """Runs of one label that differ in options, each with its own domains (asked), are one line."""
    groups: dict[Setting, list[Line]] = {}
    for line in lines:
        groups.setdefault(_line_key({**next(iter(line.rows.values())), "label": line.setting.label}), []).append(line)
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


def _distinct_titles(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Tables of the same title also say what differs between them."""
    titled = []
    for table in tables:
        alike = [other.protocol for other in tables if other.title == table.title]
        differing = [key for key in _TELLING if any(protocol[key] != table.protocol[key] for protocol in alike)]
        titled.append(replace(table, suffix="".join(f", {key} {_value_text(table.protocol[key])}" for key in differing[:2])))
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
