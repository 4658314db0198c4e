"""What the cells of a grid read from disk, as digests: a change of the weights or of the images is noticed by them, and they
are the same however a path is written and on whichever machine the files lie.

Weights are hashed whole. Images are not read for this: their names and sizes make the digest, the times at which they were
written a second one. The second is no part of a cell's key, for copies of the same images often have other times; but a row
that was made of images with other times than those that are there now does not count as done.
"""

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from navia.data import sample
from navia.data.layouts import Layout, detect_layout
from navia.data.sources import SHIFTED_LAYOUTS, FolderDigest, digest_folder, local_folder
from navia.errors import InputError, SpecError
from navia.io import expand_user, to_bytes

_WEIGHT_FILES = (".safetensors", ".bin", ".json")  # what transformers reads of a folder


@dataclass(frozen=True)
class Data:
    """One entry of a spec's data. names: of its domains. layout: None for what is no folder of images."""

    path: str
    names: tuple[str, ...]
    layout: Layout | None

    @property
    def shifted(self) -> bool:
        return self.layout is not None and self.layout.kind in SHIFTED_LAYOUTS


class Inputs:
    """Digests of what a spec names. Every folder is listed once; take a new one to notice changes."""

    def __init__(self) -> None:
        self._stamps: dict[Path, FolderDigest] = {}

    def data(self, path: str, corruptions: Sequence[str] = (), parts: Sequence[str] = ()) -> Data:
        """Which domains there are; what is missing is refused by name, unless the corruptions are all that needs knowing."""
        if path == "embedded" or path.startswith("datasets:"):
            whole = ("clean",) if path == "embedded" else (path.removeprefix("datasets:"),)
            return Data(path, tuple(corruptions) or whole, None)
        place = expand_user(path)
        if corruptions and not place.exists():  # its cells will say so
            return Data(path, tuple(corruptions), None)
        layout = detect_layout(place)
        names = tuple(part.name for part in layout.parts)
        unknown = sorted(set(parts) - set(names))
        if unknown:
            raise SpecError(f"{path!r} has no part {', '.join(unknown)}; it has {', '.join(names)}")
        return Data(path, tuple(corruptions) or tuple(parts) or names, layout)

    def stamps(self, data: Data, domains: Sequence[str], corrupted: bool) -> list[tuple[str, FolderDigest]]:
        """Of the folders that these domains are read from. Only parts of ImageNet-C have a name here: what a whole folder is
        called changes nothing. Empty: there is nothing local to look at."""
        if data.layout is None:
            folder = local_folder(data.path) if data.path.startswith("datasets:") else None
            split = data.path.removeprefix("datasets:").partition(":")[2]
            return [(split, self._stamp(folder, deep=True))] if folder is not None else []
        if data.layout.kind != "imagenet-c" or corrupted:
            return [("", self._stamp(part.path)) for part in data.layout.parts[:1]]
        places = {part.name: part.path for part in data.layout.parts}
        return [(name, self._stamp(places[name])) for name in domains]

    def source(self, path: str | None) -> list[tuple[str, FolderDigest]]:
        if path is None:
            return []
        data = self.data(path) if path.startswith("datasets:") or expand_user(path).is_dir() else Data(path, (), None)
        return self.stamps(data, data.names, corrupted=False)

    def counts(self, data: Data, domains: Sequence[str], corrupted: bool) -> list[int] | None:
        """Images of each domain, before any are left out as the source; None: not known without opening a data set."""
        if data.path == "embedded":
            return [len(sample.unseen_images())] * len(domains)
        if data.layout is None:
            return None
        counts = [found.count for _, found in self.stamps(data, domains, corrupted)]
        return counts * len(domains) if len(counts) < len(domains) else counts

    def _stamp(self, folder: Path, deep: bool = False) -> FolderDigest:
        place = folder.resolve()
        if place not in self._stamps:
            self._stamps[place] = digest_folder(place, deep)
        return self._stamps[place]


def names_and_sizes(stamps: Iterable[tuple[str, FolderDigest]]) -> str | None:
    return _joined([f"{name}\n{found.names_and_sizes}" for name, found in stamps])


def times(stamps: Iterable[tuple[str, FolderDigest]]) -> str | None:
    return _joined([f"{name}\n{found.times}" for name, found in stamps])


def _joined(lines: Sequence[str]) -> str | None:
    return hashlib.sha256(to_bytes("\n".join(lines))).hexdigest()[:16] if lines else None


def model_digest(model: str) -> str | None:
    """Of the folder that "hf:FOLDER" names; None for any other name."""
    folder = expand_user(model.removeprefix("hf:"))
    if not model.startswith("hf:") or not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHT_FILES and path.is_file())
    return _joined([f"{path.name}\n{_content(path)}" for path in files])


def checkpoint_digest(checkpoint: str | None) -> str | None:
    """Of the file's content; None: there is no file (to load it will say so)."""
    path = expand_user(checkpoint) if checkpoint is not None else None
    return _joined([_content(path)]) if path is not None and path.is_file() else None


def _content(path: Path) -> str:
    path = path.resolve()
    try:
        found = os.stat(path)
        return _hashed(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


@functools.lru_cache(maxsize=64)
def _hashed(path: Path, *_: int) -> str:
    """sha256 of a file, computed once for as long as its size, times and place on the disk stay."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
