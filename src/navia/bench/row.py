"""What a row of `navia bench` is: the fields that every row has."""

from collections.abc import Iterable, Mapping
from typing import Any

from navia.errors import InputError

_FIELDS = (
    "key", "model", "data", "domain", "domains", "corrupted", "severity", "stream", "images", "label_shift", "source_images",
    "source_path", "method", "reduce", "options", "realtime", "adapt_for", "seed", "batch", "label", "count", "top1", "ece",
    "low", "high", "gmacs", "ms_per_image", "guard", "wall_seconds", "fingerprint",
)  # fmt: skip
_PRINTS = ("weights", "preprocessing", "data", "pictures", "images", "classes", "reset", "source", "versions")


def check_rows(rows: Iterable[Any], where: str) -> None:
    """Refuse what is no row, and say which line and why."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise InputError(f"line {number} of {where} is no row of `navia bench`: {str(row)[:60]!r}")
        if lost := _lost(row):
            raise InputError(f"line {number} of {where} is no row of `navia bench`: it has no {', '.join(lost[:3])}")


def _lost(row: Mapping[str, Any]) -> list[str]:
    if lost := [name for name in _FIELDS if name not in row]:
        return lost
    prints = row["fingerprint"]
    if not isinstance(prints, Mapping):
        return ["fingerprint"]
    if lost := [f"fingerprint.{name}" for name in _PRINTS if name not in prints]:
        return lost
    versions = prints["versions"]
    return [] if isinstance(versions, Mapping) and "navia" in versions else ["fingerprint.versions.navia"]
