"""What is in a folder of images, what is wrong with it, and which commands to run next."""

import hashlib
import json
import re
import shlex
import statistics
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image, UnidentifiedImageError

from navia.data import corruptions, imagenet, layouts
from navia.data.layouts import SEVERITIES, SUFFIXES, Layout, Part, find_layouts, has_images
from navia.data.preprocessing import decode
from navia.errors import InputError
from navia.io import printable

MODEL = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
_MODEL_SIDE = 224
_INPUT_SIDES = {224, 336, 384, 448, 518}  # of ViTs; a folder of squares of such a size was cropped for one
_NEARLY_ALL = 150  # so many of the 200 classes of ImageNet-R or -A, and no others, are an incomplete copy
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_UNREAD_FORMATS = {".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy", ".dng"}
_TITLES = {
    "imagenet": "images of ImageNet's classes",
    "imagenet-c": "corrupted images in ImageNet-C's layout",
    "class folders": "images in class folders",
    "flat": "images without classes",
}

Severity = Literal["note", "warning", "error"]
Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""


class PublishedSet(NamedTuple):
    """Content of a dataset as published (ImageNet-C: of each part). per_class None: differs between classes."""

    title: str
    images: int
    per_class: int | None = None


_VALIDATION = PublishedSet("ImageNet validation set", 50_000, 50)
_TRAINING = PublishedSet("ImageNet training set", 1_281_167)
_SKETCH = PublishedSet("ImageNet-Sketch", 50_889)
_PUBLISHED = {
    "imagenet-c": PublishedSet("ImageNet-C", 50_000, 50),
    "imagenet-r": PublishedSet("ImageNet-R", 30_000),
    "imagenet-a": PublishedSet("ImageNet-A", 7_500),
    "imagenet-v2": PublishedSet("ImageNet-V2", 10_000, 10),
}


@dataclass(frozen=True)
class Finding:
    """error: a run would stop or give wrong results. warning: something is missing or unusual. note: good to know."""

    severity: Severity
    text: str


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
        return dict(json.loads(json.dumps(asdict(self), default=str)))


def examine(
    root: str | Path, *, model_classes: int | None = None, read: int | None = 200, progress: Progress | None = None
) -> Diagnosis:
    """Examine a folder of images. model_classes: number of classes of the model, to check the class folders against.
    read: number of images to decode, spread evenly over the folder and always the same; None: all."""
    root = Path(root)
    if read is not None and read < 0:
        raise InputError(f"the number of images to read must not be negative, got {read}")
    try:
        layout = layouts.detect_layout(root)
    except InputError as error:
        if not root.is_dir():
            raise
        inner = find_layouts(root)
        unusable = layouts.nested_class_folder(root, inner) or has_images(root)
        commands = () if unusable else tuple(f"navia doctor {shlex.quote(str(layout.root))}" for layout in inner[:4])
        return Diagnosis(
            "unknown", "no known layout", root, findings=(Finding("error", str(error)),), next_commands=commands
        )
    progress = progress or (lambda step, done, total: None)
    listed = _list_parts(layout, progress)
    paths = [(place.path, name) for part in listed for place in part.with_images for name in place.images]
    wanted = len(paths) if read is None else min(read, len(paths))
    decoded = _Decoded()
    for i in range(wanted):
        decoded.add(Path(*paths[(2 * i + 1) * len(paths) // (2 * wanted)]))
        progress("reading", i + 1, wanted)
    published = _identify(layout, listed)
    findings = (
        *_location(layout, listed),
        *(_corruptions(layout) if layout.kind == "imagenet-c" else ()),
        *_class_folders(layout, listed),
        *_counts(layout.kind, listed, published),
        *_other_entries(layout, listed),
        *_images(root, decoded, len(paths)),
        *(_model(listed, model_classes) if model_classes is not None else ()),
    )
    return Diagnosis(
        kind=layout.kind,
        title=published.title if published else _TITLES[layout.kind],
        root=root,
        parts=tuple(PartCount(part.part.name, part.part.path, part.images, len(part.class_names)) for part in listed),
        images=len(paths),
        classes=len({name for part in listed for name in part.class_names}),
        per_class=_class_counts(root, listed),
        examined=decoded.count,
        sizes=_sizes(decoded.sizes),
        findings=tuple(sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))),
        next_commands=_next_commands(layout, published, decoded),
    )


class _Place:
    """One listed folder: names of its images and of other files, and sub-folders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images: list[str] = []
        self.others: list[str] = []
        self.folders: list[Path] = []
        for entry in sorted(layouts.entries(path), key=lambda entry: entry.name):
            if layouts.is_image(entry):
                self.images.append(sys.intern(entry.name))  # the parts of ImageNet-C have the same 50,000 names
            elif entry.is_dir():
                self.folders.append(Path(entry.path))
            else:
                self.others.append(entry.name)


class _PartListing(NamedTuple):
    """A part of the layout. top: its own folder. inside: its class folders, with or without images."""

    part: Part
    top: _Place
    inside: list[_Place]

    @property
    def with_images(self) -> list[_Place]:
        return [place for place in (self.top, *self.inside) if place.images]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(place.path.name for place in self.inside if place.images)

    @property
    def images(self) -> int:
        return sum(len(place.images) for place in self.with_images)

    @property
    def empty(self) -> list[_Place]:
        """Class folders without images; hidden folders do not count."""
        bare = (place for place in self.inside if not place.images and not place.folders)
        return [place for place in bare if not place.path.name.startswith((".", "_", "@"))]


def _list_parts(layout: Layout, progress: Progress) -> list[_PartListing]:
    listed = [_PartListing(part, _Place(part.path), []) for part in layout.parts]
    folders = [(part, folder) for part in listed for folder in part.top.folders]
    for done, (part, folder) in enumerate(folders, 1):
        part.inside.append(_Place(folder))
        progress("listing", done, len(folders))
    return listed


@dataclass
class _Decoded:
    """Properties of the decoded images. modes: how many are greyscale, CMYK, deeper than 8 bits or of several frames."""

    count: int = 0
    broken: list[tuple[Path, str]] = field(default_factory=list)
    small: list[Path] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    by_digest: defaultdict[bytes, list[Path]] = field(default_factory=lambda: defaultdict(list))

    def add(self, path: Path) -> None:
        self.count += 1
        try:
            data = path.read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF data and of large images
                image = decode(BytesIO(data), path.name)
                frames = int(getattr(Image.open(BytesIO(data)), "n_frames", 1))
        except Exception as error:  # Pillow's decoders raise anything on damaged files
            cause = error.__cause__ or error
            unknown = isinstance(cause, UnidentifiedImageError)
            self.broken.append((path, "unknown image format" if unknown else str(cause) or type(cause).__name__))
            return
        self.by_digest[hashlib.sha256(data).digest()].append(path)
        self.sizes[image.size] += 1
        self.modes["greyscale"] += image.mode in ("1", "L", "LA", "La")
        self.modes["CMYK, converted to RGB"] += image.mode == "CMYK"
        self.modes["with several frames, the first is used"] += frames > 1
        self.modes["with more than 8 bits, cut to 8 bits"] += image.mode == "F" or image.mode.startswith("I")
        if min(image.size) < corruptions.MIN_SIDE:
            self.small.append(path)

    def cropped_side(self) -> int | None:
        """Side of the images if all are squares of a size that models take, so that they were cropped before."""
        if len(self.sizes) != 1 or self.count < 2:
            return None
        width, height = next(iter(self.sizes))
        return width if width == height and width in _INPUT_SIDES else None


def _class_counts(root: Path, listed: Sequence[_PartListing]) -> ClassCounts | None:
    """A number is odd if nearly all folders have another one, or else if it is ten times away from the median."""
    counts = {_below(root, place.path): len(place.images) for part in listed for place in part.inside if place.images}
    if not counts:
        return None
    usual, times = Counter(counts.values()).most_common(1)[0]
    median = float(statistics.median(counts.values()))
    low, high = (usual, usual) if len(counts) > 2 and times >= 0.9 * len(counts) else (median / 10, median * 10)
    odd = tuple(f"{folder} ({count})" for folder, count in counts.items() if not low <= count <= high)
    empty = tuple(_below(root, place.path) for part in listed for place in part.empty)
    return ClassCounts(min(counts.values()), median, max(counts.values()), empty, odd)


def _sizes(sizes: Counter[tuple[int, int]]) -> Sizes | None:
    if not sizes:
        return None
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return Sizes(by_area[0], by_area[-1], *max(sizes.items(), key=lambda item: (item[1], item[0])))


def _next_commands(layout: Layout, published: PublishedSet | None, decoded: _Decoded) -> tuple[str, ...]:
    folder, reduce = shlex.quote(str(layout.root)), "--reduce tome:8"
    model = f"--model {MODEL if published or layout.kind == 'imagenet' else 'hf:MODEL_FOLDER'}"
    crop = " --crop-only" if decoded.cropped_side() == _MODEL_SIDE else ""
    again = (f"navia doctor {folder} --all",) if decoded.broken else ()
    stats = f"navia stats {{}} -o stats.safetensors {model} {reduce}"
    run = f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop}"
    if published in (_VALIDATION, _TRAINING):
        corrupt = f"navia corrupt {folder} -o OUT{' --as-is' if crop else ''}"  # a second crop would cut off the margins
        return (*again, stats.format(folder) + crop, f"{run} --corruption fog", corrupt)
    if crop:  # clean images are usually not cropped yet: a command of its own measures their statistics
        return (*again, stats.format("CLEAN_DIR"), run)
    return (*again, f"navia run {folder} {model} --source CLEAN_DIR --method navia {reduce}")


def _identify(layout: Layout, listed: Sequence[_PartListing]) -> PublishedSet | None:
    """The published dataset, by folder names, or by file names and counts where several have all 1000 wnids."""
    if layout.kind == "imagenet-c" and not any(set(part.class_names) & imagenet.class_index().keys() for part in listed):
        return None  # other images in its layout
    if _is_one_part(layout):
        return _PUBLISHED["imagenet-c"]._replace(title="one part of ImageNet-C")
    if layout.kind != "imagenet":
        return _PUBLISHED.get(layout.kind)
    first, images = listed[0].with_images[0].images[0], listed[0].images
    if first.startswith("ILSVRC2012_val") or images == _VALIDATION.images:
        return _VALIDATION
    if first.startswith("sketch_") or images == _SKETCH.images:
        return _SKETCH
    return _TRAINING if re.match(r"n\d{8}_\d+\.", first) else None


def _is_one_part(layout: Layout) -> bool:
    """ImageNet-C/fog/3 by itself looks like the validation set, but is not clean."""
    here = layout.root.resolve()
    return layout.kind == "imagenet" and here.name in SEVERITIES and here.parent.name in corruptions.names(extra=True)


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(severity: Severity, names: Sequence[str], noun: str, text: str) -> Iterator[Finding]:
    """One finding about all of `names`, none without names. text: with {count} and {names}."""
    if names:
        yield Finding(severity, text.format(count=_count(len(names), noun), names=_shorten(names)))


def _location(layout: Layout, listed: Sequence[_PartListing]) -> Iterator[Finding]:
    """A level too deep or too high, though there are images."""
    root, here, names = layout.root, layout.root.resolve(), listed[0].class_names
    if layout.kind == "flat" and imagenet.WNID.fullmatch(here.name):
        yield Finding("warning", f"this is a single class folder: use its parent folder, {str(here.parent)!r}")
    elif layout.kind == "flat" and listed[0].top.images[0].startswith("ILSVRC2012_val"):
        yield Finding("warning", "the validation set as downloaded has no labels: sort its files into wnid folders")
    elif _is_one_part(layout):
        yield Finding("note", f"one severity of one corruption; the dataset is {str(here.parents[1])!r}")
    elif layout.kind == "imagenet-c" and here.name in corruptions.names(extra=True):
        yield Finding("note", f"one corruption of ImageNet-C; the dataset is {str(here.parent)!r}")
    if layout.kind == "class folders" and all(name.lower() in _SPLITS for name in names):
        yield Finding("warning", f"{', '.join(names)} are splits, not classes: use {str(root / names[-1])!r}")
    for part in listed:
        if part.top.images and part.class_names:
            text = f"images both directly and in class folders ({part.class_names[0]}, ...): keep one"
            yield Finding("error", f"{_below(root, part.part.path)} holds {text}")
    places = [place for part in listed for place in part.inside]
    deep = [f"{str(inner.root)!r} ({inner.kind})" for place in places if (inner := _layout_inside(place))]
    yield from _listed("warning", deep, "folder", "images in {count} are too deep and not read: {names}")
    lower = [_below(root, folder) for place in places if place.images for folder in place.folders if has_images(folder)]
    yield from _listed("warning", lower, "folder", "images in {count} inside class folders are not read: {names}")


def _layout_inside(place: _Place) -> Layout | None:
    """Layout of a folder that has sub-folders but no images itself."""
    if place.images or not place.folders:
        return None
    return layouts.detect_or_none(place.path) or next(iter(find_layouts(place.path)), None)


def _corruptions(layout: Layout) -> Iterator[Finding]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for part in layout.parts:
        corruption, severity = part.name.split("/")
        found[corruption].add(severity)
    missing = [name for name in corruptions.names() if name not in found]
    if missing:
        yield Finding("warning", f"{len(missing)} of 15 corruptions are missing: {', '.join(missing)}")
    extra = [name for name in corruptions.CORRUPTIONS["extra"] if name in found]
    if extra:
        yield Finding("note", f"{len(extra)} of the 4 extra corruptions: {', '.join(extra)}")
    severities = set().union(*found.values())
    if severities != set(SEVERITIES):
        yield Finding("note", f"severities {', '.join(sorted(severities))} only")
    for name, own in found.items():
        if own != severities:
            yield Finding("warning", f"{name} lacks severity {', '.join(sorted(severities - own))}")


def _class_folders(layout: Layout, listed: Sequence[_PartListing]) -> Iterator[Finding]:
    kind, known, names = layout.kind, imagenet.class_index(), listed[0].class_names
    unlimited = "predictions are not limited to the 200 classes"
    empty = [_below(layout.root, place.path) for part in listed for place in part.empty if kind != "flat"]
    until = f"; until they are filled, {unlimited}" if kind in ("imagenet-r", "imagenet-a") else ""
    yield from _listed("warning", empty, "class folder", "{count} without images: {names}" + until)
    if kind == "class folders":
        others = [name for name in names if name not in known]
        if len(others) < len(names):
            text = f"{len(names) - len(others)} of {len(names)} class folders are ImageNet's, the others are not"
            yield Finding("warning", f"{text}: {_shorten(others)}; separate them, or labels cannot be matched")
        elif all(imagenet.WNID.fullmatch(name) for name in names):
            yield Finding("note", "class folders are wnids, but none of ImageNet's 1000")
        elif all(name.isdecimal() for name in names):
            shown = _shorten(sorted(names, key=int))
            yield Finding("note", f"class folders are numbers ({shown}): used as the model's class numbers")
    if kind == "imagenet":
        classes = {known[place.path.name] for place in listed[0].inside if place.path.name in known}
        for title, whole in (("ImageNet-R", imagenet.r_classes()), ("ImageNet-A", imagenet.a_classes())):
            if classes < set(whole) and len(classes) >= _NEARLY_ALL:
                missing = [imagenet.wnids()[label] for label in sorted(set(whole) - classes)]
                text = f"all are classes of {title}, but {len(missing)} of its 200 are missing ({_shorten(missing)})"
                yield Finding("warning", f"{text}: it is read as a subset of ImageNet, and {unlimited}")


def _counts(kind: str, listed: Sequence[_PartListing], published: PublishedSet | None) -> Iterator[Finding]:
    """Missing class folders and images; what several parts have in common is reported once."""
    groups: dict[Finding, list[str]] = defaultdict(list)
    for part in listed:
        for finding in _part_counts(kind, part, published):
            groups[finding].append(part.part.name)
    for finding, names in groups.items():
        parts = f"each of {len(names)} parts" if len(names) == len(listed) else _shorten(names)
        yield finding if len(listed) == 1 else Finding(finding.severity, f"{parts}: {finding.text}")
    usual = Counter(part.images for part in listed).most_common(1)[0][0]
    others = [f"{part.part.name} ({part.images:,})" for part in listed if part.images != usual]
    yield from _listed("warning", others, "part", f"parts differ: most hold {_count(usual, 'image')}, but {{names}}")


def _part_counts(kind: str, part: _PartListing, published: PublishedSet | None) -> Iterator[Finding]:
    if kind in ("imagenet", "imagenet-c", "imagenet-v2"):  # empty class folders are reported separately
        names = [place.path.name for place in part.inside]
        found = sum(name.isdecimal() if kind == "imagenet-v2" else name in imagenet.class_index() for name in names)
        if 0 < found < 1000:
            yield Finding("warning", f"{_count(1000 - found, 'class folder')} of 1,000 missing")
    if published is None:
        return
    each = {len(place.images) for place in part.with_images}
    if part.images == published.images:
        yield Finding("note", f"complete: {part.images:,} images, as published")
    elif part.images > published.images:
        yield Finding("warning", f"{part.images:,} images are more than the published {published.images:,}")
    elif len(each) == 1 and part.class_names:
        whole = f" of {published.per_class}" if published.per_class else ""
        yield Finding("note", f"a subset: {part.images:,} of {published.images:,} images, {each.pop()}{whole} per class")
    else:
        text = f"{part.images:,} of the published {published.images:,} images"
        yield Finding("warning", f"{text}: a subset, or an incomplete copy")


def _other_entries(layout: Layout, listed: Sequence[_PartListing]) -> Iterator[Finding]:
    """Folders and files that are not part of the layout."""
    root = layout.root
    between = {folder for part in layout.parts for folder in part.path.parents if folder.is_relative_to(root)}
    above = [_Place(folder) for folder in sorted(between if layout.kind == "imagenet-c" else ())]
    places = [*above, *(place for part in listed for place in (part.top, *part.inside))]
    expected = {place.path for place in above} | {part.path for part in layout.parts}
    if layout.kind != "flat":
        expected |= {place.path for part in listed for place in part.empty}
    bare = [place for part in listed for place in part.inside if not place.images and _layout_inside(place) is None]
    candidates = [*(place.path for place in bare), *(folder for place in above for folder in place.folders)]
    outside = [_below(root, folder) for folder in candidates if folder not in expected]
    yield from _listed("warning", outside, "folder", "{count} not part of the layout, ignored: {names}")
    images = [(place.path, name) for place in places for name in place.images]
    apple = [name for _, name in images if name.startswith("._")]
    yield from _listed("error", apple, "file", "{count} named ._* have an image suffix but are macOS metadata: delete them")
    others = [(_below(root, place.path / name), Path(name).suffix.lower()) for place in places for name in place.others]
    text = f"{{count}} in formats that are not read, ignored: {{names}} (read are {', '.join(sorted(SUFFIXES))})"
    yield from _listed("warning", [name for name, suffix in others if suffix in _UNREAD_FORMATS], "image", text)
    links = [name for name, suffix in others if suffix in SUFFIXES]
    yield from _listed("warning", links, "image", "{count} behind broken links, ignored: {names}")
    not_utf8 = [_below(root, folder / name) for folder, name in images if printable(name) != name]
    inside = (place.path for place in places if place.images and place.path != root)
    not_utf8 += [f"{_below(root, folder)}/" for folder in inside if printable(folder.name) != folder.name]
    text = "a CSV file keeps their bytes, elsewhere such a byte is written as \\udcXX"
    yield from _listed("note", not_utf8, "name", f"{{count}} that are not valid UTF-8: {{names}} ({text})")
    rest = [name for name, suffix in others if suffix not in _UNREAD_FORMATS | SUFFIXES]
    yield from _listed("note", rest, "file", "not images, ignored: {count}, {names}")


def _images(root: Path, decoded: _Decoded, total: int) -> Iterator[Finding]:
    of = f"{{count}} of {decoded.count:,} examined"
    broken = [f"{_below(root, path)} ({reason})" for path, reason in decoded.broken]
    yield from _listed("error", broken, "image", f"{of} cannot be read: {{names}}")
    small = [_below(root, path) for path in decoded.small]
    yield from _listed("warning", small, "image", f"{of} below {corruptions.MIN_SIDE} px on a side: {{names}}")
    groups = sorted(paths for paths in decoded.by_digest.values() if len(paths) > 1)
    same = [" = ".join(_below(root, path) for path in paths[:3]) for paths in groups]
    text = f"{{count}} of identical files among {decoded.count:,} examined: {{names}}"
    yield from _listed("warning", same, "group", text)
    for mode, count in decoded.modes.items():
        if count:
            severity: Severity = "warning" if "8 bits" in mode else "note"
            yield Finding(severity, f"{_count(count, 'image')} of {decoded.count:,} examined {mode}")
    side = decoded.cropped_side()
    if side:
        yield Finding("note", f"all examined images are {side}x{side} px, cropped for a model of that size: use --crop-only")
    if decoded.count < total:
        yield Finding("note", f"{decoded.count:,} of {total:,} images were decoded: --all decodes every one")


def _model(listed: Sequence[_PartListing], model_classes: int) -> Iterator[Finding]:
    if not any(part.class_names for part in listed):
        yield Finding("note", "no class folders: the model can predict, but accuracy is unknown")
    model_names = imagenet.names() if model_classes == len(imagenet.names()) else None
    for names in sorted({part.class_names for part in listed if part.class_names}):
        try:
            classes = layouts.match_classes(names, model_classes, model_names).class_indices
        except InputError as error:
            yield Finding("error", str(error))
        else:
            limited = f", predictions limited to {len(classes)} classes" if classes else ""
            folders = _count(len(names), "class folder")
            yield Finding("note", f"{folders} match a model of {model_classes:,} classes{limited}")
