"""One corrupted file: from the picture's name to the bytes on disk."""

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from navia.data.corruptions import corrupt, seed_of
from navia.data.folder import open_image
from navia.data.preprocessing import Preprocessing
from navia.errors import InputError
from navia.io import atomic_write

DEFINITIONS = 1  # to be raised whenever a corruption gives other pixels: no tree may hold both
QUALITY = 85


class Picture(NamedTuple):
    """name: below the source, where seeds come from. file: below a severity's folder of the target."""

    name: str
    file: PurePosixPath


class Unit(NamedTuple):
    """What a worker does in one go. Small, so that an interrupted run ends soon."""

    picture: Picture
    corruption: str
    severities: tuple[int, ...]


class Outcome(NamedTuple):
    """How many files of the unit were written, and in words why not all."""

    unit: Unit
    written: int
    unreadable: str = ""
    unwritable: str = ""


@dataclass(frozen=True)
class Recipe:
    """All that the pixels depend on besides the picture, its corruption and its severity. size None: as it is."""

    source: Path
    target: Path
    seed: int
    size: int | None
    resize: int | None

    def settings(self) -> dict[str, Any]:
        """What must be equal for all files of a tree."""
        return {
            "source": self.source.resolve().name,
            "seed": self.seed,
            "size": self.size,
            "resize": self.resize,
            "quality": QUALITY,
            "definitions": DEFINITIONS,
        }

    def folder(self, corruption: str, severity: int) -> Path:
        return self.target / corruption / str(severity)

    def do(self, unit: Unit) -> Outcome:
        for written, severity in enumerate(unit.severities):
            try:
                data = self._file(unit, severity)
            except InputError as error:
                return Outcome(unit, written, unreadable=str(error))
            path = self.folder(unit.corruption, severity) / unit.picture.file
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path, sync=False) as unfinished:  # a million syncs would take longer than the pictures
                    unfinished.write_bytes(data)
            except OSError as error:
                return Outcome(unit, written, unwritable=f"cannot write {str(path)!r}: {error}")
        return Outcome(unit, len(unit.severities))

    def _file(self, unit: Unit, severity: int) -> bytes:
        pixels = _cropped(self.source / unit.picture.name, self.size, self.resize)
        seed = seed_of(unit.picture.name, unit.corruption, severity, self.seed)
        return _as_jpeg(corrupt(pixels, unit.corruption, severity, seed=seed))


@lru_cache(maxsize=1)  # the units of a picture follow each other
def _cropped(path: Path, size: int | None, resize: int | None) -> np.ndarray:
    image = open_image(path)
    channels = 1 if image.mode in ("1", "L", "LA") else 3
    shape = (image.height, image.width) if size is None else (size, size)
    like_published = Preprocessing(shape, (0.0,) * channels, (1.0,) * channels, resize, interpolation="bilinear")
    return np.asarray(like_published.crop(image))


def _as_jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()
