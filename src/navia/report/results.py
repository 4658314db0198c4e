"""Rows of a benchmark -> tables of what may be compared, and in words why the rest may not. Nothing is read or written here.

Two rows stand in one table if everything but the method under test was the same: model and weights, preprocessing, pictures,
stream, batch, source, and the version of navia. Within a table, lines that answer another question (under a clock, or scored
after a given number of batches) are blocks of their own: the best of a column is the best of its block.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

from navia.errors import InputError
from navia.images.corruptions import CORRUPTIONS, names
from navia.report.numbers import finite, shown_alike

Row = Mapping[str, Any]

# two-sided 95 % quantiles of Student's t for 1, 2, 3, ... degrees of freedom
_T95 = (
    12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814,
    2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302, 2.08596,
    2.07961, 2.07387, 2.06866, 2.06390, 2.05954, 2.05553, 2.05183, 2.04841, 2.04523, 2.04227,
)  # fmt: skip
_GROUPS = ("noise", "blur", "weather", "digital")
MOST_CURVES = 16  # in one plot
COLLAPSE_POINTS = 5.0  # below no adaptation by more than this
COLLAPSE_SHARE = 0.5  # of the classes that no adaptation answers with


# ---- values


@dataclass(frozen=True)
class Value:
    """A number in the unit of its column. interval: 95 %, either Student's t over the seeds or Wilson's of one row."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0
    interval: Literal["t", "wilson"] | None = None


@dataclass(frozen=True)
class Column:
    """kind: domain (one corruption or part), group and average (means over `members`), ece, gmacs, ms."""

    kind: Literal["domain", "group", "average", "ece", "gmacs", "ms"]
    name: str
    members: tuple[str, ...] = ()

    @property
    def better(self) -> Literal["high", "low"]:
        return "high" if self.is_accuracy else "low"

    @property
    def is_accuracy(self) -> bool:
        return self.kind in ("domain", "group", "average")

    @property
    def title(self) -> str:
        titles = {"ece": "ECE, %", "gmacs": "GMACs", "ms": "ms/image"}
        return titles.get(self.kind) or self.name.replace("_", " ")


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
    return Value(centre, centre - half, centre + half, len(values), "t")


# ---- lines


@dataclass(frozen=True)
class Setting:
    """What makes a line. options: as JSON with sorted keys."""

    method: str
    reduce: str
    options: str
    realtime: bool
    adapt_for: int | None
    label: str | None

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
        options = ", ".join(f"{key}={_plain(value)}" for key, value in self.given.items())
        return f"{method}{'' if self.reduce == 'none' else f' + {self.reduce}'}{f' ({options})' if options else ''}"

    @property
    def name(self) -> str:
        after = "" if self.adapt_for is None else f", {self.adapt_for} batches"
        return (self.label or self.text) + after


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Line:
    """name: unique within its table. rows: by domain and seed."""

    name: str
    setting: Setting
    rows: Mapping[tuple[str, int], Row]

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
        if column.is_accuracy:
            return self._mean_accuracy(column.members)
        if column.kind == "ece":
            return self._mean_ece(column.members)
        field_name = {"gmacs": "gmacs", "ms": "ms_per_image"}[column.kind]
        known = [value for row in self.rows.values() if (value := finite(row[field_name])) is not None]
        return Value(statistics.median(known)) if known else Value()

    def _mean_accuracy(self, members: Sequence[str]) -> Value:
        """Over domains; an interval only where every domain has the same seeds, as means over different seeds have none."""
        cells = [_accuracy(self.of(domain)) for domain in members]
        known = [cell.mean for cell in cells if cell.mean is not None]
        if len(known) < len(members) or not known:
            return Value()
        seeds = [{seed for where, seed in self.rows if where == domain} for domain in members]
        if len(seeds[0]) > 1 and all(own == seeds[0] for own in seeds):
            by_seed = [
                statistics.fmean(_percent(self.rows[domain, seed]["top1"]) for domain in members) for seed in seeds[0]
            ]
            return over_seeds(by_seed)
        return Value(statistics.fmean(known), seeds=min(map(len, seeds)))

    def _mean_ece(self, members: Sequence[str]) -> Value:
        cells = [[_percent(row["ece"]) for row in self.of(domain)] for domain in members]
        if not all(cells) or any(finite(value) is None for cell in cells for value in cell):
            return Value()
        return Value(statistics.fmean(statistics.fmean(cell) for cell in cells), seeds=min(map(len, cells)))


def _accuracy(rows: Sequence[Row]) -> Value:
    if len(rows) != 1:
        return over_seeds([_percent(row["top1"]) for row in rows])
    mean, low, high = (finite(_percent(rows[0][key])) for key in ("top1", "low", "high"))
    if mean is None or low is None or high is None:
        return Value(mean, seeds=1)
    return Value(mean, low, high, 1, "wilson")


def _percent(value: object) -> float:
    known = finite(value)
    return math.nan if known is None else 100 * known


# ---- tables


@dataclass(frozen=True)
class Block:
    """Lines that answer the same question."""

    title: str
    lines: tuple[Line, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for line in self.lines for _, seed in line.rows})


@dataclass(frozen=True)
class Missing:
    """A cell without a row."""

    table: int
    line: str
    domain: str
    seed: int


@dataclass(frozen=True)
class Table:
    """protocol: what all rows share, name -> value. repeated: cells that were run more than once with other results.
    besides: what tells this table from others of the same title."""

    number: int
    protocol: Mapping[str, Any]
    domains: tuple[str, ...]
    blocks: tuple[Block, ...]
    repeated: tuple[str, ...] = ()
    besides: str = ""

    @property
    def lines(self) -> list[Line]:
        return [line for block in self.blocks for line in block.lines]

    @property
    def rows(self) -> list[Row]:
        return [row for line in self.lines for row in line.rows.values()]

    @property
    def title(self) -> str:
        severity = self.protocol["severity"]
        model, data = short_path(self.protocol["model"]), short_path(self.protocol["data"])
        return f"{model} on {data}{f', severity {severity}' if severity else ''}{self.besides}"

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return tuple(_columns(self.domains))

    @property
    def average(self) -> Column:
        """The column that sums a line up: the average, or the only domain."""
        return next((c for c in self.columns if c.kind == "average"), self.columns[0])

    @property
    def images(self) -> dict[str, int]:
        return {domain_of(row)[0]: row["fingerprint"]["images"] for row in self.rows}

    @property
    def seeds(self) -> list[int]:
        return sorted({row["seed"] for row in self.rows})

    def missing(self) -> list[Missing]:
        """What has no row, if every line of a block was meant for every domain of the table and every seed of the block."""
        return [
            Missing(self.number, line.name, domain, seed)
            for block in self.blocks
            for line in block.lines
            for domain in self.domains
            for seed in ([] if self._one_is_enough(line) and line.of(domain) else block.seeds)
            if (domain, seed) not in line.rows
        ]

    def _one_is_enough(self, line: Line) -> bool:
        """Without adaptation the order of the same images changes nothing."""
        whole = self.protocol["limit of images"] is None and self.protocol["stream"] == "reset"
        return line.setting.method == "none" and whole


@dataclass(frozen=True)
class Results:
    """apart: in words what keeps each table from being one with an earlier one."""

    tables: tuple[Table, ...]
    apart: tuple[str, ...]
    rows: int

    def missing(self) -> list[Missing]:
        return [missing for table in self.tables for missing in table.missing()]


def tabulate(rows: Sequence[Row], where: str = "the rows") -> Results:
    """Comparable tables, in the order in which their first rows were run."""
    check(rows, where)
    kinds: list[_Kind] = []
    for row in rows:
        kind = next((kind for kind in kinds if kind.takes(row)), None)
        if kind is None:
            kinds.append(kind := _Kind(protocol_of(row)))
        kind.add(row)
    tables = _titled_apart([_table(number, kind) for number, kind in enumerate(kinds, 1)])
    apart = tuple(_apart(number, kinds) for number in range(1, len(kinds)))
    return Results(tables, apart, len(rows))


_FIELDS = (
    "key", "model", "data", "domain", "corrupted", "severity", "stream", "images", "label_shift", "source_images",
    "source_path", "method", "reduce", "options", "realtime", "adapt_for", "seed", "batch", "label", "top1", "ece", "low",
    "high", "gmacs", "ms_per_image", "guard", "fingerprint",
)  # fmt: skip
_PRINTS = ("weights", "preprocessing", "data", "pictures", "images", "classes", "reset", "source", "versions")


def check(rows: Sequence[Row], where: str) -> None:
    """Refuse what is no row of `navia bench`, and say which one and why."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise InputError(f"line {number} of {where} is no row of `navia bench`: {str(row)[:60]!r}")
        lost = [name for name in _FIELDS if name not in row]
        if not lost and isinstance(row["fingerprint"], Mapping):
            lost = [f"fingerprint.{name}" for name in _PRINTS if name not in row["fingerprint"]]
            lost += [] if lost or "navia" in row["fingerprint"]["versions"] else ["fingerprint.versions.navia"]
        elif not lost:
            lost = ["fingerprint"]
        if lost:
            raise InputError(f"line {number} of {where} is no row of `navia bench`: it has no {', '.join(lost[:3])}")


# ---- what may be compared


def domain_of(row: Row) -> tuple[str, int]:
    """Name and severity; those of a downloaded ImageNet-C are in the name of the part ("fog/5"). A stream is one domain."""
    found = re.fullmatch(r"(.+)/([1-5])", row["domain"])
    if not row["corrupted"] and found and found[1] in names(extra=True):
        return found[1], int(found[2])
    return row["domain"] or row["stream"], row["severity"]


def protocol_of(row: Row) -> dict[str, Any]:
    """What rows of one table share."""
    prints = row["fingerprint"]
    streamed = {"domains of the stream": tuple(row["domains"])} if not row["domain"] and row.get("domains") else {}
    return {
        "model": row["model"],
        "weights": prints["weights"],
        "preprocessing": prints["preprocessing"],
        "data": row["data"],
        "kind of data": prints["data"],
        "severity": domain_of(row)[1],
        "stream": row["stream"],
        **streamed,
        "reset policy": prints["reset"],
        "limit of images": row["images"],
        "label shift": row["label_shift"],
        "batch": row["batch"],
        "number of source images": row["source_images"],
        "source": row["source_path"] or "clean images of the same data that are not in the stream",
        "classes": prints["classes"],
        "version of navia": prints["versions"]["navia"],
    }


@dataclass
class _Kind:
    """Rows of one protocol whose pictures agree: equal ones for equal domains and seeds."""

    protocol: Mapping[str, Any]
    pictures: dict[tuple[str, int], str] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def takes(self, row: Row) -> bool:
        return protocol_of(row) == self.protocol and not self.clash(row)

    def clash(self, row: Row) -> str:
        """In words what does not agree although the protocol does."""
        prints, place = row["fingerprint"], _place(row)
        images = self.images.get(place, prints["images"])
        if images != prints["images"]:
            return f"another number of images ({images:,} and {prints['images']:,})"
        if self.pictures.get((place, row["seed"]), prints["pictures"]) != prints["pictures"]:
            return f"other pictures or another order of them (seed {row['seed']}{f', {place}' if place else ''})"
        return ""

    def add(self, row: Row) -> None:
        self.images[_place(row)] = row["fingerprint"]["images"]
        self.pictures[_place(row), row["seed"]] = row["fingerprint"]["pictures"]
        self.rows.append(row)


def _place(row: Row) -> str:
    """Corruptions that are made on the way all come from the same pictures; parts that were found have their own."""
    return "" if row["corrupted"] else row["domain"]


def _apart(number: int, kinds: Sequence[_Kind]) -> str:
    """What separates a table from the earlier one that is most like it."""
    kind = kinds[number]
    reasons = [_reasons(kind, earlier) for earlier in kinds[:number]]
    nearest = min(range(number), key=lambda i: len(reasons[i]))
    return f"Table {number + 1} is not comparable with table {nearest + 1}: {'; '.join(reasons[nearest])}."


def _reasons(kind: _Kind, other: _Kind) -> list[str]:
    keys = dict.fromkeys([*other.protocol, *kind.protocol])
    pairs = [(key, other.protocol.get(key), kind.protocol.get(key)) for key in keys]
    found = [f"other {key} ({_both(key, theirs, ours)})" for key, theirs, ours in pairs if theirs != ours]
    return found or [next(filter(None, map(other.clash, kind.rows)), "other pictures")]


def _both(key: str, one: object, other: object) -> str:
    """Paths by their last parts, unless these are the same."""
    whole = [_value(one), _value(other)]
    short = [short_path(text) for text in whole] if key in ("model", "data", "source") else whole
    return " and ".join(whole if short[0] == short[1] else short)


def _value(value: object) -> str:
    return "not given" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)


def short_path(path: str) -> str:
    """The last part of a path, after its "hf:" if it has one: where a folder lies on one computer says nothing elsewhere."""
    library, colon, place = path.rpartition(":")
    local = not colon or place.startswith((".", "/", "~"))
    return f"{library}{colon}{PurePath(place).name or place}" if local else path


# ---- building


def _table(number: int, kind: _Kind) -> Table:
    by_setting: dict[Setting, dict[tuple[str, int], Row]] = {}
    repeated: list[str] = []
    for row in kind.rows:
        setting, place = setting_of(row), (domain_of(row)[0], row["seed"])
        earlier = by_setting.setdefault(setting, {}).get(place)
        if earlier is not None and earlier["top1"] != row["top1"]:
            repeated.append(f"{setting.name} on {_readable(place[0])}, seed {place[1]}")
        by_setting[setting][place] = row
    lines = [Line(setting.name, setting, rows) for setting, rows in by_setting.items()]
    found = dict.fromkeys(domain for line in lines for domain, _ in line.rows)
    return Table(number, kind.protocol, tuple(_ordered(found)), _blocks(_told_apart(lines)), tuple(repeated))


_TELLING = ("stream", "batch", "limit of images", "label shift", "weights", "classes", "version of navia", "data")


def _titled_apart(tables: Sequence[Table]) -> tuple[Table, ...]:
    """Tables of the same title also tell what differs between them."""
    titled = []
    for table in tables:
        alike = [other.protocol for other in tables if other.title == table.title]
        differing = [key for key in _TELLING if any(protocol[key] != table.protocol[key] for protocol in alike)]
        titled.append(replace(table, besides="".join(f", {key} {_value(table.protocol[key])}" for key in differing[:2])))
    return tuple(titled)


def setting_of(row: Row) -> Setting:
    options = json.dumps(row["options"], sort_keys=True)
    return Setting(row["method"], row["reduce"], options, bool(row["realtime"]), row["adapt_for"], row["label"])


def _told_apart(lines: Sequence[Line]) -> list[Line]:
    """One label may stand for several settings: then each line tells its own."""
    given = [(line.name, line.setting.block) for line in lines]
    alike = [given.count(name) > 1 for name in given]
    return [replace(line, name=_longer(line.setting)) if twice else line for line, twice in zip(lines, alike, strict=True)]


def _longer(setting: Setting) -> str:
    plain = replace(setting, label=None).name
    return plain if setting.label is None else f"{setting.label}: {plain}"


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


def _columns(domains: Sequence[str]) -> list[Column]:
    """Averages stand where the table has all of their members; that over all is of the 15 where these are there."""
    averaged = tuple(names()) if set(names()) <= set(domains) else tuple(domains)
    groups = [Column("group", group, CORRUPTIONS[group]) for group in _GROUPS]
    held = [column for column in groups if set(column.members) < set(averaged)]
    whole = "average" if len(averaged) == len(domains) else f"average of {len(averaged)}"
    return [
        *(Column("domain", domain, (domain,)) for domain in domains),
        *held,
        *([Column("average", whole, averaged)] if len(domains) > 1 else []),
        Column("ece", "ece", averaged),
        Column("gmacs", "gmacs"),
        Column("ms", "ms"),
    ]


def _readable(name: str) -> str:
    return name.replace("_", " ")


# ---- reading a block


def texts(block: Block, column: Column) -> list[str]:
    """The column's values as they are written, line by line."""
    values = [line.value(column).mean for line in block.lines]
    if column.is_accuracy or column.kind == "ece":
        return ["–" if value is None else f"{value:.1f}".replace("-", "−") for value in values]
    known = {i: value for i, value in enumerate(values) if value is not None}
    alike = dict(zip(known, shown_alike(list(known.values())), strict=True))
    return [alike.get(i, "–") for i in range(len(values))]


def best(block: Block, column: Column) -> list[bool]:
    """Which lines read the same as the best one; none where all do, because a difference that is not shown is none."""
    values = [line.value(column).mean for line in block.lines]
    known = [(value, i) for i, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return [False] * len(values)
    written = texts(block, column)
    top = (max if column.better == "high" else min)(known)[1]
    marks = [text == written[top] for text in written]
    return marks if any(not marks[i] for _, i in known) else [False] * len(values)


def interval_text(value: Value) -> str:
    """'± 0.4' over seeds, '58.1–64.3' of one row."""
    if value.mean is None or value.low is None or value.high is None:
        return ""
    return f"± {value.high - value.mean:.1f}" if value.interval == "t" else f"{value.low:.1f}–{value.high:.1f}"


def how_to_read(table: Table) -> list[str]:
    """What the numbers of a table are, in sentences."""
    kinds = {line.value(column).interval for line in table.lines for column in table.columns if column.is_accuracy}
    said = ["Top-1 accuracy in percent; every answer was given before the model had learned from its image."]
    if "t" in kinds:
        said.append(
            f"± is the 95 % interval of the mean over seeds (orders of the stream), by Student's t; {_seed_counts(table)}."
        )
    if "wilson" in kinds:
        said.append("A range is the 95 % Wilson interval of a single run over its images.")
        if any(column.kind == "average" for column in table.columns):
            said.append("Averages of single runs have none: domains that share their images are not independent.")
    said.append("Bold is the best of a column. ECE is over 15 bins. GMACs are of the forward passes for one image.")
    if any(block.lines[0].setting.adapt_for is not None for block in table.blocks):
        said.append("Times of lines that are scored on the last third are those of answering alone.")
    return [*said, *_mixed_clocks(table), *_repeats(table)]


def _seed_counts(table: Table) -> str:
    counts = sorted({len(line.of(domain)) for line in table.lines for domain in table.domains} - {0, 1})
    return f"{' or '.join(map(str, counts))} seeds"


def _mixed_clocks(table: Table) -> list[str]:
    """Times depend on what accuracies hardly do."""
    prints = [row["fingerprint"] for row in table.rows]
    threads = {str(p.get("threads")) for p in prints}
    versions = {str(p["versions"].get("torch")) for p in prints}
    differing = [
        name for name, found in (("numbers of threads", threads), ("versions of torch", versions)) if len(found) > 1
    ]
    return [f"Rows ran with different {' and '.join(differing)}: do not compare their times."] if differing else []


def _repeats(table: Table) -> list[str]:
    if not table.repeated:
        return []
    return [f"Run more than once with another result, the last one is shown: {', '.join(table.repeated)}."]


# ---- collapse


@dataclass(frozen=True)
class Collapse:
    """A row that went wrong, and why it is thought so. plain: the row without adaptation, if there is one."""

    line: Line
    domain: str
    row: Row
    plain: Row | None
    reasons: tuple[str, ...]


def collapses(table: Table, traces: Mapping[str, Mapping[str, Any]]) -> list[Collapse]:
    """Rows far below no adaptation, caught by the guard, or answering with few classes; the worst first."""
    found = []
    for line in table.lines:
        for (domain, seed), row in line.rows.items():
            plain = _plain_row(table, line, domain, seed)
            reasons = _signs(row, plain, traces) if line.setting.method != "none" else []
            if reasons:
                found.append(Collapse(line, domain, row, plain, tuple(reasons)))
    return sorted(found, key=lambda c: finite(c.row["top1"]) or 0.0)


def _plain_row(table: Table, line: Line, domain: str, seed: int) -> Row | None:
    """No adaptation on the same images: with all tokens, of the same seed where there is one."""
    others = [
        other
        for other in table.lines
        if other.setting.method == "none" and other.setting.adapt_for == line.setting.adapt_for and other.of(domain)
    ]
    others.sort(key=lambda other: other.setting.reduce != "none")
    return others[0].rows.get((domain, seed), others[0].of(domain)[0]) if others else None


def _signs(row: Row, plain: Row | None, traces: Mapping[str, Mapping[str, Any]]) -> list[str]:
    signs = [f"the guard stepped in {_times(len(row['guard']))}, first in {row['guard'][0]}"] if row["guard"] else []
    if plain is None:
        return signs
    lost = _percent(plain["top1"]) - _percent(row["top1"])
    if lost > COLLAPSE_POINTS:
        signs.append(f"{lost:.1f} points below no adaptation")
    ours, theirs = (effective_classes(traces.get(r["key"], {}).get("predicted", ())) for r in (row, plain))
    if ours is not None and theirs is not None and ours < COLLAPSE_SHARE * theirs:
        signs.append(f"answers with {ours:.1f} classes in effect, no adaptation with {theirs:.1f}")
    return signs


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def effective_classes(predicted: Sequence[float]) -> float | None:
    """exp of the entropy of how often each class was answered: 10 for ten equally frequent classes, 1 for a single one."""
    total = sum(predicted)
    if total <= 0:
        return None
    return math.exp(-sum(count / total * math.log(count / total) for count in predicted if count > 0))


# ---- sweeps


@dataclass(frozen=True)
class Sweep:
    """Lines that differ in one number only, by that number."""

    name: str
    lines: tuple[tuple[float, Line], ...]


def rate_sweeps(table: Table, rate: str) -> list[Sweep]:
    """Lines that differ only in the option `rate`, at least two values of it."""
    found: dict[tuple[str, str, str, tuple[bool, bool]], dict[float, Line]] = {}
    for line in table.lines:
        options = line.setting.given
        value = finite(options.pop(rate, None))
        if value is not None:
            rest = json.dumps(options, sort_keys=True)
            found.setdefault((line.setting.method, line.setting.reduce, rest, line.setting.block), {})[value] = line
    return [
        Sweep(Setting(method, reduce, rest, False, None, None).text, tuple(sorted(lines.items())))
        for (method, reduce, rest, _), lines in found.items()
        if len(lines) > 1
    ]


def relative(values: Sequence[float | None]) -> list[float]:
    """(A - Amin) / (Amax - Amin), as the paper draws learning rates; NaN where that is not defined."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [math.nan if value is None or high == low else (value - low) / (high - low) for value in values]


def reduction_sweeps(table: Table) -> list[Sweep]:
    """Per method the lines over one family of reducers, by cost; without reduction is a point of each family."""
    plain = [line for block in table.blocks if not block.title for line in block.lines]
    by_run: dict[tuple[str, str], list[Line]] = {}
    for line in plain:
        by_run.setdefault((line.setting.method, line.setting.options), []).append(line)
    sweeps = []
    for (method, options), lines in by_run.items():
        families = dict.fromkeys(_family(line) for line in lines if line.setting.reduce != "none")
        for family in families:
            own = [line for line in lines if _family(line) in (family, "none")]
            cost = [(line.value(Column("gmacs", "gmacs")).mean, line) for line in own]
            points = sorted(((x, line) for x, line in cost if x is not None), key=lambda pair: pair[0])
            name = Setting(method, family if len(families) > 1 else "none", options, False, None, None).text
            sweeps.append(Sweep(name, tuple(points)))
    curves = [sweep for sweep in sweeps if len(sweep.lines) > 1]
    return curves if any(len(sweep.lines) > 2 for sweep in curves) else []


def _family(line: Line) -> str:
    return line.setting.reduce.partition(":")[0]


def convergence(table: Table) -> list[Sweep]:
    """Per method and reducer the lines over the number of batches that were adapted to."""
    found: dict[Setting, dict[float, Line]] = {}
    for line in table.lines:
        if line.setting.adapt_for is not None:
            found.setdefault(replace(line.setting, adapt_for=None), {})[float(line.setting.adapt_for)] = line
    return [Sweep(setting.name, tuple(sorted(lines.items()))) for setting, lines in found.items() if len(lines) > 1]


# ---- along the stream


def legible(table: Table, block: Block) -> list[Line]:
    """The lines that one plot can hold: all, or of too many the most accurate of each method."""
    if len(block.lines) <= MOST_CURVES:
        return list(block.lines)
    by_method: dict[str, list[Line]] = {}
    for line in block.lines:
        by_method.setdefault(line.setting.method, []).append(line)
    return [max(own, key=lambda line: line.value(table.average).mean or 0.0) for own in by_method.values()]


def running(line: Line, domain: str, traces: Mapping[str, Mapping[str, Any]], places: int = 48) -> dict[int, float]:
    """Accuracy in percent up to so many images, at most at `places` of them; mean over the seeds that have a trace."""
    curves = [_running(traces[row["key"]]) for row in line.of(domain) if row["key"] in traces]
    if not curves:
        return {}
    seen = [at for at in curves[0] if all(at in curve for curve in curves)]
    step = max(1, math.ceil(len(seen) / places))
    kept = [at for i, at in enumerate(seen) if i == len(seen) - 1 or (i + 1) % step == 0]
    return {at: statistics.fmean(curve[at] for curve in curves) for at in kept}


def _running(trace: Mapping[str, Any]) -> dict[int, float]:
    right, seen, curve = 0, 0, {}
    for correct, images in zip(trace["right"], trace["images"], strict=True):
        right, seen = right + correct, seen + images
        curve[seen] = 100 * right / seen
    return curve
