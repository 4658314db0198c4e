"""Files that are there whole or not at all, and files that one process at a time may write to."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from navia.errors import InputError

UNFINISHED = ".navia-part"  # how the names of half-written files end


def expanded(path: str | Path) -> Path:
    """With the home folder in place of a leading ~."""
    return Path(os.path.expanduser(path))


def to_bytes(text: str) -> bytes:
    """UTF-8, where names that are not valid UTF-8 (in Python with lone surrogates) keep the bytes that the disk has."""
    return text.encode("utf-8", "surrogatepass" if os.name == "nt" else "surrogateescape")


def printable(text: str) -> str:
    r"""For files and programs that take valid Unicode only: bytes of a name that are not UTF-8 become \udcXX."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def written_whole(path: Path, sync: bool = True) -> Iterator[Path]:
    """A temporary path to write to, which becomes `path` once that is done: a reader never sees half a file.

    sync: for good, also through a power cut. The process is part of the temporary name: two never write to the same file.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        yield unfinished
        if sync:
            _sync(unfinished)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    if sync:
        _sync(path.parent)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def exclusive(path: Path, refusal: str, patience: float = 0.0) -> BinaryIO:
    """`path`, opened for appending (and made if need be) and held until it is closed or the process ends. Where another
    process still holds it after `patience` seconds, an InputError says `refusal`."""
    file = path.open("ab")
    deadline = time.monotonic() + patience
    while not _locked(file):
        if time.monotonic() >= deadline:
            file.close()
            raise InputError(refusal)
        time.sleep(0.05)
    return file


def _locked(file: BinaryIO) -> bool:
    """Whether it is ours now; also where a system or a disk has no locks, for nothing can be promised there."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True
