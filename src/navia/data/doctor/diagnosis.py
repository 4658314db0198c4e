"""What an examination tells."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """error: a run would stop or answer wrongly. warning: something is missing or odd. note: good to know."""

    severity: Literal["note", "warning", "error"]
    text: str


@dataclass(frozen=True)
class PartCount:
    name: str
    path: Path
    images: int
    classes: int


@dataclass(frozen=True)
class ClassCounts:
    """Images per class folder. odd: folders whose number stands out, as "folder (number)"."""

    smallest: int
    median: float
    largest: int
    empty: tuple[str, ...]
    odd: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """(width, height) among the examined images; common: the most frequent one, `common_count` times."""

    smallest: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[int, int]
    common_count: int


@dataclass(frozen=True)
class Diagnosis:
    """kind: as `layouts.Layout`, or "unknown". title: the same in words. classes: folders that hold images (of all parts
    together each name once). examined: how many images were decoded."""

    kind: str
    title: str
    root: Path
    parts: tuple[PartCount, ...] = ()
    images: int = 0
    classes: int = 0
    per_class: ClassCounts | None = None
    examined: int = 0
    sizes: Sizes | None = None
    findings: tuple[Finding, ...] = ()
    next_commands: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: paths as text."""
        parts = [{**asdict(part), "path": str(part.path)} for part in self.parts]
        return {**asdict(self), "root": str(self.root), "parts": parts}
