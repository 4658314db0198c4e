"""How paths, numbers and lists are said in a finding."""

from collections.abc import Sequence
from pathlib import Path


def below_root(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
