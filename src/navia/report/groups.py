"""Which rows may stand in one table: everything but the method under test was the same.

Rows of one protocol on the same images are a group. Groups of one spec that differ only in what belongs to the data set are
columns of one table: a study.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from navia.data.corruptions import names
from navia.report.lines import Row, Setting

# what belongs to a data set: data sets of one spec may differ in it
OF_THE_DATA = (
    "data", "kind of data", "severity", "domains of the stream", "preprocessing", "limit of images", "source",
    "preprocessing of the source", "classes",
)  # fmt: skip


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
    other_source = (prints.get("source") or {}).get("preprocessing", prints["preprocessing"]) != prints["preprocessing"]
    source_differs = {"preprocessing of the source": prints["source"]["preprocessing"]} if other_source else {}
    streamed = {"domains of the stream": tuple(row["domains"])} if not row["domain"] and row.get("domains") else {}
    return {
        "model": row["model"], "weights": prints["weights"], "preprocessing": prints["preprocessing"],
        "data": row["data"], "kind of data": prints["data"], "severity": domain_of(row)[1],
        "stream": row["stream"], **streamed, "reset policy": prints["reset"],
        "limit of images": row["images"], "label shift": row["label_shift"], "batch": row["batch"],
        "number of source images": row["source_images"],
        "source": row["source_path"] or "clean images of the same data that are not in the stream",
        **source_differs, "classes": prints["classes"], "version of navia": prints["versions"]["navia"],
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
        cell["source_images"], cell.get("source_digest") or cell["source_path"], cell.get("dataset"),
        json.dumps([cell.get("preprocessing"), cell.get("source_preprocessing")]),
    )  # fmt: skip


def _known_of_all(cell: Row) -> tuple[object, ...]:
    """The part of it that all data sets of a table share."""
    return (
        cell["model"], cell.get("weights_digest") or cell.get("checkpoint"), cell.get("crop_only"), cell["stream"],
        cell["label_shift"], cell["batch"], cell["source_images"],
    )  # fmt: skip


@dataclass
class Group:
    """Rows of one protocol whose images agree. cells: what was asked for, as rows if they are there. dataset: its name in
    the spec. A data set that was asked for and has no row has no protocol."""

    spec: str | None
    dataset: str | None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)
    cells: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    image_digests: dict[tuple[str, int], str] = field(default_factory=dict)
    image_counts: dict[str, int] = field(default_factory=dict)

    @property
    def shared(self) -> dict[str, Any]:
        """What data sets of one table agree in."""
        return {key: value for key, value in self.identity.items() if key not in OF_THE_DATA}

    def accepts(self, row: Row) -> bool:
        named = self.spec is None or row.get("dataset") == self.dataset
        return named and _identity_of(row) == self.identity and not self.conflict(row)

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


Study = Sequence[Group]  # the data sets of one table


def why_apart(number: int, studies: Sequence[Study]) -> str:
    """What separates a table from the most similar earlier one; nothing, where it may be compared with one."""
    found = [_reasons(studies[number], earlier) for earlier in studies[:number]]
    if not all(found):
        return ""
    nearest = min(range(number), key=lambda i: len(found[i]))
    return f"Table {number + 1} is not comparable with table {nearest + 1}: {'; '.join(found[nearest])}."


def _reasons(study: Study, other: Study) -> list[str]:
    """Of the data sets that differ least."""
    pairs = [(one, two) for one in study for two in other if one.rows and two.rows]
    return min((_reasons_of(one, two) for one, two in pairs), key=len)


def _reasons_of(group: Group, other: Group) -> list[str]:
    found = []
    for key in dict.fromkeys([*other.identity, *group.identity]):
        if other.identity.get(key) != group.identity.get(key):
            whole = [value_text(one.protocol.get(key)) for one in (other, group)]
            short = list(map(short_path, whole)) if key in ("model", "data", "source") else whole
            found.append(f"other {key} ({' and '.join(whole if short[0] == short[1] else short)})")
    return found or [*filter(None, map(other.conflict, group.rows))][:1]


def value_text(value: object) -> str:
    return "not given" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)


def short_path(path: str) -> str:
    """The last part of a path, after its "hf:" if it has one: the folders above it mean nothing on another computer."""
    library, colon, place = path.rpartition(":")
    local = not colon or place.startswith((".", "/", "~"))
    return f"{library}{colon}{PurePath(place).name or place}" if local else path


# ---- which rows make a table


def groups_of_spec(spec: Mapping[str, Any], by_key: Mapping[str, Row]) -> tuple[list[Group], list[Row]]:
    """Of one spec, and its cells whose table has no row yet."""
    name, lost = str(spec["name"]), []
    found: dict[tuple[str, str | None], Row] = {}
    for cell in (cell for cell in spec["cells"] if cell["key"] in by_key):
        row, dataset = by_key[cell["key"]], cell.get("dataset")
        named = {"dataset": dataset} if dataset != row.get("dataset") else {}
        found[cell["key"], dataset] = {**row, "label": cell["label"], **named}  # names are the spec's
    groups = by_protocol(name, found.values())
    begun = list(groups)
    for cell in (cell for cell in spec["cells"] if cell["key"] not in by_key):
        group = next((group for group in groups if _known_protocol(group.cells[0]) == _known_protocol(cell)), None)
        if group is None and cell.get("dataset") and any(_beside(group, cell) for group in begun):
            groups.append(group := Group(name, cell["dataset"], identity=dict(_shared_with(begun, cell))))
        if group is None:
            lost.append(cell)
        else:
            group.cells.append(cell)
    return groups, lost


def _beside(group: Group, cell: Row) -> bool:
    """Whether a cell without a row belongs to the table of the group, as another data set."""
    return group.dataset not in (None, cell["dataset"]) and _known_of_all(group.rows[0]) == _known_of_all(cell)


def _shared_with(groups: Sequence[Group], cell: Row) -> Mapping[str, Any]:
    return next(group.shared for group in groups if _beside(group, cell))


def by_protocol(spec: str | None, rows: Iterable[Row]) -> list[Group]:
    groups: list[Group] = []
    for row in rows:
        group = next((group for group in groups if group.accepts(row)), None)
        if group is None:
            groups.append(group := Group(spec, row.get("dataset"), _protocol_of(row), _identity_of(row)))
        group.cells.append(row)
        group.add(row)
    return groups


def join_studies(groups: Sequence[Group]) -> list[Group]:
    """A study that was run in pieces, with other domains or seeds each time, is one table."""
    joined: list[Group] = []
    for group in groups:
        earlier = next((one for one in joined if one.rows and group.rows and _fit(one, group)), None)
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


def studies_of(groups: Sequence[Group]) -> list[list[Group]]:
    """Named data sets of one spec with everything else in common are one table; those without rows come last."""
    studies: list[list[Group]] = []
    for group in sorted(groups, key=lambda group: not group.rows):
        fitting = [study for study in studies if _is_beside(group, study)]
        earlier = [one for study in fitting for one in study if one.dataset == group.dataset]
        if not group.rows and earlier:
            earlier[0].cells += group.cells
        elif not group.rows:
            fitting[0].append(group)
        elif open_ones := [study for study in fitting if group.dataset not in [one.dataset for one in study]]:
            open_ones[0].append(group)
        else:
            studies.append([group])
    return studies


def _is_beside(group: Group, study: Study) -> bool:
    """Whether both are named data sets of the same spec, and agree in everything that does not belong to a data set."""
    same_spec = group.spec == study[0].spec or (not group.rows and group.spec in str(study[0].spec).split(", "))
    return same_spec and None not in (group.dataset, study[0].dataset) and group.shared == study[0].shared


def _fit(one: Group, other: Group) -> bool:
    """Whether both have the same lines, comparable, and no domain on which a line differs."""
    if set(map(line_key, one.cells)) != set(map(line_key, other.cells)) or not all(map(one.accepts, other.rows)):
        return False
    options = {(line_key(cell), domain_of(cell)[0]): Setting.from_row(cell) for cell in one.cells}
    keys = {(line_key(cell), domain_of(cell)[0], cell["seed"]): cell["key"] for cell in one.cells}
    for cell in other.cells:
        place, setting = (line_key(cell), domain_of(cell)[0]), Setting.from_row(cell)
        if options.get(place, setting) != setting or keys.get((*place, cell["seed"]), cell["key"]) != cell["key"]:
            return False
    return True


def line_key(cell: Row) -> Setting:
    """What a reader takes for one line: a label with its method and reducer, whatever the options are."""
    setting = Setting.from_row(cell)
    return setting if setting.label is None else replace(setting, options=json.dumps({"label": setting.label}))
