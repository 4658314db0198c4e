"""What is wrong with a folder of images, incomplete, or good to know."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from navia.data import corruptions, imagenet
from navia.data.doctor.inventory import Decoded, PartListing, Place
from navia.data.layouts import SEVERITIES, SUFFIXES, Layout, detect_or_none, find_layouts, has_images, match_classes
from navia.errors import InputError
from navia.io import printable

_NEARLY_ALL = 150  # so many of the 200 classes of ImageNet-R or -A, and no others, are an incomplete copy
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}
_MODES = {
    "grey": "greyscale",
    "cmyk": "CMYK, converted to RGB",
    "frames": "with several frames, the first is used",
    "deep": "with more than 8 bits, cut to 8 bits",
}
Severity = Literal["note", "warning", "error"]
_UNREAD_FORMATS = {".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".npy", ".dng"}


@dataclass(frozen=True)
class Finding:
    """error: a run would stop or give wrong results. warning: something is missing or odd. note: good to know."""

    severity: Severity
    text: str


@dataclass(frozen=True)
class PublishedSet:
    """Content of a dataset as published (ImageNet-C: of each part). per_class None: differs between classes."""

    title: str
    images: int
    per_class: int | None = None


VALIDATION = PublishedSet("ImageNet validation set", 50_000, 50)
TRAINING = PublishedSet("ImageNet training set", 1_281_167)
_SKETCH = PublishedSet("ImageNet-Sketch", 50_889)
_PUBLISHED = {
    "imagenet-c": PublishedSet("ImageNet-C", 50_000, 50),
    "imagenet-r": PublishedSet("ImageNet-R", 30_000),
    "imagenet-a": PublishedSet("ImageNet-A", 7_500),
    "imagenet-v2": PublishedSet("ImageNet-V2", 10_000, 10),
}


def identify(layout: Layout, listed: Sequence[PartListing]) -> PublishedSet | None:
    """The published dataset, by folder names, or by file names and counts where several have all 1000 wnids."""
    if layout.kind == "imagenet-c" and not any(set(part.class_names) & imagenet.class_index().keys() for part in listed):
        return None  # other images in its layout
    if _is_one_part(layout):
        return replace(_PUBLISHED["imagenet-c"], title="one part of ImageNet-C")
    if layout.kind != "imagenet":
        return _PUBLISHED.get(layout.kind)
    first, images = listed[0].with_images[0].first_image(), listed[0].images
    if first.startswith("ILSVRC2012_val") or images == VALIDATION.images:
        return VALIDATION
    if first.startswith("sketch_") or images == _SKETCH.images:
        return _SKETCH
    return TRAINING if re.match(r"n\d{8}_\d+\.", first) else None


def find_all(
    layout: Layout, listed: Sequence[PartListing], decoded: Decoded, published: PublishedSet | None, classes: int | None
) -> tuple[Finding, ...]:
    """All findings, errors first. classes: number of classes of the model."""
    findings = (
        *_location(layout, listed),
        *(_corruptions(layout) if layout.kind == "imagenet-c" else ()),
        *_class_folders(layout, listed),
        *_counts(listed, published),
        *_other_entries(layout, listed),
        *_images(layout.root, decoded, sum(part.images for part in listed)),
        *(_model(listed, classes) if classes is not None else ()),
    )
    return tuple(sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity)))


def below(root: Path, path: Path) -> str:
    """Path below the root with forward slashes."""
    return path.relative_to(root).as_posix()


def _shorten(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _listed(severity: Severity, names: Sequence[str], noun: str, text: str) -> Iterator[Finding]:
    """One finding about all of `names`, none without names. text: with {count} and {names}."""
    if names:
        count = f"{len(names):,} {noun}{'' if len(names) == 1 else 's'}"
        yield Finding(severity, text.format(count=count, names=_shorten(names)))


def _is_one_part(layout: Layout) -> bool:
    """ImageNet-C/fog/3 by itself looks like the validation set, but is not clean."""
    here = layout.root.resolve()
    return layout.kind == "imagenet" and here.name in SEVERITIES and here.parent.name in corruptions.names(extra=True)


def _location(layout: Layout, listed: Sequence[PartListing]) -> Iterator[Finding]:
    """A level too deep or too high, though there are images."""
    root, here, names = layout.root, layout.root.resolve(), listed[0].class_names
    if layout.kind == "flat" and imagenet.WNID.fullmatch(here.name):
        yield Finding("warning", f"this is one class folder by itself: use the folder above, {str(here.parent)!r}")
    elif layout.kind == "flat" and listed[0].top.first_image().startswith("ILSVRC2012_val"):
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
            yield Finding("error", f"{below(root, part.part.path)} holds {text}")
    places = [place for part in listed for place in part.inside]
    deep = [f"{str(inner.root)!r} ({inner.kind})" for place in places if (inner := _layout_inside(place))]
    yield from _listed("warning", deep, "folder", "images in {count} lie too deep and are left out: {names}")
    lower = [below(root, folder) for place in places if place.images for folder in place.folders if has_images(folder)]
    yield from _listed("warning", lower, "folder", "images in {count} inside class folders are left out: {names}")


def _layout_inside(place: Place) -> Layout | None:
    """Layout of a folder that has sub-folders but no images itself."""
    if place.images or not place.folders:
        return None
    return detect_or_none(place.path) or next(iter(find_layouts(place.path)), None)


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


def _class_folders(layout: Layout, listed: Sequence[PartListing]) -> Iterator[Finding]:
    kind, known, names = layout.kind, imagenet.class_index(), listed[0].class_names
    empty = [below(layout.root, place.path) for part in listed for place in part.empty if kind != "flat"]
    limited = "; until they are filled, predictions are not limited to the 200 classes of the dataset"
    limited = limited if kind in ("imagenet-r", "imagenet-a") else ""
    yield from _listed("warning", empty, "class folder", "{count} without images: {names}" + limited)
    if kind in ("imagenet", "imagenet-c", "imagenet-v2"):
        yield from _per_part([(part, _missing_folders(kind, part)) for part in listed])
    if kind == "class folders":
        others = [name for name in names if name not in known]
        if len(others) < len(names):
            text = f"{len(names) - len(others)} of {len(names)} class folders are ImageNet's, the others are not"
            yield Finding("warning", f"{text}: {_shorten(others)}; move one kind away, or labels cannot be matched")
        elif all(imagenet.WNID.fullmatch(name) for name in names):
            yield Finding("note", "class folders are wnids, but none of ImageNet's 1000")
        elif all(name.isdecimal() for name in names):
            shown = _shorten(sorted(names, key=int))
            yield Finding("note", f"class folders are numbers ({shown}): taken as the model's class numbers")
    if kind == "imagenet":
        classes = {known[place.path.name] for place in listed[0].inside if place.path.name in known}
        for title, whole in (("ImageNet-R", imagenet.r_classes()), ("ImageNet-A", imagenet.a_classes())):
            if classes < set(whole) and len(classes) >= _NEARLY_ALL:
                missing = [imagenet.wnids()[label] for label in sorted(set(whole) - classes)]
                text = f"all are classes of {title}, but {len(missing)} of its 200 are missing ({_shorten(missing)})"
                limited = "it is taken for a subset of ImageNet and predictions are not limited to the 200 classes"
                yield Finding("warning", f"{text}: {limited}")


def _missing_folders(kind: str, part: PartListing) -> Finding | None:
    """Of ImageNet's 1000; empty ones are reported separately."""
    names = [place.path.name for place in part.inside]
    missing = 1000 - sum(name.isdecimal() if kind == "imagenet-v2" else name in imagenet.class_index() for name in names)
    folders = "class folder" if missing == 1 else "class folders"
    return Finding("warning", f"{missing:,} {folders} of 1,000 missing") if 0 < missing < 1000 else None


def _counts(listed: Sequence[PartListing], published: PublishedSet | None) -> Iterator[Finding]:
    if published is not None:
        yield from _per_part([(part, _compare(part, published)) for part in listed])
    counts = Counter(part.images for part in listed)
    usual = counts.most_common(1)[0][0]
    others = [f"{part.part.name} ({part.images:,})" for part in listed if part.images != usual]
    images = f"{usual:,} image{'' if usual == 1 else 's'}"
    yield from _listed("warning", others, "part", f"parts differ: most hold {images}, but {{names}}")


def _compare(part: PartListing, published: PublishedSet) -> Finding:
    if part.images == published.images:
        return Finding("note", f"complete: {part.images:,} images, as published")
    if part.images > published.images:
        return Finding("warning", f"{part.images:,} images are more than the published {published.images:,}")
    each = {place.images for place in part.with_images}
    if len(each) == 1 and part.class_names:
        whole = f" of {published.per_class}" if published.per_class else ""
        return Finding("note", f"a subset: {part.images:,} of {published.images:,} images, {each.pop()}{whole} per class")
    return Finding("warning", f"{part.images:,} of the published {published.images:,} images: a subset, or not all arrived")


def _per_part(findings: Sequence[tuple[PartListing, Finding | None]]) -> Iterator[Finding]:
    """Report what several parts have in common once."""
    groups: dict[Finding, list[str]] = defaultdict(list)
    for part, finding in findings:
        if finding is not None:
            groups[finding].append(part.part.name)
    for finding, names in groups.items():
        parts = f"each of {len(names)} parts" if len(names) == len(findings) else _shorten(names)
        yield finding if len(findings) == 1 else Finding(finding.severity, f"{parts}: {finding.text}")


def _other_entries(layout: Layout, listed: Sequence[PartListing]) -> Iterator[Finding]:
    """Folders and files that are not part of the layout."""
    root = layout.root
    between = {folder for part in layout.parts for folder in part.path.parents if folder.is_relative_to(root)}
    above = [Place(folder) for folder in sorted(between if layout.kind == "imagenet-c" else ())]
    places = [*above, *(place for part in listed for place in (part.top, *part.inside))]
    expected = {place.path for place in above} | {part.path for part in layout.parts}
    if layout.kind != "flat":
        expected |= {place.path for part in listed for place in part.empty}
    bare = [place for part in listed for place in part.inside if not place.images and _layout_inside(place) is None]
    candidates = [*(place.path for place in bare), *(folder for place in above for folder in place.folders)]
    outside = [below(root, folder) for folder in candidates if folder not in expected]
    yield from _listed("warning", outside, "folder", "{count} not part of the layout, ignored: {names}")
    text = "{count} called ._* count as images but are macOS's attributes: delete them"
    yield from _listed("error", [""] * sum(place.apple_double for place in places), "file", text)
    others = [(below(root, place.path / name), Path(name).suffix.lower()) for place in places for name in place.others]
    text = f"{{count}} in formats that are not read, ignored: {{names}} (read are {', '.join(sorted(SUFFIXES))})"
    yield from _listed("warning", [name for name, suffix in others if suffix in _UNREAD_FORMATS], "image", text)
    links = [name for name, suffix in others if suffix in SUFFIXES]
    yield from _listed("warning", links, "image", "{count} behind broken links, ignored: {names}")
    not_utf8 = [below(root, place.path / name) for place in places for name in place.not_utf8]
    inside = (place.path for place in places if place.images and place.path != root)
    not_utf8 += [f"{below(root, folder)}/" for folder in inside if printable(folder.name) != folder.name]
    text = "a CSV file keeps their bytes, elsewhere such a byte is written as \\udcXX"
    yield from _listed("note", not_utf8, "name", f"{{count}} that are not valid UTF-8: {{names}} ({text})")
    rest = [name for name, suffix in others if suffix not in _UNREAD_FORMATS | SUFFIXES]
    yield from _listed("note", rest, "file", "not images, ignored: {count}, {names}")


def _images(root: Path, decoded: Decoded, total: int) -> Iterator[Finding]:
    of = f"{{count}} of {decoded.count:,} examined"
    broken = [f"{below(root, path)} ({reason})" for path, reason in decoded.broken]
    yield from _listed("error", broken, "image", f"{of} cannot be read: {{names}}")
    small = [below(root, path) for path in decoded.small]
    yield from _listed("warning", small, "image", f"{of} below {corruptions.MIN_SIDE} px on a side: {{names}}")
    groups = [" = ".join(below(root, path) for path in group[:3]) for group in decoded.duplicates()]
    yield from _listed(
        "warning", groups, "group", f"{{count}} of identical files among {decoded.count:,} examined: {{names}}"
    )
    for mode, text in _MODES.items():
        severity: Severity = "warning" if mode == "deep" else "note"
        yield from _listed(severity, [""] * decoded.modes[mode], "image", f"{of} {text}")
    side = decoded.cropped_side()
    if side:
        yield Finding("note", f"all examined images are {side}x{side} px, cropped for a model of that size: use --crop-only")
    if decoded.count < total:
        yield Finding("note", f"{decoded.count:,} of {total:,} images were decoded: --all decodes every one")


def _model(listed: Sequence[PartListing], model_classes: int) -> Iterator[Finding]:
    if not any(part.class_names for part in listed):
        yield Finding("note", "no class folders: the model can predict, but accuracy is unknown")
    model_names = imagenet.names() if model_classes == len(imagenet.names()) else None
    for names in sorted({part.class_names for part in listed if part.class_names}):
        try:
            classes = match_classes(names, model_classes, model_names).class_indices
        except InputError as error:
            yield Finding("error", str(error))
        else:
            limited = f", predictions limited to {len(classes)} classes" if classes else ""
            text = f"{{count}} match a model of {model_classes:,} classes{limited}"
            yield from _listed("note", names, "class folder", text)
