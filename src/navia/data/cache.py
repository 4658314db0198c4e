"""Corrupted images on disk, so that the cells of a benchmark generate each of them once.

One file per domain and set of images, bounded in total: the least recently used files are deleted first. Several processes
may use one folder. A file holds uint8 pixels of fixed size, each image followed by the CRC-32 of its pixels. It is written
last and checked at every read, so an image that is missing or half-written is never served; it is generated again.
"""

import errno
import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from navia import __version__
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain
from navia.data.streams import Stream
from navia.errors import InputError
from navia.io import lock_file, to_bytes

log = logging.getLogger("navia.data")

_SUFFIX = ".pixels"
_CRC_BYTES = 4
_LIBRARIES = ("numpy", "pillow", "scipy", "opencv-python-headless", "opencv-python")  # other versions, other pixels
_LOCK_SECONDS = 600.0


@dataclass(frozen=True)
class PixelFile:
    """`count` images of uint8 pixels of one `shape`. A file that was deleted holds nothing and takes nothing."""

    path: Path
    count: int
    shape: tuple[int, ...]

    @property
    def record_bytes(self) -> int:
        return math.prod(self.shape) + _CRC_BYTES

    @property
    def size(self) -> int:
        return self.count * self.record_bytes

    def read(self, index: int) -> np.ndarray | None:
        """The pixels of an image; None if they are not stored."""
        record = bytearray(self.record_bytes)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(index * self.record_bytes)
                found = file.readinto(record)
        except OSError:  # deleted to make room
            return None
        pixels, checksum = memoryview(record)[:-_CRC_BYTES], record[-_CRC_BYTES:]
        if found != len(record) or _checksum(pixels) != checksum:
            return None
        return np.frombuffer(pixels, np.uint8).reshape(self.shape)

    def write(self, index: int, pixels: np.ndarray) -> None:
        """Store the pixels of an image. Two processes that do so at once write the same bytes."""
        data = np.ascontiguousarray(pixels).tobytes()
        try:
            with self.path.open("r+b", buffering=0) as file:
                file.seek(index * self.record_bytes)
                file.write(data)
                file.write(_checksum(data))
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _warn_once(f"cannot write the cache {str(self.path)!r}: {error.strerror}; its images are generated again")


def _checksum(pixels: bytes | memoryview) -> bytes:
    return zlib.crc32(pixels).to_bytes(_CRC_BYTES, "little")


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


@dataclass(frozen=True, kw_only=True, eq=False)
class CachedDomain(Domain):
    """A domain whose pixels are read from a file, and written there when they are generated.

    positions: the images that the file holds, sorted. preprocessing: which it was made for; others are not cached."""

    file: PixelFile
    positions: np.ndarray
    preprocessing: Preprocessing

    def pixels(self, index: int, preprocessing: Preprocessing) -> np.ndarray:
        place = int(np.searchsorted(self.positions, index))
        if preprocessing != self.preprocessing or place == len(self.positions) or self.positions[place] != index:
            return super().pixels(index, preprocessing)
        found = self.file.read(place)
        if found is None:
            found = super().pixels(index, preprocessing)
            self.file.write(place, found)
        return found


@dataclass(frozen=True)
class PixelCache:
    """A folder of pixel files.

    Args:
        folder: Created if needed. Other files in it are left alone.
        limit: Largest total size of the files in bytes.
    """

    folder: Path
    limit: int

    def stream(self, stream: Stream, preprocessing: Preprocessing, data: Sequence[str | None]) -> Stream:
        """The stream with its corrupted domains cached; what does not fit into the limit is left as it is.

        Args:
            stream: The images that are kept are those of the stream.
            preprocessing: That the images will be read with.
            data: Digests of the files of the images: their names alone do not decide the pixels.

        Raises:
            InputError: The folder cannot be written, or the disk is full.
        """
        indices = np.concatenate([segment.indices for segment in stream.segments])
        wanted: dict[int, CachedDomain] = {}
        for number, domain in enumerate(stream.domains):
            positions = np.unique(indices[indices[:, 0] == number, 1])
            if domain.corruption is not None and domain.severity and len(positions):
                file = self._file(domain, positions, preprocessing, data)
                values = {name: getattr(domain, name) for name in Domain.__dataclass_fields__}
                wanted[number] = CachedDomain(**values, file=file, positions=positions, preprocessing=preprocessing)
        kept = self._reserve([domain.file for domain in wanted.values()])
        cached = {number: domain for number, domain in wanted.items() if domain.file in kept}
        return replace(stream, domains=tuple(cached.get(i, domain) for i, domain in enumerate(stream.domains)))

    def _file(
        self, domain: Domain, positions: np.ndarray, preprocessing: Preprocessing, data: Sequence[str | None]
    ) -> PixelFile:
        """Named by everything that decides the pixels."""
        channels = len(preprocessing.mean)
        crop = {name: value for name, value in asdict(preprocessing).items() if name not in ("mean", "std", "origin")}
        key = [
            *(domain.corruption, domain.severity, domain.seed, list(data), crop, channels),
            *(__version__, [_version(name) for name in _LIBRARIES]),
        ]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode())
        for position in positions:
            digest.update(to_bytes(f"\n{domain.images.name(int(position))}"))
        shape = preprocessing.size if channels == 1 else (*preprocessing.size, channels)
        name = f"{domain.corruption}-{domain.severity}-{digest.hexdigest()[:16]}{_SUFFIX}"
        return PixelFile(self.folder / name, len(positions), shape)

    def _reserve(self, wanted: Sequence[PixelFile]) -> list[PixelFile]:
        """Make room for the files that fit into the limit together, and create them in full size."""
        kept: list[PixelFile] = []
        for file in wanted:
            if file.size + sum(other.size for other in kept) <= self.limit:
                kept.append(file)
            else:
                _warn_once(
                    f"{file.path.name} of {file.size / 1e9:.3g} GB does not fit into the cache of {self.limit / 1e9:.3g} GB:"
                    " its images are generated again in every cell"
                )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            refusal = f"another process has held the lock of the cache {str(self.folder)!r} for too long"
            with lock_file(self.folder / ".lock", refusal, _LOCK_SECONDS):
                self._evict(kept)
                for file in kept:
                    _allocate(file)
        except OSError as error:
            advice = "free some space, lower --cache-limit, or leave out --cache" if error.errno == errno.ENOSPC else ""
            why = error.strerror or str(error)
            raise InputError(f"cannot write the cache {str(self.folder)!r}: {why}{advice and f' ({advice})'}") from error
        return kept

    def _evict(self, kept: Sequence[PixelFile]) -> None:
        """Delete files, the least recently used first, until the others and `kept` are within the limit."""
        own, total = {file.path for file in kept}, sum(file.size for file in kept)
        others = [(path.stat(), path) for path in self.folder.glob(f"*{_SUFFIX}") if path not in own]
        for found, path in sorted(others, key=lambda entry: entry[0].st_mtime_ns, reverse=True):
            total += found.st_size
            if total > self.limit:
                path.unlink(missing_ok=True)


def _allocate(file: PixelFile) -> None:
    """Reserve the disk space now, so that it is not missing in the middle; the time of use is that of the last change."""
    try:
        with file.path.open("ab"):
            os.utime(file.path)
        missing = file.size - file.path.stat().st_size
        if missing <= 0:
            return
        if missing > shutil.disk_usage(file.path.parent).free:  # some file systems fill the disk before they refuse
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with file.path.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, file.size)
            except (AttributeError, OSError) as error:  # not on every system and file system
                if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
                opened.truncate(file.size)
    except OSError:
        file.path.unlink(missing_ok=True)
        raise


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None
