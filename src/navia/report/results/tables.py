"""Tables of results: blocks of lines below the same columns, and the cells that have no row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from navia.data.corruptions import CORRUPTIONS, names
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
    """A cell without a row. table: its number, None where no cell of the table has been run. spec: which asks for it; None:
    it is missed because other lines have it."""

    table: int | None
    spec: str | None
    line: str
    domain: str
    seed: int


@dataclass(frozen=True)
class Table:
    """protocol: what all rows share, name -> value. repeated: cells that were run more than once with other results.
    besides: what tells this table from others of the same title. spec: name of the one that asked for the cells, None for
    rows that no kept spec asks for. lost: its cells (line, domain, seed) that have no row."""

    number: int
    protocol: Mapping[str, Any]
    domains: tuple[str, ...]
    blocks: tuple[Block, ...]
    repeated: tuple[str, ...] = ()
    besides: str = ""
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
        severity = self.protocol["severity"]
        model, data = short_path(self.protocol["model"]), short_path(self.protocol["data"])
        named = "" if self.spec is None else f"{self.spec}: "
        return f"{named}{model} on {data}{f', severity {severity}' if severity else ''}{self.besides}"

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        whole = all(domain in self.domains for _, domain, _ in self.lost)
        return tuple(_columns(self.domains, any(block.has_clock for block in self.blocks), whole))

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
        """What the spec asks for and has no row. Without a spec: what has none, if every line of a block was meant for every
        domain of the table and every seed of the block."""
        if self.spec is not None:
            return [Missing(self.number, self.spec, line, domain, seed) for line, domain, seed in self.lost]
        return [
            Missing(self.number, None, line.name, domain, seed)
            for block in self.blocks
            for line in block.lines
            for domain in self.domains
            for seed in ([] if line.any_order and line.of(domain) else block.seeds)
            if (domain, seed) not in line.rows
        ]


@dataclass(frozen=True)
class Results:
    """apart: in words why tables must not be compared with the earlier ones. unbegun: cells that specs ask for and whose
    tables have no row yet."""

    tables: tuple[Table, ...]
    apart: tuple[str, ...]
    rows: int
    unbegun: tuple[Missing, ...] = ()

    def missing(self) -> list[Missing]:
        return [*(missing for table in self.tables for missing in table.missing()), *self.unbegun]


def _columns(domains: Sequence[str], with_clock: bool, all_begun: bool) -> list[Column]:
    """Averages stand where the table has all of their members; that over all is of the 15 where these are there. all_begun:
    no domain that was asked for is without any row."""
    averaged = tuple(names()) if set(names()) <= set(domains) else tuple(domains)
    groups = [Column("group", group, CORRUPTIONS[group]) for group in _GROUPS]
    held = [column for column in groups if set(column.members) < set(averaged)]
    whole = "average" if len(averaged) == len(domains) and all_begun else f"average of {len(averaged)}"
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
