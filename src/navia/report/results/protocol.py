"""What may be compared: the protocol that rows share, and in words why others do not."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from navia.data.corruptions import names
from navia.report.results.values import Row


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


def identity_of(row: Row) -> dict[str, Any]:
    """The same for comparison: data by what they are, wherever they lie, where a row says so."""
    found = protocol_of(row)
    found["data"] = row.get("data_digest") or found["data"]
    found["source"] = row.get("source_digest") or found["source"]
    return found


def asked_of(cell: Row) -> tuple[object, ...]:
    """What of the protocol is known of a cell before it runs; of its row, the same."""
    return (
        cell["model"], cell.get("weights_digest") or cell.get("checkpoint"), cell.get("crop_only"),
        cell.get("data_digest") or cell["data"], cell["corrupted"], domain_of(cell)[1], cell["stream"],
        () if cell["domain"] else tuple(cell["domains"]), cell["images"], cell["label_shift"], cell["batch"],
        cell["source_images"], cell.get("source_digest") or cell["source_path"],
    )  # fmt: skip


@dataclass
class Kind:
    """Rows of one protocol whose pictures agree: equal ones for equal domains and seeds."""

    protocol: Mapping[str, Any]
    identity: Mapping[str, Any]
    pictures: dict[tuple[str, int], str] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def takes(self, row: Row) -> bool:
        return identity_of(row) == self.identity and not self.clash(row)

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


def why_apart(number: int, kinds: Sequence[Kind]) -> str:
    """What separates a table from the earlier one that is most like it; nothing, where it may be compared with one."""
    kind = kinds[number]
    reasons = [_reasons(kind, earlier) for earlier in kinds[:number]]
    if not all(reasons):
        return ""
    nearest = min(range(number), key=lambda i: len(reasons[i]))
    return f"Table {number + 1} is not comparable with table {nearest + 1}: {'; '.join(reasons[nearest])}."


def _reasons(kind: Kind, other: Kind) -> list[str]:
    keys = [key for key in dict.fromkeys([*other.identity, *kind.identity])
            if other.identity.get(key) != kind.identity.get(key)]  # fmt: skip
    found = [f"other {key} ({_both(key, other.protocol.get(key), kind.protocol.get(key))})" for key in keys]
    return found or [*filter(None, map(other.clash, kind.rows))][:1]


def _both(key: str, one: object, other: object) -> str:
    """Paths by their last parts, unless these are the same."""
    whole = [value_text(one), value_text(other)]
    short = [short_path(text) for text in whole] if key in ("model", "data", "source") else whole
    return " and ".join(whole if short[0] == short[1] else short)


def value_text(value: object) -> str:
    return "not given" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)


def short_path(path: str) -> str:
    """The last part of a path, after its "hf:" if it has one: where a folder lies on one computer says nothing elsewhere."""
    library, colon, place = path.rpartition(":")
    local = not colon or place.startswith((".", "/", "~"))
    return f"{library}{colon}{PurePath(place).name or place}" if local else path
