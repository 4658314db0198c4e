"""From what the user typed (a folder, a data set, "embedded") to domains with the model's own labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from navia.data import SOURCE_IMAGES, imagenet, sample
from navia.data.domain import Collection, DatasetPictures, Domain, Subset, corrupted
from navia.data.folder import Folder, scan
from navia.data.layouts import Labelled, Layout, labelled, match_classes, recognise
from navia.errors import InputError, NaviaError
from navia.io import expanded

SHIFTED = ("imagenet-c", "imagenet-r", "imagenet-a")  # layouts whose pictures are no source domain


@dataclass(frozen=True)
class Opened:
    """kind: the layout that was recognised. classes: columns to answer with, where the data has fewer classes than the model
    (ImageNet-R, ImageNet-A). names: of all the model's classes, where they are known, or where wnids say that they are
    those of ImageNet."""

    kind: str
    domains: tuple[Domain, ...]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None


def open_domains(
    where: str | Path,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    *,
    corruptions: Sequence[str] = (),
    severity: int = 5,
    seed: int = 0,
    parts: Sequence[str] | None = None,
    lister: Callable[[Path], Folder] = scan,
) -> Opened:
    """Domains of a folder in any of the known layouts, of "embedded", or of "datasets:NAME" / "datasets:NAME:SPLIT" (a
    Hugging Face data set by name, or a folder that `save_to_disk` or `imagefolder` understands).

    corruptions: one domain per corruption instead of the pictures as they are. parts: of ImageNet-C, to list no others.
    lister: what lists the images of a folder, `scan` or something that remembers what it found."""
    if str(where) == "embedded":
        found: list[tuple[str, Collection]] = [("clean", sample.unseen_images())]
        kind, classes = "embedded", None
    elif str(where).startswith("datasets:"):
        found, classes = _from_datasets(str(where).removeprefix("datasets:"), num_classes, class_names)
        kind = "datasets"
    else:
        layout = recognise(expanded(where))
        if parts is not None and layout.kind == "imagenet-c":
            layout = replace(layout, parts=tuple(part for part in layout.parts if part.name in parts))
        kind = layout.kind
        found, classes = _from_folder(layout, num_classes, class_names, lister)
    names = tuple(class_names) if class_names else None
    if names is None and num_classes == len(imagenet.wnids()) and any(_has_wnids(collection) for _, collection in found):
        names = imagenet.names()
    for name, collection in found:
        _check_labels(name, collection, len(classes) if classes else num_classes)
    if not corruptions:
        return Opened(kind, tuple(Domain(name, collection) for name, collection in found), classes, names)
    if len(found) > 1:
        raise InputError(f"{str(where)!r} is corrupted already ({len(found)} parts): leave out the corruption")
    return Opened(kind, tuple(corrupted(found[0][1], corruptions, severity, seed)), classes, names)


def open_images(where: str | Path) -> Collection:
    """Images of a folder, of "embedded" or of "datasets:NAME" with their own labels, whatever the model's classes."""
    if str(where) == "embedded":
        return sample.unseen_images()
    if str(where).startswith("datasets:"):
        return _load_dataset(str(where).removeprefix("datasets:"))
    return scan(expanded(where))


def leave_out_source(opened: Opened, count: int = SOURCE_IMAGES) -> tuple[Opened, Domain]:
    """Clean images for the source statistics, and the domains without them: no image is both source and stream. They are
    those that `open_source` would draw; the embedded sample has some of its own."""
    if opened.kind == "embedded":
        return opened, open_source("embedded", count)
    whole = opened.domains[0].collection
    if opened.kind in SHIFTED:
        raise InputError(shifted_itself(opened))
    if len(whole) <= 2 * count:
        raise InputError(f"{len(whole)} images are too few to leave {count} out as the source: give a folder of clean ones")
    dealt = [int(i) for i in np.random.default_rng(0).permutation(len(whole))]
    rest = Subset(whole, sorted(dealt[count:]))
    domains = tuple(replace(domain, collection=rest) for domain in opened.domains)
    return replace(opened, domains=domains), Domain("source", Subset(whole, sorted(dealt[:count])))


def shifted_itself(opened: Opened) -> str:
    """Why the pictures cannot tell what the source looked like."""
    return f"{opened.domains[0].name!r} ({opened.kind}) is shifted itself: give a folder of clean images as the source"


def open_source(
    where: str | Path, count: int | None = SOURCE_IMAGES, lister: Callable[[Path], Folder] = scan, *, fewer: bool = False
) -> Domain:
    """Clean images for the source statistics, whatever their classes: `count` of them, or all (None). fewer: take all where
    there are not as many, which is an error otherwise.

    They are drawn at random with a fixed seed: the first ones by name may all be of one class or of one hour, and their
    statistics those of no source domain; and the same folder must always give the same ones. Every command and benchmark
    draws them here or, from the data itself, in `leave_out_source`. "embedded" are those that the sample keeps for this;
    they lie in random order."""
    collection = _clean(where, lister)
    if count is not None and count > len(collection) and not fewer:
        raise InputError(f"{str(where)!r} has {len(collection)} images, and {count} are wanted as the source: ask for fewer")
    if str(where) == "embedded":
        return Domain("source", Subset(collection, range(len(collection))[:count]))
    dealt = np.random.default_rng(0).permutation(len(collection))[:count]
    return Domain("source", Subset(collection, [int(i) for i in dealt]))


def _clean(where: str | Path, lister: Callable[[Path], Folder]) -> Collection:
    if str(where) == "embedded":
        return sample.source_images()
    if str(where).startswith("datasets:"):
        return _load_dataset(str(where).removeprefix("datasets:"))
    layout = recognise(expanded(where))
    if layout.kind == "imagenet-c":
        raise InputError(f"{str(where)!r} holds corrupted images: give a folder of clean ones as the source")
    return lister(layout.parts[0].path)


def _from_folder(
    layout: Layout, num_classes: int, class_names: Sequence[str] | None, lister: Callable[[Path], Folder]
) -> tuple[list[tuple[str, Collection]], tuple[int, ...] | None]:
    parts: list[tuple[str, Collection]] = []
    masks: set[tuple[int, ...] | None] = set()
    for part in layout.parts:
        folder = lister(part.path)
        if folder.class_names is None:
            parts.append((part.name, folder))
            masks.add(None)
            continue
        classes = match_classes(folder.class_names, num_classes, class_names)
        masks.add(classes.mask)
        parts.append((part.name, labelled(folder, classes)))
    if len(masks) > 1:  # one of them would decide the columns in which all parts are answered
        raise InputError(
            f"the parts of {str(layout.root)!r} have different classes: complete them (`navia doctor` tells which)"
        )
    return parts, masks.pop()


def _from_datasets(
    name: str, num_classes: int, class_names: Sequence[str] | None
) -> tuple[list[tuple[str, Collection]], tuple[int, ...] | None]:
    """Its labels become the model's by the names that the data set has for them, as those of class folders do."""
    pictures = _load_dataset(name)
    if pictures.labels is None or pictures.class_names is None:
        return [(name, pictures)], None
    try:
        classes = match_classes(pictures.class_names, num_classes, class_names, numbered=True)
    except InputError as error:
        raise InputError(f"data set {name!r}: {error}") from error
    labels = tuple(classes.index[label] if label >= 0 else label for label in pictures.labels)
    return [(name, Labelled(pictures, labels))], classes.mask


def local_folder(where: str) -> Path | None:
    """The folder that "datasets:FOLDER" or "datasets:FOLDER:SPLIT" names; None where it is a data set's name."""
    folder = expanded(where.removeprefix("datasets:").partition(":")[0])
    return folder if folder.is_dir() else None


def _load_dataset(name: str) -> DatasetPictures:
    try:
        import datasets
    except ImportError as error:
        raise NaviaError("Hugging Face data sets need the datasets package: pip install 'navia[hf]'") from error
    place, _, split = name.partition(":")
    place = str(local_folder(f"datasets:{place}") or place)
    try:
        if (Path(place) / "dataset_info.json").exists() or (Path(place) / "dataset_dict.json").exists():
            found = datasets.load_from_disk(place)
            found = found[split or next(iter(found))] if isinstance(found, datasets.DatasetDict) else found
        else:
            found = datasets.load_dataset(place, split=split or "test")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"cannot open data set {name!r}: {error}") from error
    return DatasetPictures(found)


def _has_wnids(collection: Collection) -> bool:
    """Whether its classes are named by ImageNet's wnids."""
    found = getattr(collection.pictures, "class_names", None) if isinstance(collection, Labelled) else None
    return bool(found) and all(name in imagenet.class_index() for name in found or ())


def _check_labels(name: str, collection: Collection, count: int) -> None:
    labels = collection.labels
    if labels is not None and len(labels) and not 0 <= min(labels) <= max(labels) < count:
        raise InputError(f"labels of {name!r} reach {min(labels)}..{max(labels)}, the model answers {count} classes")
