"""What is in a folder of images, what is wrong with it, and which commands to run next."""

import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from navia.data.doctor.findings import TRAINING, VALIDATION, Finding, PublishedSet, below, find_all, identify
from navia.data.doctor.inventory import Decoded, PartListing, Progress, decode_some, list_parts
from navia.data.layouts import Layout, detect_layout, find_layouts, has_images, nested_class_folder
from navia.errors import InputError

MODEL = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
_MODEL_SIDE = 224
_TITLES = {
    "imagenet": "images of ImageNet's classes",
    "imagenet-c": "corrupted images in ImageNet-C's layout",
    "class folders": "images in class folders",
    "flat": "images without classes",
}


@dataclass(frozen=True)
class PartCount:
    """Number of images and class folders of one part."""

    name: str
    path: Path
    images: int
    classes: int


@dataclass(frozen=True)
class ClassCounts:
    """Images per class folder. odd: folders with an unusual number, as "folder (number)"."""

    smallest: int
    median: float
    largest: int
    empty: tuple[str, ...]
    odd: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """(width, height) of the examined images. common: the most frequent one, `common_count` times."""

    smallest: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[int, int]
    common_count: int


@dataclass(frozen=True)
class Diagnosis:
    """Result of `examine`. kind: as `Layout.kind`, or "unknown". classes: number of distinct class folders with images.
    examined: number of decoded images."""

    kind: str
    title: str
    root: Path
    parts: tuple[PartCount, ...] = ()
    images: int = 0
    classes: int = 0
    per_class: ClassCounts | None = None
    examined: int = 0
    sizes: Sizes | None = None
    findings: tuple[Finding, ...] = ()
    next_commands: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether a run would stop or give wrong results."""
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Fields as JSON values."""
        parts = [{**asdict(part), "path": str(part.path)} for part in self.parts]
        return {**asdict(self), "root": str(self.root), "parts": parts}


def examine(
    root: str | Path, *, model_classes: int | None = None, read: int | None = 200, progress: Progress | None = None
) -> Diagnosis:
    """Examine a folder of images. model_classes: number of classes of the model, to check the class folders against.
    read: number of images to decode, spread evenly over the folder and always the same; None: all."""
    root = Path(root)
    if read is not None and read < 0:
        raise InputError(f"the number of images to read must not be negative, got {read}")
    try:
        layout = detect_layout(root)
    except InputError as error:
        if not root.is_dir():
            raise
        inner = find_layouts(root)
        unusable = nested_class_folder(root, inner) or has_images(root)
        commands = () if unusable else tuple(f"navia doctor {shlex.quote(str(layout.root))}" for layout in inner[:4])
        return Diagnosis(
            "unknown", "no known layout", root, findings=(Finding("error", str(error)),), next_commands=commands
        )
    progress = progress or (lambda step, done, total: None)
    listed = list_parts(layout, progress)
    decoded = decode_some([place for part in listed for place in part.with_images], read, progress)
    published = identify(layout, listed)
    return Diagnosis(
        kind=layout.kind,
        title=published.title if published else _TITLES[layout.kind],
        root=root,
        parts=tuple(PartCount(part.part.name, part.part.path, part.images, len(part.class_names)) for part in listed),
        images=sum(part.images for part in listed),
        classes=len({name for part in listed for name in part.class_names}),
        per_class=_class_counts(root, listed),
        examined=decoded.count,
        sizes=_sizes(decoded),
        findings=find_all(layout, listed, decoded, published, model_classes),
        next_commands=_next_commands(layout, published, decoded),
    )


def _class_counts(root: Path, listed: Sequence[PartListing]) -> ClassCounts | None:
    """A number is odd if nearly all folders have another one, or else if it is ten times away from the median."""
    counts = {below(root, place.path): place.images for part in listed for place in part.inside if place.images}
    if not counts:
        return None
    usual, times = Counter(counts.values()).most_common(1)[0]
    median = float(statistics.median(counts.values()))
    low, high = (usual, usual) if len(counts) > 2 and times >= 0.9 * len(counts) else (median / 10, median * 10)
    odd = tuple(f"{folder} ({count})" for folder, count in counts.items() if not low <= count <= high)
    empty = tuple(below(root, place.path) for part in listed for place in part.empty)
    return ClassCounts(min(counts.values()), median, max(counts.values()), empty, odd)


def _sizes(decoded: Decoded) -> Sizes | None:
    if not decoded.sizes:
        return None
    by_area = sorted(decoded.sizes, key=lambda size: (size[0] * size[1], size))
    common, count = max(decoded.sizes.items(), key=lambda item: (item[1], item[0]))
    return Sizes(by_area[0], by_area[-1], common, count)


def _next_commands(layout: Layout, published: PublishedSet | None, decoded: Decoded) -> tuple[str, ...]:
    folder, reduce = shlex.quote(str(layout.root)), "--reduce tome:8"
    model = f"--model {MODEL if published or layout.kind == 'imagenet' else 'hf:MODEL_FOLDER'}"
    crop = " --crop-only" if decoded.cropped_side() == _MODEL_SIDE else ""
    again = (f"navia doctor {folder} --all",) if decoded.broken else ()
    run = f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop}"
    if published in (VALIDATION, TRAINING):
        return (
            *again,
            f"navia stats {folder} stats.safetensors {model} {reduce}{crop}",
            f"{run} --corruption fog",
            f"navia corrupt {folder} OUT{' --as-is' if crop else ''}",  # a second crop would cut off the margins
        )
    if crop:  # clean images are usually not cropped yet: a command of its own measures their statistics
        return (*again, f"navia stats CLEAN_DIR stats.safetensors {model} {reduce}", run)
    return (*again, f"navia run {folder} {model} --source CLEAN_DIR --method navia {reduce}")
