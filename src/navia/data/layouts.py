"""Which published layout a folder has, and which of the model's classes its class folders stand for.

    flat            DIR/*                              no labels
    class folders   DIR/class/*
    imagenet        DIR/wnid/*                         validation set, Sketch, subsets
    imagenet-r, -a  DIR/wnid/*                         exactly their 200 classes
    imagenet-v2     DIR/number/*                       0 to 999
    imagenet-c      DIR/corruption/severity/wnid/*     also grouped as downloaded: DIR/noise/gaussian_noise/...

Recognising looks at names of folders and for one image in each class folder; it does not list the images.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from navia.data import corruptions, imagenet
from navia.data.domain import Collection
from navia.data.folder import SUFFIXES, Folder
from navia.errors import InputError
from navia.io import printable

SEVERITIES = ("1", "2", "3", "4", "5")
_FEWEST_OF_V2 = 500  # numbers are common names: fewer of them are more likely another data set's classes than a piece of V2
_DEEPEST = 4
_MOST_FOLDERS = 2000


@dataclass(frozen=True)
class Part:
    """Images that belong together: the whole folder, or one corruption at one severity ("gaussian_noise/5")."""

    name: str
    path: Path


@dataclass(frozen=True)
class Layout:
    """kind: imagenet, imagenet-c, imagenet-r, imagenet-a, imagenet-v2, class folders or flat. Only imagenet-c has several
    parts: corruptions in the order of the paper, severities ascending."""

    kind: str
    root: Path
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Classes:
    """index: for each class folder the model's class, or with a mask its column among the mask's.
    mask: the model's classes to answer with, ascending; None: all."""

    index: tuple[int, ...]
    mask: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Labelled:
    """Pictures under the model's labels: a `Collection`."""

    pictures: Collection
    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.pictures)

    def name(self, position: int) -> str:
        return self.pictures.name(position)

    def read(self, position: int) -> Image.Image:
        return self.pictures.read(position)


def recognise(root: str | Path) -> Layout:
    """The layout of a folder, or an InputError that says what was found instead."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}" if not root.exists() else f"{str(root)!r} is a file, not a folder")
    layout = _layout(root)
    if layout is None:
        raise InputError(_nothing_usable(root))
    return layout


def layout_of(folder: Path) -> Layout | None:
    """As `recognise`, but None where it refuses."""
    try:
        return _layout(folder)
    except InputError:
        return None


def usable_below(root: Path) -> list[Layout]:
    """Layouts in the sub-folders of a folder that has none itself: those of the nearest level that has any."""
    level = list(folders(root))
    for _ in range(_DEEPEST):
        found = [layout for folder in level if (layout := layout_of(folder))]
        if found:
            return found
        level = [inner for folder in level for inner in folders(folder)][:_MOST_FOLDERS]
    return []


def class_wrapper(root: Path, below: Sequence[Layout]) -> str | None:
    """An example "class/images" where every class folder of `root` wraps its images in one more folder."""
    inside = [[folder.name for folder in folders(layout.root) if has_images(folder)] for layout in below]
    alike = len(inside) > 1 and all(len(names) == 1 and names == inside[0] for names in inside)
    if not inside or not inside[0] or any(layout.root.parent != root for layout in below):
        return None
    if alike or all(imagenet.WNID.fullmatch(layout.root.name) for layout in below):
        return f"{below[0].root.name}/{inside[0][0]}"
    return None


def folders(root: Path) -> list[Path]:
    """Sub-folders, sorted by name."""
    return sorted(Path(entry.path) for entry in entries(root) if entry.is_dir())


def has_images(folder: Path) -> bool:
    """Whether at least one image lies directly inside."""
    return any(is_image(entry) for entry in entries(folder))


def is_image(entry: "os.DirEntry[str]") -> bool:
    """By its suffix, as `folder.scan` decides it."""
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()


def entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """What lies directly inside, one by one and in no order."""
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        raise InputError(f"cannot list folder {str(folder)!r}: {error.strerror or error}") from error


def match_classes(
    class_names: Sequence[str], num_classes: int, model_names: Sequence[str] | None = None, *, numbered: bool = False
) -> Classes:
    """Which of the model's classes each class folder stands for. The first rule that applies decides:

    - wnids, for a model of 1000 classes: ImageNet's order; for exactly the 200 of ImageNet-R or -A with a mask
    - numbers: the class of that number
    - names that all occur in `model_names` (upper or lower case): their positions
    - as many folders as classes: sorted order, unless a name that occurs in `model_names` speaks against it

    numbered: the names have numbers of their own (a data set's labels), which count where folders are sorted.
    """
    known = imagenet.class_index()
    if num_classes == len(known) and all(name in known for name in class_names):
        return _imagenet_classes([known[name] for name in class_names])
    if all(name.isdecimal() for name in class_names):
        return _numbered_classes(class_names, num_classes)
    positions = _positions(model_names or ())
    named = [positions.get(name.casefold()) for name in class_names]
    if all(position is not None for position in named):
        return Classes(tuple(position for position in named if position is not None))
    ranks = {name: rank for rank, name in enumerate(class_names if numbered else sorted(class_names))}
    by_order = tuple(ranks[name] for name in class_names)
    agrees = all(position in (None, rank) for position, rank in zip(named, by_order, strict=True))
    if len(class_names) == num_classes and agrees:
        return Classes(by_order)
    raise InputError(_unmatched(class_names, named, num_classes, model_names))


def labelled(folder: Folder, classes: Classes) -> Labelled:
    """The pictures of class folders under the model's labels."""
    assert folder.labels is not None
    return Labelled(folder, tuple(classes.index[label] for label in folder.labels))


def _layout(root: Path) -> Layout | None:
    inside, flat = folders(root), has_images(root)
    parts = _corruption_parts(root, inside)
    holding = [part.name for part in parts] or [folder.name for folder in inside if has_images(folder)]
    if flat and holding:
        kept = "corruption folders" if parts else "class folders"
        raise InputError(f"{str(root)!r} holds images both directly and in {kept} ({holding[0]}, ...): keep one")
    if parts:
        return Layout("imagenet-c", root, parts)
    whole = (Part(printable(root.name or root.resolve().name), root),)
    if holding:
        return Layout(_kind(holding, [folder.name for folder in inside]), root, whole)
    return Layout("flat", root, whole) if flat else None


def _kind(holding: Sequence[str], inside: Sequence[str]) -> str:
    """From the names of the folders that hold images; empty class folders count too where their names tell what they are."""
    known = imagenet.class_index()
    if all(name in known for name in holding):
        present = {known[name] for name in inside if name in known}
        sets = {"imagenet-r": imagenet.r_classes(), "imagenet-a": imagenet.a_classes()}
        return next((kind for kind, classes in sets.items() if present == set(classes)), "imagenet")
    numbers = [int(name) if name.isdecimal() else len(known) for name in holding]
    if max(numbers) < len(known) and len(set(numbers)) >= _FEWEST_OF_V2:
        return "imagenet-v2"
    return "class folders"


def _corruption_parts(root: Path, inside: Iterable[Path]) -> tuple[Part, ...]:
    """One part per corruption and severity that holds images, in the order of the paper."""
    places: dict[str, Path] = {}
    for folder in _corruption_folders(root, inside):
        for severity in folders(folder):
            if severity.name not in SEVERITIES or not _holds_part(severity, folder == root):
                continue
            name = f"{folder.resolve().name if folder == root else folder.name}/{severity.name}"
            if name in places:
                raise InputError(f"{name} is there twice: {str(places[name])!r} and {str(severity)!r}; keep one")
            places[name] = severity
    order = [f"{corruption}/{severity}" for corruption in corruptions.names(extra=True) for severity in SEVERITIES]
    return tuple(Part(name, places[name]) for name in order if name in places)


def _corruption_folders(root: Path, inside: Iterable[Path]) -> Iterator[Path]:
    known = corruptions.names(extra=True)
    if root.resolve().name in known:
        yield root
    for folder in inside:
        if folder.name in known:
            yield folder
        elif folder.name in corruptions.CORRUPTIONS:
            yield from (inner for inner in folders(folder) if inner.name in known)


def _holds_part(severity: Path, only_classes: bool) -> bool:
    """only_classes: a folder that happens to be called "snow" may hold images in folders 1 to 5 for other reasons."""
    return (not only_classes and has_images(severity)) or any(has_images(folder) for folder in folders(severity))


def _nothing_usable(root: Path) -> str:
    below = usable_below(root)
    wrapped = class_wrapper(root, below)
    if wrapped:
        return f"the images of {str(root)!r} lie one folder too deep ({wrapped}/...): move them up into their class folders"
    if below:
        shown = ", ".join(f"{str(layout.root)!r} ({layout.kind})" for layout in below[:4])
        more = f" and {len(below) - 4} more" if len(below) > 4 else ""
        return f"no images in {str(root)!r} or one folder down, but deeper: use {shown}{more}"
    found = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries(root))
    told = f"found {', '.join(found[:4])}{', ...' if len(found) > 4 else ''}" if found else "it is empty"
    return f"no images in {str(root)!r} or below: {told} (looked for {', '.join(sorted(SUFFIXES))})"


def _imagenet_classes(classes: Sequence[int]) -> Classes:
    for mask in (imagenet.r_classes(), imagenet.a_classes()):
        if set(classes) == set(mask):
            columns = {label: column for column, label in enumerate(mask)}
            return Classes(tuple(columns[label] for label in classes), mask)
    return Classes(tuple(classes))


def _numbered_classes(class_names: Sequence[str], num_classes: int) -> Classes:
    beyond = [name for name in class_names if int(name) >= num_classes]
    if beyond:
        raise InputError(
            f"class folders are numbers, but {len(beyond)} of {len(class_names)} ({_examples(beyond)}) are none of the "
            f"model's {num_classes} classes: they must go from 0 to {num_classes - 1}"
        )
    return Classes(tuple(int(name) for name in class_names))


def _positions(model_names: Sequence[str]) -> dict[str, int]:
    """Of the names that only one class has."""
    lowered = [name.casefold() for name in model_names]
    repeated = {name for name, following in zip(sorted(lowered), sorted(lowered)[1:], strict=False) if name == following}
    return {name: position for position, name in enumerate(lowered) if name not in repeated}


def _unmatched(
    class_names: Sequence[str], named: Sequence[int | None], num_classes: int, model_names: Sequence[str] | None
) -> str:
    strange = [name for name, position in zip(class_names, named, strict=True) if position is None]
    wanted = [f"numbers 0 to {num_classes - 1}"]
    if len(class_names) != num_classes:
        wanted.append(f"exactly {num_classes} folders, sorted as the classes are")
    if num_classes == len(imagenet.wnids()):
        wanted.append("ImageNet's wnids (n01440764, ...)")
        if not model_names:
            wanted.append("ImageNet's names, if --labels imagenet says that the model has them")
    if model_names:
        wanted.append(f"the model's class names ({_examples(model_names)})")
    return (
        f"{len(class_names)} class folders do not match the model's {num_classes} classes: {len(strange)} are unknown "
        f"or stand for several ({_examples(strange)}); what would match: {', or '.join(wanted)}"
    )


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
