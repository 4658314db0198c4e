"""Images as they arrive in a folder."""

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from navia.data.layouts import SUFFIXES
from navia.data.loader import Batch, Loader
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain, Folder
from navia.data.streams import make_stream
from navia.errors import InputError


def watch_batches(
    root: Path,
    preprocessing: Preprocessing,
    batch_size: int,
    *,
    seen: Collection[str],
    first: int,
    unreadable: list[tuple[str, str]],
    wait: float,
    idle: float | None,
) -> Iterator[Batch]:
    """Batches of new images, numbered from `first`. Unreadable images are skipped and added to `unreadable`."""
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    numbers = itertools.count(first)
    for paths in watch_folder(root, seen, batch_size, wait=wait, idle=idle):
        stream = make_stream([Domain("arrived", Folder(root, tuple(paths), None))], "continual", seed=None)
        loader = Loader(stream, preprocessing, batch_size, skip_unreadable=True)
        yield from (replace(batch, number=next(numbers), reset=False) for batch in loader)
        unreadable += loader.unreadable


def watch_folder(
    root: Path,
    seen: Collection[str],
    batch_size: int,
    *,
    wait: float = 2.0,
    idle: float | None = None,
    poll: float = 0.25,
    settle: float = 0.5,
) -> Iterator[list[Path]]:
    """Iterate over batches of new image files below a folder, oldest first, until none came for `idle` seconds.

    A batch is given when it has `batch_size` images, or `wait` seconds after its first image. A file counts once it has not
    changed for `settle` seconds: it is not read while it is being written. seen: names (paths below root) to leave out.
    """
    known = set(seen)
    waiting: list[Path] = []
    first = last = time.monotonic()
    while True:
        fresh = _new_files(root, known, settle)
        if fresh:
            last = time.monotonic()
            first = first if waiting else last
            known.update(path.relative_to(root).as_posix() for path in fresh)
            waiting += fresh
        while len(waiting) >= batch_size:
            yield waiting[:batch_size]
            waiting = waiting[batch_size:]
            first = last = time.monotonic()
        if waiting and time.monotonic() - first >= wait:
            yield waiting
            waiting, last = [], time.monotonic()
        if idle is not None and not waiting and time.monotonic() - last >= idle:
            return
        time.sleep(poll)


def _new_files(root: Path, known: Collection[str], settle: float) -> list[Path]:
    found = []
    for path in root.rglob("*"):
        if path.suffix.lower() in SUFFIXES and path.relative_to(root).as_posix() not in known:
            with contextlib.suppress(FileNotFoundError):  # moved away in between
                found.append((path.stat().st_mtime, path))
    return [path for changed, path in sorted(found) if time.time() - changed >= settle]
