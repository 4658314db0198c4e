"""Some of the images, or all, decoded as a run would decode them."""

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from navia.data import corruptions
from navia.data.doctor.diagnosis import Sizes
from navia.data.doctor.listing import Place, Told, image_paths
from navia.data.folder import open_image

_CROPPED_SIDES = {224, 336, 384, 448, 518}  # what ViTs see; a folder of squares of such a size was cropped for one


@dataclass
class Seen:
    """What decoding some images showed."""

    count: int = 0
    broken: list[tuple[Path, str]] = field(default_factory=list)
    small: list[Path] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    traits: Counter[str] = field(default_factory=Counter)
    by_bytes: defaultdict[int, list[Path]] = field(default_factory=lambda: defaultdict(list))

    def look(self, path: Path) -> None:
        self.count += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's remarks on damaged EXIF data and on large images
                picture = open_image(path)
                with Image.open(path) as header:
                    frames = int(getattr(header, "n_frames", 1))
        except Exception as error:  # Pillow's decoders raise what they like on damaged files; each is the file's fault
            self.broken.append((path, _reason(error)))
            return
        self.by_bytes[path.stat().st_size].append(path)
        self.sizes[picture.size] += 1
        self.traits.update(_traits(picture.mode, frames))
        if min(picture.size) < corruptions.SMALLEST_SIDE:
            self.small.append(path)

    def summary(self) -> Sizes | None:
        if not self.sizes:
            return None
        by_area = sorted(self.sizes, key=lambda size: (size[0] * size[1], size))
        common, count = max(self.sizes.items(), key=lambda item: (item[1], item[0]))
        return Sizes(by_area[0], by_area[-1], common, count)

    def duplicates(self) -> list[list[Path]]:
        """Groups of files with the same bytes; only files of equal length are compared."""
        groups: dict[tuple[int, str], list[Path]] = defaultdict(list)
        for length, paths in self.by_bytes.items():
            if len(paths) > 1:
                for path in paths:
                    with path.open("rb") as file:
                        groups[length, hashlib.file_digest(file, "sha256").hexdigest()].append(path)
        return sorted(group for group in groups.values() if len(group) > 1)


def read_some(holders: Sequence[Place], read: int | None, told: Told) -> Seen:
    total = sum(place.images for place in holders)
    wanted = total if read is None else min(read, total)
    seen = Seen()
    for path in _spread(holders, total, wanted):
        seen.look(path)
        told("reading", seen.count, wanted)
    return seen


def cropped_side(seen: Seen) -> int | None:
    """All square and of one size that models see: no camera makes that."""
    if len(seen.sizes) != 1 or seen.count < 2:
        return None
    width, height = next(iter(seen.sizes))
    return width if width == height and width in _CROPPED_SIDES else None


def _spread(holders: Sequence[Place], total: int, wanted: int) -> Iterator[Path]:
    """The middle image of each of `wanted` equal stretches; folders in which none lies are not listed again."""
    positions = iter([(2 * i + 1) * total // (2 * wanted) for i in range(wanted)])
    position, start = next(positions, None), 0
    for place in holders:
        if position is not None and position < start + place.images:
            paths = image_paths(place)
            while position is not None and position < start + place.images:
                if position - start < len(paths):  # a file may have vanished since it was counted
                    yield paths[position - start]
                position = next(positions, None)
        start += place.images


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return "no known image format" if isinstance(cause, UnidentifiedImageError) else str(cause) or type(cause).__name__


def _traits(mode: str, frames: int) -> Iterator[str]:
    if mode in ("1", "L", "LA", "La"):
        yield "grey"
    if mode == "CMYK":
        yield "cmyk"
    if mode == "F" or mode.startswith("I"):
        yield "deep"
    if frames > 1:
        yield "frames"
