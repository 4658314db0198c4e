"""Rows -> tables: one for each kept spec, and for rows that no spec asks for one of each protocol."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from navia.bench.row import check_rows
from navia.data.corruptions import names
from navia.report.results.images import Scores, scores_of
from navia.report.results.lines import Line, Rows, Setting, setting_of
from navia.report.results.protocol import Kind, asked_of, domain_of, identity_of, protocol_of, value_text, why_apart
from navia.report.results.tables import Block, Missing, Results, Table
from navia.report.results.values import Row, Traces
from navia.report.words import readable


@dataclass
class Part:
    """Cells of one table. spec: the name of what asked for them, None for rows that no kept spec asks for. cells: what was
    asked for, with the label that it has there, as rows where these are there. kind: of the rows."""

    spec: str | None
    kind: Kind
    cells: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.kind.add(row)
        self.cells.append(row)
        self.rows.append(row)


def tabulate(
    rows: Sequence[Row], where: str = "the rows", specs: Sequence[Mapping[str, Any]] = (), traces: Traces | None = None
) -> Results:
    """Tables in the order in which the specs were kept (`Store.specs`), then those of all other rows in the order in which
    their first rows were run. A row stands in the table of each spec that asks for it, under the label that it has there;
    nothing else is read of a label: rows that differ in it alone are of one line.

    traces: from them intervals over images know which images were right."""
    rows = [row.as_json() for row in check_rows(rows, where)]
    by_key = {row["key"]: row for row in rows}
    parts: list[Part] = []
    unbegun: list[Missing] = []
    for spec in specs:
        own, lost = _parts_of(spec, by_key)
        parts += own
        unbegun += lost
    asked = {cell["key"] for spec in specs for cell in spec["cells"]}
    parts += _by_protocol(None, [row for row in rows if row["key"] not in asked])
    joined = _joined(parts)
    scores = scores_of(traces or {})
    tables = _titled_apart([_table(number, part, scores) for number, part in enumerate(joined, 1)])
    apart = filter(None, (why_apart(number, [part.kind for part in joined]) for number in range(1, len(joined))))
    return Results(tables, tuple(apart), len(rows), tuple(unbegun))


# ---- which rows make a table


def _parts_of(spec: Mapping[str, Any], by_key: Mapping[str, Row]) -> tuple[list[Part], list[Missing]]:
    """Of one spec, and its cells whose table has no row yet."""
    name = str(spec["name"])
    found = {cell["key"]: {**by_key[cell["key"]], "label": cell["label"]} for cell in spec["cells"] if cell["key"] in by_key}
    parts = _by_protocol(name, list(found.values()))
    lost = []
    for cell in spec["cells"]:
        if cell["key"] in found:
            continue
        part = next((part for part in parts if asked_of(part.rows[0]) == asked_of(cell)), None)
        if part is None:
            lost.append(Missing(None, name, setting_of(cell).name, domain_of(cell)[0], cell["seed"]))
        else:
            part.cells.append(cell)
    return parts, lost


def _by_protocol(spec: str | None, rows: Iterable[Row]) -> list[Part]:
    parts: list[Part] = []
    for row in rows:
        part = next((part for part in parts if part.kind.takes(row)), None)
        if part is None:
            parts.append(part := Part(spec, Kind(protocol_of(row), identity_of(row))))
        part.add(row)
    return parts


def _joined(parts: Sequence[Part]) -> list[Part]:
    """A study that was run in pieces, with other domains or seeds each time, is one table."""
    joined: list[Part] = []
    for part in parts:
        earlier = next((one for one in joined if _fit(one, part)), None)
        if earlier is None:
            joined.append(part)
            continue
        known = {cell["key"] for cell in earlier.cells}
        for cell in part.cells:
            if cell["key"] not in known:
                earlier.cells.append(cell)
        for row in part.rows:
            if row["key"] not in known:
                earlier.kind.add(row)
                earlier.rows.append(row)
        if part.spec is not None and earlier.spec is not None and part.spec not in earlier.spec.split(", "):
            earlier.spec = f"{earlier.spec}, {part.spec}"
        earlier.spec = earlier.spec or part.spec
    return joined


def _fit(one: Part, other: Part) -> bool:
    """Whether both have the same lines, comparable, and no domain on which a line differs."""
    if {_called(cell) for cell in one.cells} != {_called(cell) for cell in other.cells}:
        return False
    if not all(map(one.kind.takes, other.rows)):
        return False
    options = {(_called(cell), domain_of(cell)[0]): setting_of(cell) for cell in one.cells}
    keys = {(_called(cell), domain_of(cell)[0], cell["seed"]): cell["key"] for cell in one.cells}
    for cell in other.cells:
        called, domain = _called(cell), domain_of(cell)[0]
        if options.get((called, domain), setting_of(cell)) != setting_of(cell):
            return False
        if keys.get((called, domain, cell["seed"]), cell["key"]) != cell["key"]:
            return False
    return True


def _called(cell: Row) -> Setting:
    """What a reader takes for one line: a label with its method and reducer, whatever the options are."""
    setting = setting_of(cell)
    return setting if setting.label is None else replace(setting, options=json.dumps({"label": setting.label}))


# ---- a table


def _table(number: int, part: Part, scores: Scores) -> Table:
    by_setting: dict[Setting, dict[tuple[str, int], Row]] = {}
    domains: dict[Setting, set[str]] = {}
    repeated: list[str] = []
    for cell in part.cells:
        domains.setdefault(setting_of(cell), set()).add(domain_of(cell)[0])
    for row in part.rows:
        setting, place = setting_of(row), (domain_of(row)[0], row["seed"])
        earlier = by_setting.setdefault(setting, {}).get(place)
        if earlier is not None and earlier["top1"] != row["top1"]:
            repeated.append(f"{setting.name} on {readable(place[0])}, seed {place[1]}")
        if earlier is None or row.get("tsne") or not earlier.get("tsne"):  # the same run, but only one has a picture
            by_setting[setting][place] = row
    lines = [Line(setting.name, setting, rows, scores=scores) for setting, rows in by_setting.items()]
    lines = _timed(_told_apart(_one_per_label(lines, domains)))
    found = dict.fromkeys(domain for line in lines for domain, _ in line.rows)
    done = {row["key"] for row in part.rows}
    lost = [(setting_of(c).name, domain_of(c)[0], c["seed"]) for c in part.cells if c["key"] not in done]
    return Table(
        number=number,
        protocol=part.kind.protocol,
        domains=tuple(_ordered(found)),
        blocks=_blocks(lines),
        repeated=tuple(repeated),
        spec=part.spec,
        lost=tuple(lost),
    )


def _one_per_label(lines: Sequence[Line], domains: Mapping[Setting, set[str]]) -> list[Line]:
    """Runs of one label, method and reducer that differ in options, each with domains of its own, are one line. domains:
    which each setting was asked for."""
    groups: dict[Setting, list[Line]] = {}
    for line in lines:
        groups.setdefault(_called({**next(iter(line.rows.values())), "label": line.setting.label}), []).append(line)
    together: list[Line] = []
    for own in groups.values():
        apart = sum(len(domains[line.setting]) for line in own) == len(set().union(*(domains[x.setting] for x in own)))
        together += [_merged(own)] if len(own) > 1 and apart else own
    return together


def _merged(lines: Sequence[Line]) -> Line:
    given = [line.setting.given for line in lines]
    shared = {key: value for key, value in given[0].items() if all(key in one and one[key] == value for one in given)}
    rows: Rows = {place: row for line in lines for place, row in line.rows.items()}
    setting = replace(lines[0].setting, options=json.dumps(shared, sort_keys=True))
    options = {domain: line.setting.given for line in lines for domain in dict.fromkeys(where for where, _ in line.rows)}
    return replace(lines[0], setting=setting, rows=rows, options_by_domain=options)


_TELLING = ("stream", "batch", "limit of images", "label shift", "weights", "classes", "version of navia", "data")


def _titled_apart(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Tables of the same title also tell what differs between them."""
    titled = []
    for table in tables:
        alike = [other.protocol for other in tables if other.title == table.title]
        differing = [key for key in _TELLING if any(protocol[key] != table.protocol[key] for protocol in alike)]
        titled.append(replace(table, besides="".join(f", {key} {value_text(table.protocol[key])}" for key in differing[:2])))
    return tuple(titled)


def _told_apart(lines: Sequence[Line]) -> list[Line]:
    """One label may stand for several settings: then each line tells its own."""
    given = [(line.name, line.setting.block) for line in lines]
    alike = [given.count(name) > 1 for name in given]
    return [replace(line, name=_longer(line)) if twice else line for line, twice in zip(lines, alike, strict=True)]


def _longer(line: Line) -> str:
    plain = replace(line.setting, label=None).name
    return plain if line.setting.label is None else f"{line.setting.label}: {plain}"


def _timed(lines: Sequence[Line]) -> list[Line]:
    """Beside each line what the same setting comes to in real time; without adaptation no image is missed."""
    clocked = {_run(line): line.rows for line in lines if line.setting.realtime}
    paired = [line if line.setting.realtime else replace(line, on_the_clock=clocked.get(_run(line), {})) for line in lines]
    if not any(line.on_the_clock for line in paired):
        return paired
    idle = Setting("none", "none", "{}", False, None)
    return [replace(line, on_the_clock=line.rows) if line.setting == idle else line for line in paired]


def _run(line: Line) -> tuple[Setting, str]:
    return replace(line.setting, realtime=False), json.dumps(line.options_by_domain, sort_keys=True)


_BLOCKS = {
    (False, False): "",
    (True, False): "Under a clock: images come at the pace of the un-adapted dense model",
    (False, True): "Adapted to the first batches, scored on the last third of the stream",
    (True, True): "Under a clock and scored on the last third of the stream",
}


def _blocks(lines: Sequence[Line]) -> tuple[Block, ...]:
    split = {kind: tuple(line for line in lines if line.setting.block == kind) for kind in _BLOCKS}
    return tuple(Block(_BLOCKS[kind], own) for kind, own in split.items() if own)


def _ordered(domains: Iterable[str]) -> list[str]:
    """Corruptions as in the paper, then the others as they came."""
    order = {name: i for i, name in enumerate(names(extra=True))}
    return sorted(domains, key=lambda domain: order.get(domain, len(order)))
