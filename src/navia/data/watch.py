"""Pictures as they arrive in a folder."""

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from navia.data.domain import Domain
from navia.data.folder import SUFFIXES, Folder
from navia.data.loader import Batch, Loader
from navia.data.preprocessing import Preprocessing
from navia.data.streams import make_stream
from navia.errors import InputError


def arriving(
    root: Path,
    preprocessing: Preprocessing,
    batch: int,
    *,
    seen: Collection[str],
    first: int,
    unreadable: list[tuple[str, str]],
    wait: float,
    idle: float | None,
) -> Iterator[Batch]:
    """Batches of pictures as they come, numbered from `first` on; broken ones go to `unreadable` and are left out, for
    nobody is there to mend them."""
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    number = first
    for paths in arrivals(root, seen, batch, wait=wait, idle=idle):
        stream = make_stream([Domain("arrived", Folder(root, tuple(paths), None))], "continual", seed=None)
        loader = Loader(stream, preprocessing, batch, skip_unreadable=True)
        for loaded in loader:
            yield replace(loaded, number=number, reset=False)
            number += 1
        unreadable += loader.unreadable


def arrivals(
    root: Path,
    seen: Collection[str],
    batch: int,
    *,
    wait: float = 2.0,
    idle: float | None = None,
    poll: float = 0.25,
    settle: float = 0.5,
) -> Iterator[list[Path]]:
    """Batches of new pictures below `root`, oldest first, for ever or until none came for `idle` seconds.

    A batch leaves when it is full, or when its first picture has waited for `wait` seconds. A file counts once it has
    not changed for `settle` seconds, so that a picture is not read while it is being written.
    """
    known = set(seen)
    waiting: list[Path] = []
    first = last = time.monotonic()
    while True:
        fresh = _settled(root, known, settle)
        if fresh:
            last = time.monotonic()
            first = first if waiting else last
            known.update(_name(root, path) for path in fresh)
            waiting += fresh
        while len(waiting) >= batch:
            yield waiting[:batch]
            waiting, first = waiting[batch:], time.monotonic()
            last = first
        if waiting and time.monotonic() - first >= wait:
            yield waiting
            waiting, last = [], time.monotonic()
        if idle is not None and not waiting and time.monotonic() - last >= idle:
            return
        time.sleep(poll)


def _settled(root: Path, known: Collection[str], settle: float) -> list[Path]:
    found = []
    for path in root.rglob("*"):
        if path.suffix.lower() in SUFFIXES and _name(root, path) not in known:
            try:
                changed = path.stat().st_mtime
            except FileNotFoundError:  # moved away in between
                continue
            if time.time() - changed >= settle:
                found.append((changed, path))
    return [path for _, path in sorted(found)]


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
