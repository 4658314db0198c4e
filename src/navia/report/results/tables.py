"""Tables of results: blocks of lines below the same columns, and the cells that have no row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from navia.images.corruptions import CORRUPTIONS, names
from navia.report.results.lines import Line
from navia.report.results.protocol import domain_of, short_path
from navia.report.results.values import GMACS, MS, Column, Row

_MOST_DOMAINS = 6
_GROUPS = ("noise", "blur", "weather", "digital")


@dataclass(frozen=True)
class Block:
    """Lines that answer the same question."""

    title: str
    lines: tuple[Line, ...]

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for line in self.lines for _, seed in line.rows})

    @property
    def has_clock(self) -> bool:
        return any(line.on_the_clock for line in self.lines)

    def of(self, columns: Sequence[Column]) -> list[Column]:
        """Those of a table's columns that the block has something to say in."""
        return [column for column in columns if column.kind != "clock" or self.has_clock]


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
        return tuple(_columns(self.domains, any(block.has_clock for block in self.blocks)))

    @property
    def single(self) -> tuple[Column, ...]:
        """The columns of one domain each."""
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
        """Without adaptation the order of the same images changes nothing, unless it decides which are scored."""
        whole = self.protocol["limit of images"] is None and self.protocol["stream"] == "reset"
        return line.setting.method == "none" and line.setting.adapt_for is None and whole


@dataclass(frozen=True)
class Results:
    """apart: in words what keeps each table from being one with an earlier one."""

    tables: tuple[Table, ...]
    apart: tuple[str, ...]
    rows: int

    def missing(self) -> list[Missing]:
        return [missing for table in self.tables for missing in table.missing()]


def _columns(domains: Sequence[str], with_clock: bool) -> list[Column]:
    """Averages stand where the table has all of their members; that over all is of the 15 where these are there."""
    averaged = tuple(names()) if set(names()) <= set(domains) else tuple(domains)
    groups = [Column("group", group, CORRUPTIONS[group]) for group in _GROUPS]
    held = [column for column in groups if set(column.members) < set(averaged)]
    whole = "average" if len(averaged) == len(domains) else f"average of {len(averaged)}"
    return [
        *(Column("domain", domain, (domain,)) for domain in domains),
        *held,
        *([Column("average", whole, averaged)] if len(domains) > 1 else []),
        *([Column("clock", "in real time", averaged)] if with_clock else []),
        Column("ece", "ece", averaged),
        GMACS,
        MS,
        Column("memory", "memory"),
    ]
