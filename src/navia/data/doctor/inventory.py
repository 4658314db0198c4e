"""What a folder contains: every folder of its layout listed once, and some images decoded as a run would decode them."""

import hashlib
import warnings
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from navia.data.corruptions import MIN_SIDE
from navia.data.layouts import Layout, Part, entries, image_entries, is_image
from navia.data.preprocessing import open_image
from navia.io import printable

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""

_INPUT_SIDES = {224, 336, 384, 448, 518}  # of ViTs; a folder of squares of such a size was cropped for one


@dataclass
class Place:
    """One listed folder: number of images and of macOS's ._* files among them, names of images that are not valid UTF-8,
    names of other files, and sub-folders."""

    path: Path
    images: int = 0
    apple_double: int = 0
    not_utf8: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        for entry in sorted(entries(self.path), key=lambda entry: entry.name):
            if is_image(entry):
                self.images += 1
                self.apple_double += entry.name.startswith("._")
                self.not_utf8 += [] if printable(entry.name) == entry.name else [entry.name]
            elif entry.is_dir():
                self.folders.append(Path(entry.path))
            else:
                self.others.append(entry.name)

    def first_image(self) -> str:
        return image_entries(self.path)[0].name


@dataclass(frozen=True)
class PartListing:
    """A part of the layout. top: its own folder. inside: its class folders, with or without images."""

    part: Part
    top: Place
    inside: list[Place]

    @property
    def with_images(self) -> list[Place]:
        return [place for place in (self.top, *self.inside) if place.images]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(place.path.name for place in self.inside if place.images)

    @property
    def images(self) -> int:
        return sum(place.images for place in self.with_images)

    @property
    def empty(self) -> list[Place]:
        """Class folders without images; hidden folders do not count."""
        bare = (place for place in self.inside if not place.images and not place.folders)
        return [place for place in bare if not place.path.name.startswith((".", "_", "@"))]


def list_parts(layout: Layout, progress: Progress) -> list[PartListing]:
    """List every part and its class folders."""
    listed = [PartListing(part, Place(part.path), []) for part in layout.parts]
    folders = [(part, folder) for part in listed for folder in part.top.folders]
    for done, (part, folder) in enumerate(folders, 1):
        part.inside.append(Place(folder))
        progress("listing", done, len(folders))
    return listed


@dataclass
class Decoded:
    """Properties of the decoded images. modes: how many are greyscale, CMYK, deeper than 8 bits or of several frames."""

    count: int = 0
    broken: list[tuple[Path, str]] = field(default_factory=list)
    small: list[Path] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    by_length: defaultdict[int, list[Path]] = field(default_factory=lambda: defaultdict(list))

    def add(self, path: Path) -> None:
        """Decode one image."""
        self.count += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF data and of large images
                image = open_image(path)
                with Image.open(path) as header:
                    frames = int(getattr(header, "n_frames", 1))
        except Exception as error:  # Pillow's decoders raise anything on damaged files
            cause = error.__cause__ or error
            unknown = isinstance(cause, UnidentifiedImageError)
            self.broken.append((path, "unknown image format" if unknown else str(cause) or type(cause).__name__))
            return
        self.by_length[path.stat().st_size].append(path)
        self.sizes[image.size] += 1
        self.modes["grey"] += image.mode in ("1", "L", "LA", "La")
        self.modes["cmyk"] += image.mode == "CMYK"
        self.modes["deep"] += image.mode == "F" or image.mode.startswith("I")
        self.modes["frames"] += frames > 1
        if min(image.size) < MIN_SIDE:
            self.small.append(path)

    def duplicates(self) -> list[list[Path]]:
        """Groups of files with the same bytes; only files of equal length are compared."""
        groups: dict[str, list[Path]] = defaultdict(list)
        for paths in self.by_length.values():
            for path in paths if len(paths) > 1 else ():
                with path.open("rb") as file:
                    groups[hashlib.file_digest(file, "sha256").hexdigest()].append(path)
        return sorted(group for group in groups.values() if len(group) > 1)

    def cropped_side(self) -> int | None:
        """Side of the images if all are squares of a size that models take, so that they were cropped before."""
        if len(self.sizes) != 1 or self.count < 2:
            return None
        width, height = next(iter(self.sizes))
        return width if width == height and width in _INPUT_SIDES else None


def decode_some(places: Sequence[Place], count: int | None, progress: Progress) -> Decoded:
    """Decode `count` images (None: all), spread evenly over the folders, always the same ones."""
    total = sum(place.images for place in places)
    wanted = total if count is None else min(count, total)
    decoded = Decoded()
    for path in _spread(places, [(2 * i + 1) * total // (2 * wanted) for i in range(wanted)]):
        decoded.add(path)
        progress("reading", decoded.count, wanted)
    return decoded


def _spread(places: Sequence[Place], positions: Sequence[int]) -> Iterator[Path]:
    """Images at these positions, counted over all folders; folders without any are not listed again."""
    start = 0
    for place in places:
        chosen = positions[bisect_left(positions, start) : bisect_left(positions, start + place.images)]
        found = image_entries(place.path) if chosen else []
        yield from (Path(found[i - start].path) for i in chosen if i - start < len(found))  # some may be gone by now
        start += place.images
