"""Digests of what a grid reads from disk: changed weights or images are noticed, while the same files under another path or
on another machine count as the same.

Weights are hashed in full. Images are not read: one digest is of their names and sizes, another of their modification times.
The times are no part of a cell's key, because copies often have other times; but a row whose images had other times than
those on disk now does not count as done.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from navia.data import sample
from navia.data.layouts import Layout, detect_layout
from navia.data.sources import FolderDigest, digest_folder, local_folder
from navia.errors import InputError, SpecError
from navia.io import expand_user, to_bytes

_WEIGHT_FILES = (".safetensors", ".bin", ".json")  # what transformers reads of a folder


@dataclass(frozen=True)
class DataEntry:
    """Data of a spec. names: of its domains. layout: None if it is not a folder of images, or not here."""

    path: str
    names: tuple[str, ...]
    layout: Layout | None = None


class FileStamps:
    """Stamps of the folders that a spec names. Every folder is listed once; make a new object to notice changes."""

    def __init__(self) -> None:
        self._stamp = functools.cache(digest_folder)

    def data(
        self, path: str, corruptions: Sequence[str] = (), parts: Sequence[str] = (), name: str | None = None
    ) -> DataEntry:
        """Find the domains. Missing data is refused by name, or by its cells if the corruptions are all that is needed. A
        data set with a name may be missing."""
        if path == "embedded" or path.startswith("datasets:"):
            clean = "clean" if path == "embedded" else path.removeprefix("datasets:")
            return DataEntry(path, tuple(corruptions) or (clean,))
        if (corruptions or name) and not is_here(path):
            return DataEntry(path, tuple(corruptions) or (str(name),))
        layout = detect_layout(expand_user(path))
        names = tuple(part.name for part in layout.parts)
        if unknown := sorted(set(parts) - set(names)):
            raise SpecError(f"{path!r} has no part {', '.join(unknown)}; it has {', '.join(names)}")
        return DataEntry(path, tuple(corruptions) or tuple(parts) or names, layout)

    def stamps(self, data: DataEntry, domains: Sequence[str], corrupted: bool) -> list[tuple[str, FolderDigest]]:
        """Name and stamp of each folder that the domains are read from; empty if nothing is local. Only the parts of
        ImageNet-C have a name here: the name of a whole folder changes nothing."""
        if data.layout is None:
            folder = local_folder(data.path) if data.path.startswith("datasets:") else None
            split = data.path.removeprefix("datasets:").partition(":")[2]
            return [(split, self._stamp(folder.resolve(), deep=True))] if folder is not None else []
        places = {part.name: part.path.resolve() for part in data.layout.parts}
        if data.layout.kind != "imagenet-c" or corrupted:
            return [("", self._stamp(next(iter(places.values()))))]
        return [(name, self._stamp(places[name])) for name in domains]

    def source(self, path: str | None) -> list[tuple[str, FolderDigest]]:
        """As `stamps`, of the source images."""
        if path is None or not (path.startswith("datasets:") or expand_user(path).is_dir()):
            return []
        data = self.data(path)
        return self.stamps(data, data.names, corrupted=False)

    def counts(self, data: DataEntry, domains: Sequence[str], corrupted: bool) -> list[int] | None:
        """Images of each domain, source images included; None if that takes opening a data set."""
        if data.path == "embedded":
            return [len(sample.unseen_images())] * len(domains)
        if data.layout is None:
            return None
        counts = [found.count for _, found in self.stamps(data, domains, corrupted)]
        return counts if len(counts) == len(domains) else counts * len(domains)


def is_here(path: str) -> bool:
    """Whether data can be opened as far as its path says: what is not a folder may be anywhere."""
    return path == "embedded" or path.startswith("datasets:") or expand_user(path).exists()


def names_and_sizes(stamps: Iterable[tuple[str, FolderDigest]]) -> str | None:
    return _digest([f"{name}\n{found.names_and_sizes}" for name, found in stamps])


def times(stamps: Iterable[tuple[str, FolderDigest]]) -> str | None:
    return _digest([f"{name}\n{found.times}" for name, found in stamps])


def model_digest(model: str) -> str | None:
    """Digest of the folder that "hf:FOLDER" names; None for any other name."""
    folder = expand_user(model.removeprefix("hf:"))
    if not model.startswith("hf:") or not folder.is_dir():
        return None
    files = (path for path in sorted(folder.iterdir()) if path.suffix in _WEIGHT_FILES and path.is_file())
    return _digest([f"{path.name}\n{_content(path)}" for path in files])


def checkpoint_digest(checkpoint: str | None) -> str | None:
    """Digest of the content; None without a file (loading it will say so)."""
    path = expand_user(checkpoint) if checkpoint is not None else None
    return _digest([_content(path)]) if path is not None and path.is_file() else None


def _digest(lines: Sequence[str]) -> str | None:
    return hashlib.sha256(to_bytes("\n".join(lines))).hexdigest()[:16] if lines else None


def _content(path: Path) -> str:
    try:
        found = path.resolve().stat()
        return _sha256(path.resolve(), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, *_: int) -> str:
    """Computed once for as long as the file's size, times and inode stay."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
