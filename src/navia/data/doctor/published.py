"""Which published data set a folder is, and what that holds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from navia.data import corruptions, imagenet
from navia.data.doctor.listing import Listed, image_paths
from navia.data.layouts import SEVERITIES, Layout


@dataclass(frozen=True)
class Published:
    """What a data set holds as published (ImageNet-C: each part). per_class None: differs from class to class."""

    title: str
    images: int
    per_class: int | None = None


VALIDATION = Published("ImageNet validation set", 50_000, 50)
TRAINING = Published("ImageNet training set", 1_281_167)
_SKETCH = Published("ImageNet-Sketch", 50_889)
_PUBLISHED = {
    "imagenet-c": Published("ImageNet-C", 50_000, 50),
    "imagenet-r": Published("ImageNet-R", 30_000),
    "imagenet-a": Published("ImageNet-A", 7_500),
    "imagenet-v2": Published("ImageNet-V2", 10_000, 10),
}


def published_as(layout: Layout, listed: Sequence[Listed]) -> Published | None:
    """The folder names tell most data sets, the file names those that share all 1000 wnids."""
    if layout.kind == "imagenet-c" and not any(set(part.class_names) & imagenet.class_index().keys() for part in listed):
        return None  # somebody's own images in its layout
    if is_one_part(layout):
        return replace(_PUBLISHED["imagenet-c"], title="one part of ImageNet-C")
    if layout.kind != "imagenet":
        return _PUBLISHED.get(layout.kind)
    first, images = image_paths(listed[0].holders[0])[0].name, listed[0].images
    if first.startswith("ILSVRC2012_val") or images == VALIDATION.images:
        return VALIDATION
    if first.startswith("sketch_") or images == _SKETCH.images:
        return _SKETCH
    return TRAINING if re.match(r"n\d{8}_\d+\.", first) else None


def plain_title(kind: str) -> str:
    titles = {
        "imagenet": "images of ImageNet's classes",
        "imagenet-c": "corrupted images in ImageNet-C's layout",
        "class folders": "images in class folders",
        "flat": "images without classes",
    }
    return titles[kind]


def is_one_part(layout: Layout) -> bool:
    """ImageNet-C/fog/3 by itself looks like the validation set, but is not clean."""
    here = layout.root.resolve()
    return layout.kind == "imagenet" and here.name in SEVERITIES and here.parent.name in corruptions.names(extra=True)
