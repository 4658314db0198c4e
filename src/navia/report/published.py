"""What the paper prints, beside our rows."""

import statistics
from collections.abc import Sequence

from navia.bench.presets import Published, label_of, published
from navia.data.corruptions import names
from navia.report.lines import Column, Line
from navia.report.tables import Table

_PAPER_CLASSES = {"imagenet-c": 1000, "imagenet-r": 200, "imagenet-v2": 1000, "imagenet-sketch": 1000}


def paper(table: Table, line: Line, column: Column) -> float | None:
    """What the paper prints for this cell, in percent: only where the data and the protocol are the paper's. Means over
    groups of corruptions and over several data sets are computed from printed values, where all of them are known."""
    entry = paper_values(table, line)
    if entry is None or not column.is_accuracy or column.kind == "clock":
        return None
    printed = entry.values.get(paper_column(table, column) or "")
    if printed is not None or column.kind not in ("group", "average"):
        return printed
    parts = [Column("domain", member, (member,)) for member in column.members]
    if column.kind == "average" and len(table.datasets) > 1:
        parts = [dataset.column for dataset in table.datasets if dataset.domains]
    elif column.kind == "average":
        return None
    known = [entry.values.get(paper_column(table, part) or "") for part in parts]
    return statistics.fmean(value for value in known if value is not None) if None not in known else None


def paper_gflops(table: Table, line: Line) -> float | None:
    """The paper's GFLOPs of a step, which are multiply-accumulates in 2**30."""
    entry = paper_values(table, line)
    return None if entry is None else entry.values.get("gflops")


def paper_values(table: Table, line: Line) -> Published | None:
    setting, protocol = line.setting, table.protocol
    if setting.block != (False, False) or protocol["stream"] != "reset" or protocol["label shift"] is not None:
        return None
    same_run = (
        None if line.options_by_domain and not setting.choose else label_of(setting.method, setting.reduce, setting.given)
    )
    return published(setting.label) or published(same_run)


def paper_column(table: Table, column: Column) -> str | None:
    """The paper's name of a column: a corruption at severity 5, their average, or one of the other three data sets."""
    if column.kind == "dataset" and not column.members:  # no rows yet
        return column.name if column.name in _PAPER_CLASSES else None
    if column.kind not in ("domain", "dataset", "average") or not column.members:
        return None
    dataset = table.dataset_of(column.members[0])
    if any(member not in dataset.domains for member in column.members):
        return None
    kind, classes = str(dataset.protocol["kind of data"]).partition(",")[0], dataset.protocol["classes"]
    own = [dataset.domains[member] for member in column.members]
    if dataset.protocol["severity"] == 5 and classes == 1000:
        if column.kind == "domain":
            return own[0] if own[0] in names() else None
        return "imagenet-c" if sorted(own) == sorted(names()) else None
    if len(own) > 1 or dataset.protocol["severity"]:
        return None
    if dataset.name in _PAPER_CLASSES and dataset.name != "imagenet-c":
        return dataset.name if classes == _PAPER_CLASSES[dataset.name] else None
    sketched = kind == "imagenet" and classes == 1000 and "sketch" in own[0].casefold()
    return "imagenet-sketch" if sketched else kind if kind in ("imagenet-r", "imagenet-v2") else None


def paper_columns(table: Table) -> list[Column]:
    """The columns with published values for some line; data sets first."""
    found = dict.fromkeys([*(c for c in table.main if c.is_accuracy), *table.parts])
    return [c for c in found if any(paper(table, line, c) is not None for line in table.lines)]


def has_paper(table: Table, columns: Sequence[Column] | None = None) -> bool:
    """Whether the paper prints anything for the table, or for some of its columns."""
    return any(
        paper(table, line, column) is not None for line in table.lines for column in columns or {*table.main, *table.columns}
    )
