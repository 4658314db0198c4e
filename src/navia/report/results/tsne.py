"""Pictures by t-SNE that rows have in their traces: what is drawn, line by line and block by block."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from navia.evaluation.explain import NEIGHBOURS
from navia.report.numbers import finite
from navia.report.results.lines import Line
from navia.report.results.tables import Table
from navia.report.results.values import Traces


@dataclass(frozen=True)
class Panel:
    """One line seen by one block. points: place and class of each picture, in the order of the stream; none: they could not
    be laid out. neighbours: share of the pictures whose nearest others in the space of the features have their class."""

    block: int
    points: Sequence[tuple[float, float, str]]
    neighbours: float | None

    @property
    def title(self) -> str:
        known = finite(self.neighbours)
        return f"block {self.block}" + ("" if known is None else f": {NEIGHBOURS}-NN accuracy {100 * known:.0f} %")


@dataclass(frozen=True)
class Picture:
    """All panels of one domain and seed, by line and block. count: of the pictures in each."""

    domain: str
    seed: int
    count: int
    classes: tuple[str, ...]
    blocks: tuple[int, ...]
    panels: Mapping[str, Mapping[int, Panel]]


def tsne_pictures(table: Table, traces: Traces) -> list[Picture]:
    """One per domain that has any; of several seeds the first of those that most lines have."""
    found = (_picture(table, domain, traces) for domain in table.domains)
    return [picture for picture in found if picture is not None]


def _picture(table: Table, domain: str, traces: Traces) -> Picture | None:
    by_line = {line.name: _by_seed(line, domain, traces) for line in table.lines}
    counts = Counter(seed for seeds in by_line.values() for seed in seeds)
    if not counts:
        return None
    seed = min(counts, key=lambda seed: (-counts[seed], seed))
    told = {name: seeds[seed] for name, seeds in by_line.items() if seed in seeds}
    panels = {name: {panel.block: panel for panel in _panels(tsne)} for name, tsne in told.items()}
    classes = dict.fromkeys(name for tsne in told.values() for name in tsne["names"])
    blocks = sorted({block for own in panels.values() for block in own})
    count = max(len(tsne["labels"]) for tsne in told.values())
    return Picture(domain, seed, count, tuple(classes), tuple(blocks), panels)


def _by_seed(line: Line, domain: str, traces: Traces) -> dict[int, Mapping[str, Any]]:
    rows = {seed: row for (where, seed), row in line.rows.items() if where == domain}
    return {seed: tsne for seed, row in rows.items() if (tsne := traces.get(row["key"], {}).get("tsne"))}


def _panels(tsne: Mapping[str, Any]) -> list[Panel]:
    names = [tsne["names"][label] for label in tsne["labels"]]
    return [
        Panel(
            panel["block"],
            [(x, y, name) for (x, y), name in zip(panel["points"], names, strict=True)] if panel["points"] else [],
            panel["neighbours"],
        )
        for panel in tsne["panels"]
    ]
