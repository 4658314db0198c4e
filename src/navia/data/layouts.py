"""Which published layout a folder has, and which of the model's classes its class folders stand for.

    flat            DIR/*                              no labels
    class folders   DIR/class/*
    imagenet        DIR/wnid/*                         validation set, Sketch, subsets
    imagenet-r, -a  DIR/wnid/*                         exactly their 200 classes
    imagenet-v2     DIR/number/*                       0 to 999
    imagenet-c      DIR/corruption/severity/wnid/*     also grouped as downloaded: DIR/noise/gaussian_noise/...

Detection reads folder names and looks for one image in each class folder; it does not list all images.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from navia.data import corruptions, imagenet
from navia.errors import InputError
from navia.io import printable

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
SEVERITIES = ("1", "2", "3", "4", "5")
_MIN_V2_FOLDERS = 500  # numbers are common names: fewer are more likely the classes of another dataset
_MAX_DEPTH = 4
_MAX_FOLDERS = 2000


@dataclass(frozen=True)
class Part:
    """One set of images: the whole folder, or one corruption at one severity ("gaussian_noise/5")."""

    name: str
    path: Path


@dataclass(frozen=True)
class Layout:
    """Layout of a folder, see the table above. parts: the root itself; for imagenet-c one part per corruption and severity,
    in the order of the paper."""

    kind: str
    root: Path
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class ClassMatch:
    """labels: label of each class folder: the model's class, or its column among `class_indices` if these are given.
    class_indices: the model's classes to predict, ascending; None: all."""

    labels: tuple[int, ...]
    class_indices: tuple[int, ...] | None = None


def entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Entries of a folder, unsorted; an InputError names a folder that cannot be listed."""
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        raise InputError(f"cannot list folder {str(folder)!r}: {error.strerror or error}") from error


def is_image(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a file with the suffix of an image."""
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()


def has_images(folder: Path) -> bool:
    """Whether at least one image lies directly inside."""
    return any(is_image(entry) for entry in entries(folder))


def image_entries(folder: Path) -> "list[os.DirEntry[str]]":
    """Images directly inside, sorted by name."""
    return sorted((entry for entry in entries(folder) if is_image(entry)), key=lambda entry: entry.name)


def folders(root: Path) -> list[Path]:
    """Sub-folders, sorted by name."""
    return sorted(Path(entry.path) for entry in entries(root) if entry.is_dir())


def detect_layout(root: str | Path) -> Layout:
    """Return the layout of a folder; if it has none, an InputError says what was found instead."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}" if not root.exists() else f"{str(root)!r} is a file, not a folder")
    layout = _detect(root)
    if layout is None:
        raise InputError(_describe_unusable(root))
    return layout


def find_layouts(root: Path) -> list[Layout]:
    """Layouts of the sub-folders, on the first level that has any."""
    level = folders(root)
    for _ in range(_MAX_DEPTH):
        found = [layout for folder in level if (layout := detect_or_none(folder))]
        if found:
            return found
        level = [inner for folder in level for inner in folders(folder)][:_MAX_FOLDERS]
    return []


def detect_or_none(folder: Path) -> Layout | None:
    """As `detect_layout`, but None instead of an error."""
    try:
        return _detect(folder)
    except InputError:
        return None


def nested_class_folder(root: Path, below: Sequence[Layout]) -> str | None:
    """An example "class/images" if every class folder of `root` has its images in one more folder; else None."""
    inner = [[folder.name for folder in folders(layout.root) if has_images(folder)] for layout in below]
    if not inner or not inner[0] or any(layout.root.parent != root for layout in below):
        return None
    same_name = len(inner) > 1 and all(len(names) == 1 and names == inner[0] for names in inner)
    if same_name or all(imagenet.WNID.fullmatch(layout.root.name) for layout in below):
        return f"{below[0].root.name}/{inner[0][0]}"
    return None


def match_classes(
    class_names: Sequence[str], num_classes: int, model_names: Sequence[str] | None = None, *, numbered: bool = False
) -> ClassMatch:
    """Find the model's class of each class folder. The first rule that applies decides:

    - wnids and a model of 1000 classes: ImageNet's order; exactly the 200 of ImageNet-R or -A also set `class_indices`
    - numbers: the class of that number
    - names that all occur in `model_names` (in any case): their positions
    - as many folders as classes: sorted order, unless a name that occurs in `model_names` contradicts it

    If no rule applies, an InputError lists what would match. numbered: the names are in label order already (a dataset's);
    folders are sorted.
    """
    known = imagenet.class_index()
    if num_classes == len(known) and all(name in known for name in class_names):
        classes = tuple(known[name] for name in class_names)
        for subset in (imagenet.r_classes(), imagenet.a_classes()):
            if set(classes) == set(subset):
                return ClassMatch(tuple(subset.index(label) for label in classes), subset)
        return ClassMatch(classes)
    if all(name.isdecimal() for name in class_names):
        beyond = [name for name in class_names if int(name) >= num_classes]
        if not beyond:
            return ClassMatch(tuple(int(name) for name in class_names))
        raise InputError(
            f"class folders are numbers, but {len(beyond)} of {len(class_names)} ({_examples(beyond)}) are none of the "
            f"model's {num_classes} classes: they must go from 0 to {num_classes - 1}"
        )
    lowered = [name.casefold() for name in model_names or ()]
    times = Counter(lowered)
    positions = {name: i for i, name in enumerate(lowered) if times[name] == 1}
    by_name = [positions.get(name.casefold()) for name in class_names]
    if None not in by_name:
        return ClassMatch(tuple(position for position in by_name if position is not None))
    ranks = {name: rank for rank, name in enumerate(class_names if numbered else sorted(class_names))}
    by_order = tuple(ranks[name] for name in class_names)
    if len(class_names) == num_classes and all(a in (None, b) for a, b in zip(by_name, by_order, strict=True)):
        return ClassMatch(by_order)
    unknown = [name for name, position in zip(class_names, by_name, strict=True) if position is None]
    raise InputError(
        f"{len(class_names)} class folders do not match the model's {num_classes} classes: {len(unknown)} are unknown or "
        f"ambiguous ({_examples(unknown)}); expected {_expected(len(class_names), num_classes, model_names)}"
    )


def _expected(count: int, num_classes: int, model_names: Sequence[str] | None) -> str:
    options = [f"numbers 0 to {num_classes - 1}"]
    if count != num_classes:
        options.append(f"exactly {num_classes} folders, sorted as the classes are")
    if num_classes == len(imagenet.wnids()):
        options.append("ImageNet's wnids (n01440764, ...)")
    if num_classes == len(imagenet.wnids()) and not model_names:
        options.append("ImageNet's names, if --labels imagenet says that the model has them")
    if model_names:
        options.append(f"the model's class names ({_examples(model_names)})")
    return ", or ".join(options)


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _detect(root: Path) -> Layout | None:
    inside, flat = folders(root), has_images(root)
    parts = _corruption_parts(root, inside)
    with_images = [part.name for part in parts] or [folder.name for folder in inside if has_images(folder)]
    if flat and with_images:
        kind = "corruption folders" if parts else "class folders"
        raise InputError(f"{str(root)!r} holds images both directly and in {kind} ({with_images[0]}, ...): keep one")
    if parts:
        return Layout("imagenet-c", root, parts)
    whole = (Part(printable(root.name or root.resolve().name), root),)
    if with_images:
        return Layout(_kind(with_images, [folder.name for folder in inside]), root, whole)
    return Layout("flat", root, whole) if flat else None


def _kind(with_images: Sequence[str], inside: Sequence[str]) -> str:
    """Kind by the names of class folders; empty wnid folders count as well."""
    known = imagenet.class_index()
    if all(name in known for name in with_images):
        present = {known[name] for name in inside if name in known}
        subsets = {"imagenet-r": imagenet.r_classes(), "imagenet-a": imagenet.a_classes()}
        return next((kind for kind, classes in subsets.items() if present == set(classes)), "imagenet")
    numbers = {int(name) if name.isdecimal() else len(known) for name in with_images}
    return "imagenet-v2" if max(numbers) < len(known) and len(numbers) >= _MIN_V2_FOLDERS else "class folders"


def _corruption_parts(root: Path, inside: Sequence[Path]) -> tuple[Part, ...]:
    """One part per corruption and severity with images, in the order of the paper."""
    known = corruptions.names(extra=True)
    candidates = [(root.resolve().name, root)] if root.resolve().name in known else []
    for folder in inside:
        grouped = folders(folder) if folder.name in corruptions.CORRUPTIONS else []
        candidates += [(place.name, place) for place in (folder, *grouped) if place.name in known]
    found: dict[str, Path] = {}
    for corruption, folder in candidates:
        for severity in folders(folder):
            # A folder that happens to be called "snow" may hold images in folders 1 to 5 for other reasons.
            flat = folder != root and severity.name in SEVERITIES and has_images(severity)
            if severity.name not in SEVERITIES or not (flat or any(has_images(inner) for inner in folders(severity))):
                continue
            name = f"{corruption}/{severity.name}"
            if name in found:
                raise InputError(f"{name} is there twice: {str(found[name])!r} and {str(severity)!r}; keep one")
            found[name] = severity
    order = [f"{corruption}/{severity}" for corruption in known for severity in SEVERITIES]
    return tuple(Part(name, found[name]) for name in order if name in found)


def _describe_unusable(root: Path) -> str:
    below = find_layouts(root)
    nested = nested_class_folder(root, below)
    if nested:
        return f"the images of {str(root)!r} lie one folder too deep ({nested}/...): move them up into their class folders"
    if below:
        shown = ", ".join(f"{str(layout.root)!r} ({layout.kind})" for layout in below[:4])
        more = f" and {len(below) - 4} more" if len(below) > 4 else ""
        return f"no images in {str(root)!r} or one folder down, but deeper: use {shown}{more}"
    names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries(root))
    found = f"found {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}" if names else "it is empty"
    return f"no images in {str(root)!r} or below: {found} (looked for {', '.join(sorted(SUFFIXES))})"
