"""Rows -> tables, each of one protocol, each line of one setting."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from navia.bench.rows import check_rows
from navia.images.corruptions import names
from navia.report.results.lines import Line, Setting, setting_of
from navia.report.results.protocol import Kind, domain_of, protocol_of, value_text, why_apart
from navia.report.results.tables import Block, Results, Table
from navia.report.results.values import Row
from navia.report.words import readable


def tabulate(rows: Sequence[Row], where: str = "the rows") -> Results:
    """Comparable tables, in the order in which their first rows were run."""
    check_rows(rows, where)
    kinds: list[Kind] = []
    for row in rows:
        kind = next((kind for kind in kinds if kind.takes(row)), None)
        if kind is None:
            kinds.append(kind := Kind(protocol_of(row)))
        kind.add(row)
    tables = _titled_apart([_table(number, kind) for number, kind in enumerate(kinds, 1)])
    apart = tuple(why_apart(number, kinds) for number in range(1, len(kinds)))
    return Results(tables, apart, len(rows))


def _table(number: int, kind: Kind) -> Table:
    by_setting: dict[Setting, dict[tuple[str, int], Row]] = {}
    repeated: list[str] = []
    for row in kind.rows:
        setting, place = setting_of(row), (domain_of(row)[0], row["seed"])
        earlier = by_setting.setdefault(setting, {}).get(place)
        if earlier is not None and earlier["top1"] != row["top1"]:
            repeated.append(f"{setting.name} on {readable(place[0])}, seed {place[1]}")
        if earlier is None or row.get("tsne") or not earlier.get("tsne"):  # the same run, but only one has a picture
            by_setting[setting][place] = row
    lines = [Line(setting.name, setting, rows) for setting, rows in by_setting.items()]
    found = dict.fromkeys(domain for line in lines for domain, _ in line.rows)
    return Table(number, kind.protocol, tuple(_ordered(found)), _blocks(_timed(_told_apart(lines))), tuple(repeated))


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
    return [replace(line, name=_longer(line.setting)) if twice else line for line, twice in zip(lines, alike, strict=True)]


def _longer(setting: Setting) -> str:
    plain = replace(setting, label=None).name
    return plain if setting.label is None else f"{setting.label}: {plain}"


def _timed(lines: Sequence[Line]) -> list[Line]:
    """Beside each line what the same setting comes to in real time; without adaptation no image is missed."""
    clocked = {_run(line.setting): line.rows for line in lines if line.setting.realtime}
    paired = [
        line if line.setting.realtime else replace(line, on_the_clock=clocked.get(_run(line.setting), {})) for line in lines
    ]
    if not any(line.on_the_clock for line in paired):
        return paired
    idle = Setting("none", "none", "{}", False, None, None)
    return [replace(line, on_the_clock=line.rows) if _run(line.setting) == idle else line for line in paired]


def _run(setting: Setting) -> Setting:
    return replace(setting, realtime=False, label=None)


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
