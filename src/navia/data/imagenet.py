"""ImageNet's 1000 classes and the 200 of ImageNet-R and ImageNet-A, from timm's lists; timm itself is not imported."""

import importlib.util
import re
from functools import cache
from pathlib import Path

from navia.errors import NaviaError

WNID = re.compile(r"n\d{8}")  # WordNet identifier: name of ImageNet's class folders
# ImageNet's classes are in the order of WordNet's numbers, so these kinds are ranges (last one included). Left out: hay
# (958), people (981 to 983), ear (998) and toilet tissue (999).
SUPER_CLASSES = {
    "fish": ((0, 6), (389, 397)),
    "birds": ((7, 24), (80, 100), (127, 146)),
    "amphibians and reptiles": ((25, 68),),
    "invertebrates": ((69, 79), (107, 126), (300, 329)),
    "dogs": ((151, 268),),
    "other mammals": ((101, 106), (147, 150), (269, 299), (330, 388)),
    "objects": ((398, 922),),
    "food": ((923, 957), (959, 969)),
    "landscapes": ((970, 980),),
    "plants and fungi": ((984, 997),),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of its pixels in [0, 1] per channel


@cache
def wnids() -> tuple[str, ...]:
    """The 1000 WordNet identifiers in class order, which is also their sorted order."""
    return _lines("imagenet_synsets.txt")


@cache
def names() -> tuple[str, ...]:
    """The first WordNet name of each class. Two names stand for two classes each: crane and maillot."""
    lemmas = dict(line.split("\t", 1) for line in _lines("imagenet_synset_to_lemma.txt"))
    return tuple(lemmas[wnid].split(",")[0].strip() for wnid in wnids())


@cache
def r_classes() -> tuple[int, ...]:
    """The 200 classes of ImageNet-R, ascending."""
    return tuple(int(line) for line in _lines("imagenet_r_indices.txt"))


@cache
def a_classes() -> tuple[int, ...]:
    """The 200 classes of ImageNet-A, ascending."""
    return tuple(int(line) for line in _lines("imagenet_a_indices.txt"))


@cache
def super_classes() -> tuple[int, ...]:
    """For each class the position of its kind in SUPER_CLASSES, -1 if it has none."""
    kinds = [-1] * len(wnids())
    for kind, ranges in enumerate(SUPER_CLASSES.values()):
        for first, last in ranges:
            kinds[first : last + 1] = [kind] * (last + 1 - first)
    return tuple(kinds)


@cache
def class_index() -> dict[str, int]:
    """The class of each wnid."""
    return {wnid: index for index, wnid in enumerate(wnids())}


def _lines(name: str) -> tuple[str, ...]:
    timm = importlib.util.find_spec("timm")
    for place in timm.submodule_search_locations or () if timm else ():
        path = Path(place) / "data" / "_info" / name
        if path.is_file():
            return tuple(path.read_text(encoding="utf-8").splitlines())
    raise NaviaError(f"timm's list {name} is missing: ImageNet's classes are read from it; install timm 1.0.30 or newer")
