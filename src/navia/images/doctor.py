"""What is in a folder of images, what is wrong with it, and what to do with it next.

listing     every folder of the layout is listed once: counts, strangers, empty classes
reading     some images (or all) are decoded as a run would decode them: broken ones, sizes, modes, duplicates
findings    both are held against what the published data sets hold
"""

import hashlib
import re
import shlex
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from navia.errors import InputError
from navia.images import corruptions, imagenet
from navia.images.folder import SUFFIXES, open_image
from navia.images.layouts import (
    SEVERITIES,
    Layout,
    Part,
    class_wrapper,
    entries,
    has_images,
    is_image,
    layout_of,
    match_classes,
    recognise,
    usable_below,
)

MODEL = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
_MODEL_SIDE = 224
_CROPPED_SIDES = {224, 336, 384, 448, 518}  # what ViTs see; a folder of squares of such a size was cropped for one
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_UNREAD_PICTURES = {".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy", ".dng"}
_NEARLY = 150  # so many of the 200 classes of ImageNet-R or -A, and none else, are an incomplete copy

Told = Callable[[str, int, int], None]
"""Progress: what is being done, how much of it is done, of how much."""


@dataclass(frozen=True)
class Finding:
    """error: a run would stop or answer wrongly. warning: something is missing or odd. note: good to know."""

    severity: Literal["note", "warning", "error"]
    text: str


@dataclass(frozen=True)
class PartCount:
    name: str
    path: Path
    images: int
    classes: int


@dataclass(frozen=True)
class ClassCounts:
    """Images per class folder. odd: folders whose number stands out, as "folder (number)"."""

    smallest: int
    median: float
    largest: int
    empty: tuple[str, ...]
    odd: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """(width, height) among the examined images; common: the most frequent one, `common_count` times."""

    smallest: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[int, int]
    common_count: int


@dataclass(frozen=True)
class Diagnosis:
    """kind: as `layouts.Layout`, or "unknown". title: the same in words. classes: folders that hold images (of all parts
    together each name once). examined: how many images were decoded."""

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
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: paths as text."""
        parts = [{**asdict(part), "path": str(part.path)} for part in self.parts]
        return {**asdict(self), "root": str(self.root), "parts": parts}


@dataclass(frozen=True)
class _Published:
    """What a data set holds as published (ImageNet-C: each part). per_class None: differs from class to class."""

    title: str
    images: int
    per_class: int | None = None


_VALIDATION = _Published("ImageNet validation set", 50_000, 50)
_TRAINING = _Published("ImageNet training set", 1_281_167)
_SKETCH = _Published("ImageNet-Sketch", 50_889)
_PUBLISHED = {
    "imagenet-c": _Published("ImageNet-C", 50_000, 50),
    "imagenet-r": _Published("ImageNet-R", 30_000),
    "imagenet-a": _Published("ImageNet-A", 7_500),
    "imagenet-v2": _Published("ImageNet-V2", 10_000, 10),
}


@dataclass(frozen=True)
class _Place:
    """A folder that was listed: how many images, and the names of all else."""

    path: Path
    images: int
    shadows: int
    others: tuple[str, ...]
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class _Listed:
    """A part with its class folders, also those without images."""

    part: Part
    top: _Place
    inside: tuple[_Place, ...]

    @property
    def holders(self) -> tuple[_Place, ...]:
        return tuple(place for place in (self.top, *self.inside) if place.images)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(place.path.name for place in self.inside if place.images)

    @property
    def images(self) -> int:
        return sum(place.images for place in self.holders)

    @property
    def empty(self) -> list[_Place]:
        """Class folders in which images were expected; hidden folders never are."""
        bare = (place for place in self.inside if not place.images and not place.folders)
        return [place for place in bare if not place.path.name.startswith((".", "_", "@"))]


@dataclass
class _Read:
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


def examine(
    root: str | Path, *, model_classes: int | None = None, read: int | None = 200, progress: Told | None = None
) -> Diagnosis:
    """Look a folder over. model_classes: how many classes the model has, to check the class folders against.
    read: how many images to decode, spread evenly over the folder, the same ones each time; None: all."""
    root = Path(root)
    if read is not None and read < 0:
        raise InputError(f"the number of images to read must not be negative, got {read}")
    try:
        layout = recognise(root)
    except InputError as refusal:
        if not root.is_dir():
            raise
        return _unrecognised(root, refusal)
    told = progress or (lambda what, done, of: None)
    listed = _list(layout, told)
    seen = _read([place for part in listed for place in part.holders], read, told)
    published = _published(layout, listed)
    findings = (
        *_nesting(layout, listed),
        *(_corruptions(layout) if layout.kind == "imagenet-c" else ()),
        *_class_folders(layout, listed),
        *_counts(listed, published),
        *_strangers(layout, listed),
        *_pictures(root, seen, sum(part.images for part in listed)),
        *(_model(listed, model_classes) if model_classes is not None else ()),
    )
    ranked = sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))
    return Diagnosis(
        layout.kind,
        published.title if published else _plain_title(layout.kind),
        root,
        tuple(PartCount(part.part.name, part.part.path, part.images, len(part.class_names)) for part in listed),
        sum(part.images for part in listed),
        len({name for part in listed for name in part.class_names}),
        _class_counts(root, listed),
        seen.count,
        seen.summary(),
        tuple(ranked),
        _next_commands(layout, published, seen),
    )


# Listing


def _list(layout: Layout, told: Told) -> list[_Listed]:
    tops = [_look(part.path) for part in layout.parts]
    total, done = sum(len(top.folders) for top in tops), 0
    listed = []
    for part, top in zip(layout.parts, tops, strict=True):
        inside = []
        for folder in top.folders:
            inside.append(_look(folder))
            done += 1
            told("listing", done, total)
        listed.append(_Listed(part, top, tuple(inside)))
    return listed


def _look(folder: Path) -> _Place:
    images = shadows = 0
    others, inside = [], []
    for entry in entries(folder):
        if is_image(entry):
            images += 1
            shadows += entry.name.startswith("._")
        elif entry.is_dir():
            inside.append(Path(entry.path))
        else:
            others.append(entry.name)
    return _Place(folder, images, shadows, tuple(sorted(others)), tuple(sorted(inside)))


def _image_paths(place: _Place) -> list[Path]:
    return sorted(Path(entry.path) for entry in entries(place.path) if is_image(entry))


def _class_counts(root: Path, listed: Sequence[_Listed]) -> ClassCounts | None:
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
        tuple(_below(root, place.path) for part in listed for place in part.empty),
        tuple(f"{_below(root, path)} ({counts[path]})" for path in odd),
    )


# Reading


def _read(holders: Sequence[_Place], read: int | None, told: Told) -> _Read:
    total = sum(place.images for place in holders)
    wanted = total if read is None else min(read, total)
    seen = _Read()
    for path in _spread(holders, total, wanted):
        seen.look(path)
        told("reading", seen.count, wanted)
    return seen


def _spread(holders: Sequence[_Place], total: int, wanted: int) -> Iterator[Path]:
    """The middle image of each of `wanted` equal stretches; folders in which none lies are not listed again."""
    positions = iter([(2 * i + 1) * total // (2 * wanted) for i in range(wanted)])
    position, start = next(positions, None), 0
    for place in holders:
        if position is not None and position < start + place.images:
            paths = _image_paths(place)
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


# Findings


def _unrecognised(root: Path, refusal: InputError) -> Diagnosis:
    below = usable_below(root)
    wrapped = class_wrapper(root, below) or has_images(root)
    commands = () if wrapped else tuple(f"navia doctor {_quoted(layout.root)}" for layout in below[:4])
    return Diagnosis("unknown", "no known layout", root, findings=(Finding("error", str(refusal)),), next_commands=commands)


def _nesting(layout: Layout, listed: Sequence[_Listed]) -> Iterator[Finding]:
    """One level too deep or too shallow, though there are images where they were looked for."""
    root, here = layout.root, layout.root.resolve()
    if layout.kind == "flat" and imagenet.WNID.fullmatch(here.name):
        yield Finding("warning", f"this is one class folder by itself: use the folder above, {str(here.parent)!r}")
    elif layout.kind == "flat" and _image_paths(listed[0].top)[0].name.startswith("ILSVRC2012_val"):
        yield Finding("warning", "the validation set as downloaded has no labels: sort its files into wnid folders")
    elif _is_one_part(layout):
        yield Finding("note", f"one severity of one corruption; the data set is {str(here.parents[1])!r}")
    elif layout.kind == "imagenet-c" and here.name in corruptions.names(extra=True):
        yield Finding("note", f"one corruption of ImageNet-C; the data set is {str(here.parent)!r}")
    names = listed[0].class_names
    if layout.kind == "class folders" and all(name.lower() in _SPLITS for name in names):
        yield Finding("warning", f"{', '.join(names)} are no classes but splits: use {str(root / names[-1])!r}")
    for part in listed:
        if part.top.images and part.class_names:
            place = _below(root, part.part.path)
            yield Finding(
                "error", f"{place} holds images both directly and in class folders ({part.class_names[0]}, ...): keep one"
            )
    yield from _too_deep(root, listed)


def _too_deep(root: Path, listed: Sequence[_Listed]) -> Iterator[Finding]:
    deeper = [layout for part in listed for place in part.inside if (layout := _below_place(place))]
    if deeper:
        shown = _some([f"{str(layout.root)!r} ({layout.kind})" for layout in deeper])
        yield Finding("warning", f"images in {_number(len(deeper), 'folder')} lie too deep and are left out: {shown}")
    holders = [place for part in listed for place in part.inside if place.images]
    inner = [_below(root, folder) for place in holders for folder in place.folders if has_images(folder)]
    if inner:
        yield Finding(
            "warning", f"images in {_number(len(inner), 'folder')} inside class folders are left out: {_some(inner)}"
        )


def _below_place(place: _Place) -> Layout | None:
    """What a folder holds that has no images itself but folders."""
    if place.images or not place.folders:
        return None
    return layout_of(place.path) or next(iter(usable_below(place.path)), None)


def _corruptions(layout: Layout) -> Iterator[Finding]:
    there: defaultdict[str, set[str]] = defaultdict(set)
    for part in layout.parts:
        corruption, severity = part.name.split("/")
        there[corruption].add(severity)
    missing = [name for name in corruptions.names() if name not in there]
    if missing:
        yield Finding("warning", f"{len(missing)} of 15 corruptions are missing: {', '.join(missing)}")
    extra = [name for name in corruptions.CORRUPTIONS["extra"] if name in there]
    if extra:
        yield Finding("note", f"{len(extra)} of the 4 extra corruptions: {', '.join(extra)}")
    everywhere = set().union(*there.values())
    if everywhere != set(SEVERITIES):
        yield Finding("note", f"severities {', '.join(sorted(everywhere))} only")
    for name, own in there.items():
        if own != everywhere:
            yield Finding("warning", f"{name} lacks severity {', '.join(sorted(everywhere - own))}")


def _class_folders(layout: Layout, listed: Sequence[_Listed]) -> Iterator[Finding]:
    empty = [_below(layout.root, place.path) for part in listed for place in part.empty]
    if empty and layout.kind != "flat":
        limits = layout.kind in ("imagenet-r", "imagenet-a")
        result = "; until they are filled, answers are not limited to the data set's 200 classes" if limits else ""
        yield Finding("warning", f"{_number(len(empty), 'class folder')} without images: {_some(empty)}{result}")
    known = imagenet.class_index()
    yield from _grouped([(part, _missing_folders(layout, part)) for part in listed])
    names = listed[0].class_names
    strange = [name for name in names if name not in known]
    if layout.kind == "class folders" and len(strange) < len(names):
        text = (
            f"{len(names) - len(strange)} of {len(names)} class folders are ImageNet's, the others are not: {_some(strange)}"
        )
        yield Finding("warning", f"{text}; move one kind away, or labels cannot be matched")
    elif layout.kind == "class folders" and names and all(imagenet.WNID.fullmatch(name) for name in names):
        yield Finding("note", "class folders are wnids, but none of ImageNet's 1000")
    elif layout.kind == "class folders" and names and all(name.isdecimal() for name in names):
        yield Finding(
            "note", f"class folders are numbers ({_some(sorted(names, key=int))}): taken as the model's class numbers"
        )
    if layout.kind == "imagenet":
        yield from _nearly([known[place.path.name] for place in listed[0].inside if place.path.name in known])


def _missing_folders(layout: Layout, part: _Listed) -> Finding | None:
    """Of ImageNet's 1000; empty ones are told elsewhere."""
    if layout.kind == "imagenet-v2":
        there = sum(place.path.name.isdecimal() for place in part.inside)
    else:
        there = sum(place.path.name in imagenet.class_index() for place in part.inside)
    if layout.kind in ("imagenet-r", "imagenet-a", "class folders", "flat") or there in (0, 1000):
        return None
    return Finding("warning", f"{_number(1000 - there, 'class folder')} of 1,000 missing")


def _nearly(classes: Sequence[int]) -> Iterator[Finding]:
    for title, whole in (("ImageNet-R", imagenet.r_classes()), ("ImageNet-A", imagenet.a_classes())):
        missing = sorted(set(whole) - set(classes))
        if missing and set(classes) < set(whole) and len(classes) >= _NEARLY:
            shown = _some([imagenet.wnids()[label] for label in missing])
            yield Finding(
                "warning",
                f"all are classes of {title}, but {len(missing)} of its 200 are missing ({shown}): it is taken for a subset "
                "of ImageNet and answers are not limited to the 200 classes",
            )


def _counts(listed: Sequence[_Listed], published: _Published | None) -> Iterator[Finding]:
    if published is not None:
        yield from _grouped([(part, _against(part, published)) for part in listed])
    numbers = Counter(part.images for part in listed)
    if len(numbers) > 1:
        usual = numbers.most_common(1)[0][0]
        other = [f"{part.part.name} ({part.images:,})" for part in listed if part.images != usual]
        yield Finding("warning", f"parts differ: most hold {_number(usual, 'image')}, but {_some(other)}")


def _against(part: _Listed, published: _Published) -> Finding | None:
    if part.images == published.images:
        return Finding("note", f"complete: {part.images:,} images, as published")
    if part.images > published.images:
        return Finding("warning", f"{part.images:,} images are more than the published {published.images:,}")
    each = {place.images for place in part.holders}
    if len(each) == 1 and part.class_names:
        whole = f" of {published.per_class}" if published.per_class else ""
        return Finding("note", f"a subset: {part.images:,} of {published.images:,} images, {each.pop()}{whole} per class")
    return Finding("warning", f"{part.images:,} of the published {published.images:,} images: a subset, or not all arrived")


def _strangers(layout: Layout, listed: Sequence[_Listed]) -> Iterator[Finding]:
    above = [_look(folder) for folder in _between(layout)]
    outside = [*_folders_outside(layout, listed), *_folders_beside_parts(layout, above)]
    if outside:
        shown = _some([_below(layout.root, folder) for folder in outside])
        yield Finding("warning", f"{_number(len(outside), 'folder')} not part of the layout, ignored: {shown}")
    places = [*above, *(place for part in listed for place in (part.top, *part.inside))]
    shadows = sum(place.shadows for place in places)
    if shadows:
        yield Finding(
            "error", f"{_number(shadows, 'file')} called ._* count as images but are macOS's attributes: delete them"
        )
    others = [place.path / name for place in places for name in place.others]
    pictures = [_below(layout.root, path) for path in others if path.suffix.lower() in _UNREAD_PICTURES]
    if pictures:
        text = f"{_number(len(pictures), 'picture')} of a kind that is not read, ignored: {_some(pictures)}"
        yield Finding("warning", f"{text} (read are {', '.join(sorted(SUFFIXES))})")
    links = [_below(layout.root, path) for path in others if path.suffix.lower() in SUFFIXES]
    if links:
        yield Finding("warning", f"{_number(len(links), 'image')} behind links that lead nowhere, ignored: {_some(links)}")
    rest = [_below(layout.root, path) for path in others if path.suffix.lower() not in _UNREAD_PICTURES | SUFFIXES]
    if rest:
        yield Finding("note", f"not images, ignored: {_number(len(rest), 'file')}, {_some(rest)}")


def _folders_outside(layout: Layout, listed: Sequence[_Listed]) -> list[Path]:
    """Neither class folders, nor empty ones, nor such that hold images deeper (these are told elsewhere)."""
    expected = {place.path for part in listed for place in part.empty} if layout.kind != "flat" else set()
    bare = [place for part in listed for place in part.inside if not place.images and place.path not in expected]
    return [place.path for place in bare if _below_place(place) is None]


def _folders_beside_parts(layout: Layout, above: Sequence[_Place]) -> list[Path]:
    expected = {part.path for part in layout.parts} | {place.path for place in above}
    return [folder for place in above for folder in place.folders if folder not in expected]


def _between(layout: Layout) -> list[Path]:
    """The folders of ImageNet-C from the root down to above its parts; of other layouts none."""
    found: set[Path] = set()
    for part in layout.parts:
        folder = part.path
        while folder != layout.root:
            folder = folder.parent
            found.add(folder)
    return sorted(found)


def _pictures(root: Path, seen: _Read, total: int) -> Iterator[Finding]:
    of = f"of {seen.count:,} examined"
    if seen.broken:
        shown = _some([f"{_below(root, path)} ({reason})" for path, reason in seen.broken])
        yield Finding("error", f"{_number(len(seen.broken), 'image')} {of} cannot be read: {shown}")
    if seen.small:
        shown = _some([_below(root, path) for path in seen.small])
        limit = corruptions.SMALLEST_SIDE
        yield Finding("warning", f"{_number(len(seen.small), 'image')} {of} below {limit} px on a side: {shown}")
    groups = seen.duplicates()
    if groups:
        shown = _some([" = ".join(_below(root, path) for path in group[:3]) for group in groups])
        yield Finding(
            "warning", f"{_number(len(groups), 'group')} of identical files among {seen.count:,} examined: {shown}"
        )
    for trait, text in (
        ("grey", "greyscale"),
        ("cmyk", "CMYK, converted to RGB"),
        ("frames", "with several frames, the first is used"),
        ("deep", "with more than 8 bits, cut to 8 bits"),
    ):
        if seen.traits[trait]:
            severity: Literal["note", "warning"] = "warning" if trait == "deep" else "note"
            yield Finding(severity, f"{_number(seen.traits[trait], 'image')} {of} {text}")
    side = _cropped_side(seen)
    if side:
        yield Finding("note", f"all examined images are {side}x{side} px, cropped for a model of that size: use --crop-only")
    if seen.count < total:
        yield Finding("note", f"{seen.count:,} of {total:,} images were decoded: --all decodes every one")


def _model(listed: Sequence[_Listed], model_classes: int) -> Iterator[Finding]:
    if not any(part.class_names for part in listed):
        yield Finding("note", "no class folders: answers can be given, but not scored")
        return
    model_names = imagenet.names() if model_classes == len(imagenet.names()) else None
    for names in sorted({part.class_names for part in listed if part.class_names}):
        try:
            mask = match_classes(names, model_classes, model_names).mask
        except InputError as refusal:
            yield Finding("error", str(refusal))
        else:
            limited = f", answers limited to {len(mask)} classes" if mask else ""
            yield Finding(
                "note", f"{_number(len(names), 'class folder')} match a model of {model_classes:,} classes{limited}"
            )


def _grouped(findings: Sequence[tuple[_Listed, Finding | None]]) -> Iterator[Finding]:
    """What several parts have in common is said once."""
    groups: dict[Finding, list[str]] = defaultdict(list)
    for part, finding in findings:
        if finding is not None:
            groups[finding].append(part.part.name)
    for finding, names in groups.items():
        if len(findings) == 1:
            yield finding
        else:
            who = f"each of {len(names)} parts" if len(names) == len(findings) else _some(names)
            yield Finding(finding.severity, f"{who}: {finding.text}")


# What it is, and what next


def _published(layout: Layout, listed: Sequence[_Listed]) -> _Published | None:
    """The folder names tell most data sets, the file names those that share all 1000 wnids."""
    if layout.kind == "imagenet-c" and not any(set(part.class_names) & imagenet.class_index().keys() for part in listed):
        return None  # somebody's own images in its layout
    if _is_one_part(layout):
        return replace(_PUBLISHED["imagenet-c"], title="one part of ImageNet-C")
    if layout.kind != "imagenet":
        return _PUBLISHED.get(layout.kind)
    first, images = _image_paths(listed[0].holders[0])[0].name, listed[0].images
    if first.startswith("ILSVRC2012_val") or images == _VALIDATION.images:
        return _VALIDATION
    if first.startswith("sketch_") or images == _SKETCH.images:
        return _SKETCH
    return _TRAINING if re.match(r"n\d{8}_\d+\.", first) else None


def _plain_title(kind: str) -> str:
    titles = {
        "imagenet": "images of ImageNet's classes",
        "imagenet-c": "corrupted images in ImageNet-C's layout",
        "class folders": "images in class folders",
        "flat": "images without classes",
    }
    return titles[kind]


def _is_one_part(layout: Layout) -> bool:
    """ImageNet-C/fog/3 by itself looks like the validation set, but is not clean."""
    here = layout.root.resolve()
    return layout.kind == "imagenet" and here.name in SEVERITIES and here.parent.name in corruptions.names(extra=True)


def _cropped_side(seen: _Read) -> int | None:
    """All square and of one size that models see: no camera makes that."""
    if len(seen.sizes) != 1 or seen.count < 2:
        return None
    width, height = next(iter(seen.sizes))
    return width if width == height and width in _CROPPED_SIDES else None


def _next_commands(layout: Layout, published: _Published | None, seen: _Read) -> tuple[str, ...]:
    folder, reduce = _quoted(layout.root), "--reduce tome:8"
    model = f"--model {MODEL if published or layout.kind == 'imagenet' else 'hf:MODEL_FOLDER'}"
    crop = " --crop-only" if _cropped_side(seen) == _MODEL_SIDE else ""
    again = (f"navia doctor {folder} --all",) if seen.broken else ()
    if published in (_VALIDATION, _TRAINING):
        return (
            *again,
            f"navia stats {folder} stats.safetensors {model} {reduce}{crop}",
            f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop} --corruption fog",
            f"navia corrupt {folder} OUT{' --as-is' if crop else ''}",  # a second crop would cut off the margins
        )
    if crop:  # clean images are usually not cropped yet: their statistics are measured by a command of their own
        return (
            *again,
            f"navia stats CLEAN_DIR stats.safetensors {model} {reduce}",
            f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop}",
        )
    return (*again, f"navia run {folder} {model} --source CLEAN_DIR --method navia {reduce}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
