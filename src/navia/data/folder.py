"""Folders of pictures: which files there are, in which order, with which labels, and how to read them."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from navia.errors import InputError

MOST_PIXELS = 100_000_000  # a decoded picture of this size takes 0.3 GB
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


def open_image(path: str | Path) -> Image.Image:
    """A decoded picture, upright, or an InputError that names the file."""
    try:
        with open(path, "rb") as file:
            return decode(file, f"image {str(path)!r}")
    except FileNotFoundError:
        raise InputError(f"no image file {str(path)!r}") from None
    except OSError as error:
        raise InputError(f"cannot read image {str(path)!r}: {error}") from error


def decode(
    file: IO[bytes], name: str, *, most_pixels: int = MOST_PIXELS, formats: tuple[str, ...] | None = None
) -> Image.Image:
    """The picture in a file, upright; of a moving one the first frame. formats: Pillow's names of those allowed."""
    try:
        with Image.open(file, formats=formats) as image:
            if image.width * image.height > most_pixels:
                raise InputError(f"{name} is too large to decode: {image.width}x{image.height} px")
            image.load()
            return ImageOps.exif_transpose(image)
    except InputError:
        raise
    except UnidentifiedImageError as error:  # its own words name an object in memory
        raise InputError(f"cannot read {name}: it is of no known kind") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is too large to decode") from error
    except (OSError, SyntaxError, ValueError) as error:  # ValueError: damaged PPM, PNG, TIFF
        raise InputError(f"cannot read {name}: {error}") from error


@dataclass(frozen=True)
class Folder:
    """Paths in order, and for each the class folder that it lies in (None: no class folders)."""

    root: Path
    paths: tuple[Path, ...]
    class_names: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, position: int) -> str:
        """The path below the root, with forward slashes: the same on every machine."""
        return self.paths[position].relative_to(self.root).as_posix()

    def read(self, position: int) -> Image.Image:
        return open_image(self.paths[position])

    @cached_property
    def labels(self) -> list[int] | None:
        """Index of each image's class folder among the sorted names."""
        if self.class_names is None:
            return None
        index = {name: i for i, name in enumerate(self.class_names)}
        return [index[path.parent.name] for path in self.paths]


@dataclass(frozen=True)
class Stamp:
    """What lies in a folder, without the pixels: how many images, and digests of their names with their sizes, and of their
    names with the times at which they were last written."""

    count: int
    names_and_sizes: str
    times: str


def stamp(root: str | Path, deep: bool = False) -> Stamp:
    """Of the images that `scan` finds, or with `deep` of all files below. Nothing is kept but the digests."""
    root = Path(root)
    count, sizes, times = 0, hashlib.sha256(), hashlib.sha256()
    for name, entry in _files_below(root) if deep else _scanned(root):
        found = entry.stat()
        line = os.fsencode(name)
        sizes.update(line + b"\0%d\n" % found.st_size)
        times.update(line + b"\0%d\n" % found.st_mtime_ns)
        count += 1
    return Stamp(count, sizes.hexdigest()[:16], times.hexdigest()[:16])


def _scanned(root: Path) -> "Iterator[tuple[str, os.DirEntry[str]]]":
    yield from ((entry.name, entry) for entry in _image_entries(root))
    for folder in _class_folders(root):
        yield from ((f"{folder.name}/{entry.name}", entry) for entry in _image_entries(folder))


def _files_below(root: Path, prefix: str = "") -> "Iterator[tuple[str, os.DirEntry[str]]]":
    """In a fixed order; without what the datasets library computes beside its files."""
    for entry in sorted(_entries(root), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_below(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file() and not entry.name.startswith("cache-"):
            yield prefix + entry.name, entry


def scan(root: str | Path) -> Folder:
    """The images of `root`: either directly inside, or one level down in class folders."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    flat = _images(root)
    nested = {folder: _images(folder) for folder in _class_folders(root)}
    classes = tuple(folder.name for folder, images in nested.items() if images)
    if flat and classes:
        raise InputError(f"{str(root)!r} holds images both directly and in class folders ({classes[0]}, ...): keep one")
    if classes:
        return Folder(root, tuple(path for images in nested.values() for path in images), classes)
    if not flat:
        raise InputError(f"no images in {str(root)!r} (looked for {', '.join(sorted(SUFFIXES))}, also one folder down)")
    return Folder(root, tuple(flat), None)


def stream_order(folder: Folder) -> list[int]:
    """Positions in the order that a stream of this folder has by default: by name where pictures lie side by side (often
    the order in time), and dealt at random, always alike, where they are sorted into classes (no stream is)."""
    if folder.class_names is None:
        return list(range(len(folder)))
    return [int(i) for i in np.random.default_rng(0).permutation(len(folder))]


def _images(folder: Path) -> list[Path]:
    return [folder / entry.name for entry in _image_entries(folder)]


def _image_entries(folder: Path) -> "list[os.DirEntry[str]]":
    """Sorted by name."""
    found = (e for e in _entries(folder) if os.path.splitext(e.name)[1].lower() in SUFFIXES and e.is_file())
    return sorted(found, key=lambda entry: entry.name)


def _class_folders(root: Path) -> list[Path]:
    return sorted((root / entry.name for entry in _entries(root) if entry.is_dir()), key=_class_order)


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        raise InputError(f"cannot list folder {str(folder)!r}: {error.strerror or error}") from error


def _class_order(folder: Path) -> tuple[int, str]:
    """Class folders that are numbers (ImageNet-V2) sort as numbers: 2 before 10."""
    return (int(folder.name), "") if folder.name.isdecimal() else (-1, folder.name)
