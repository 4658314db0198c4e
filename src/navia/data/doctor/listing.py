"""Every folder of a layout, listed once: how many images are where, and what else lies there."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from navia.data.doctor.diagnosis import ClassCounts
from navia.data.doctor.words import below_root
from navia.data.layouts import Layout, Part, entries, is_image
from navia.io import printable

Told = Callable[[str, int, int], None]
"""Progress: what is being done, how much of it is done, of how much."""


@dataclass(frozen=True)
class Place:
    """A folder that was listed: how many images, which of them have names that are not valid UTF-8, and the names of all
    else."""

    path: Path
    images: int
    shadows: int
    not_utf8: tuple[str, ...]
    others: tuple[str, ...]
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Listed:
    """A part with its class folders, also those without images."""

    part: Part
    top: Place
    inside: tuple[Place, ...]

    @property
    def holders(self) -> tuple[Place, ...]:
        return tuple(place for place in (self.top, *self.inside) if place.images)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(place.path.name for place in self.inside if place.images)

    @property
    def images(self) -> int:
        return sum(place.images for place in self.holders)

    @property
    def empty(self) -> list[Place]:
        """Class folders in which images were expected; hidden folders never are."""
        bare = (place for place in self.inside if not place.images and not place.folders)
        return [place for place in bare if not place.path.name.startswith((".", "_", "@"))]


def list_parts(layout: Layout, told: Told) -> list[Listed]:
    tops = [look(part.path) for part in layout.parts]
    total, done = sum(len(top.folders) for top in tops), 0
    listed = []
    for part, top in zip(layout.parts, tops, strict=True):
        inside = []
        for folder in top.folders:
            inside.append(look(folder))
            done += 1
            told("listing", done, total)
        listed.append(Listed(part, top, tuple(inside)))
    return listed


def look(folder: Path) -> Place:
    images = shadows = 0
    not_utf8, others, inside = [], [], []
    for entry in entries(folder):
        if is_image(entry):
            images += 1
            shadows += entry.name.startswith("._")
            if not entry.name.isascii() and printable(entry.name) != entry.name:
                not_utf8.append(entry.name)
        elif entry.is_dir():
            inside.append(Path(entry.path))
        else:
            others.append(entry.name)
    return Place(folder, images, shadows, tuple(sorted(not_utf8)), tuple(sorted(others)), tuple(sorted(inside)))


def image_paths(place: Place) -> list[Path]:
    return sorted(Path(entry.path) for entry in entries(place.path) if is_image(entry))


def class_counts(root: Path, listed: Sequence[Listed]) -> ClassCounts | None:
    """A number stands out where nearly all folders have another one, or else where it is ten times away from the median."""
    counts = {place.path: place.images for part in listed for place in part.inside if place.images}
    if not counts:
        return None
    usual, times = Counter(counts.values()).most_common(1)[0]
    median = statistics.median(counts.values())
    if len(counts) > 2 and times >= 0.9 * len(counts):
        odd = [path for path, count in counts.items() if count != usual]
    else:
        odd = [path for path, count in counts.items() if not median / 10 <= count <= median * 10]
    return ClassCounts(
        min(counts.values()),
        float(median),
        max(counts.values()),
        tuple(below_root(root, place.path) for part in listed for place in part.empty),
        tuple(f"{below_root(root, path)} ({counts[path]})" for path in odd),
    )
