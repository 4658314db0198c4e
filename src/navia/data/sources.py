"""Where images come from: folders, arrays, Hugging Face datasets; domains over them, and how a user's path is opened."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data import SOURCE_IMAGES, imagenet
from navia.data.corruptions import corrupt, corruption_seed, names
from navia.data.layouts import SUFFIXES, ClassMatch, detect_layout, entries, folders, image_entries, match_classes
from navia.data.preprocessing import Preprocessing, open_image
from navia.errors import InputError, NaviaError, known_names
from navia.io import expand_user

Scanner = Callable[[Path], "Folder"]  # lists the images of a folder
SHIFTED_LAYOUTS = ("imagenet-c", "imagenet-r", "imagenet-a")  # their images are not from the source domain


class ImageSource(Protocol):
    """Images that can be read one by one. labels: one per image, or None if unknown."""

    @property
    def labels(self) -> Sequence[int] | None: ...

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Unique and stable name: random seeds depend on it, and results are listed under it."""

    def read(self, index: int) -> Image.Image:
        """Decode an image; an InputError names it."""


@dataclass(frozen=True)
class Folder:
    """Images of a folder, see `scan`. class_names: of the class folders, sorted; None without class folders."""

    root: Path
    paths: tuple[Path, ...]
    class_names: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Path below the root with forward slashes, the same on every machine."""
        return self.paths[index].relative_to(self.root).as_posix()

    def read(self, index: int) -> Image.Image:
        return open_image(self.paths[index])

    @cached_property
    def labels(self) -> list[int] | None:
        """Position of each image's class folder in `class_names`."""
        if self.class_names is None:
            return None
        index = {name: i for i, name in enumerate(self.class_names)}
        return [index[path.parent.name] for path in self.paths]


def scan(root: str | Path) -> Folder:
    """List the images of a folder, either directly inside or in class folders one level down."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    flat = [root / entry.name for entry in image_entries(root)]
    # Numbers (ImageNet-V2) sort as numbers: 2 before 10.
    inside = sorted(folders(root), key=lambda folder: (int(folder.name) if folder.name.isdecimal() else -1, folder.name))
    nested = {folder.name: [folder / entry.name for entry in image_entries(folder)] for folder in inside}
    classes = tuple(name for name, paths in nested.items() if paths)
    if flat and classes:
        raise InputError(f"{str(root)!r} holds images both directly and in class folders ({classes[0]}, ...): keep one")
    if classes:
        return Folder(root, tuple(path for paths in nested.values() for path in paths), classes)
    if not flat:
        raise InputError(f"no images in {str(root)!r} (looked for {', '.join(sorted(SUFFIXES))}, also one folder down)")
    return Folder(root, tuple(flat), None)


def default_order(folder: Folder) -> list[int]:
    """Order of a stream over a folder: by name, or shuffled with a fixed seed if the images are sorted by class."""
    return list(range(len(folder))) if folder.class_names is None else _shuffled(len(folder))


@dataclass(frozen=True)
class FolderDigest:
    """Content of a folder without the pixels: number of images, and digests of names with sizes and with write times."""

    count: int
    names_and_sizes: str
    times: str


def digest_folder(root: str | Path, deep: bool = False) -> FolderDigest:
    """Digest of the images that `scan` finds; deep: of all files below instead."""
    root = Path(root)
    paths = list(_files_below(root)) if deep else scan(root).paths
    sizes, times = hashlib.sha256(), hashlib.sha256()
    for path in paths:
        found, name = path.stat(), os.fsencode(path.relative_to(root).as_posix())
        sizes.update(name + b"\0%d\n" % found.st_size)
        times.update(name + b"\0%d\n" % found.st_mtime_ns)
    return FolderDigest(len(paths), sizes.hexdigest()[:16], times.hexdigest()[:16])


def _files_below(root: Path) -> Iterator[Path]:
    """All files in a fixed order, without the cache files of the datasets library."""
    for entry in sorted(entries(root), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files_below(Path(entry.path))
        elif entry.is_file() and not entry.name.startswith("cache-"):
            yield Path(entry.path)


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory: uint8 [N, H, W] or [N, H, W, 3]."""

    images: np.ndarray
    labels: Sequence[int] | None = None
    prefix: str = "image"

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"{self.prefix}/{index:05}"

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])


class DatasetImages:
    """Images of a Hugging Face `datasets.Dataset`. class_names: of the labels, if the dataset has them."""

    def __init__(self, dataset: Any, image: str = "image", label: str = "label") -> None:
        columns = list(dataset.column_names)
        if image not in columns:
            raise InputError(f"the dataset has no column {image!r}; it has {', '.join(columns)}")
        self.dataset, self.image = dataset, image
        labels = list(dataset[label]) if label in columns else None
        for value in labels or ():
            if not isinstance(value, int):
                raise InputError(f"column {label!r} of the dataset holds {value!r}, not a class index")
        self.labels = None if labels and set(labels) == {-1} else labels  # -1: a test set with hidden labels
        self.class_names: Sequence[str] | None = getattr(dataset.features.get(label), "names", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, index: int) -> str:
        return f"{index:07}"

    def read(self, index: int) -> Image.Image:
        try:
            image = self.dataset[index][self.image]
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"cannot read image {index} of the dataset: {error}") from error
        if not isinstance(image, Image.Image):
            raise InputError(f"column {self.image!r} of the dataset holds {type(image).__name__}, not images")
        return image


class Subset:
    """Images of another source in the order of `indices`, under their own names. labels: instead of their own labels."""

    def __init__(self, images: ImageSource, indices: Sequence[int], labels: Sequence[int] | None = None) -> None:
        self.images, self.indices = images, indices
        own = images.labels
        self.labels = [own[i] for i in indices] if labels is None and own is not None else labels

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.images.name(self.indices[index])

    def read(self, index: int) -> Image.Image:
        return self.images.read(self.indices[index])


@dataclass(frozen=True)
class Domain:
    """Images under one condition: clean (severity 0), or with a corruption generated on the fly.

    Example:
        >>> foggy = Domain("fog", scan("photos"), "fog", severity=5)
        >>> images = foggy.tensors(range(8), vit.preprocessing)      # [8, 3, 224, 224]
    """

    name: str
    images: ImageSource
    corruption: str | None = None
    severity: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.corruption is not None and self.corruption not in names(extra=True):
            raise InputError(f"unknown corruption {self.corruption!r}{known_names(self.corruption, names(extra=True))}")
        if self.severity not in range(6):  # checked here: later it would look like unreadable images
            raise InputError(f"severity must be an integer from 0 (not corrupted) to 5, not {self.severity!r}")

    def pixels(self, index: int, preprocessing: Preprocessing) -> np.ndarray:
        """Pixels that the model sees, uint8 [H, W] or [H, W, 3]: cropped first and then corrupted, as in ImageNet-C."""
        name = self.images.name(index)
        try:
            pixels = np.asarray(preprocessing.crop(self.images.read(index)))
            if self.corruption is None or self.severity == 0:
                return pixels
            seed = corruption_seed(name, self.corruption, self.severity, self.seed)
            return corrupt(pixels, self.corruption, self.severity, seed=seed)
        except InputError as error:
            if name in str(error):
                raise
            raise InputError(f"{name}: {error}") from error

    def tensor(self, index: int, preprocessing: Preprocessing) -> Tensor:
        """Normalised image [C, H, W]."""
        return preprocessing.normalise(self.pixels(index, preprocessing))

    def tensors(self, indices: Iterable[int], preprocessing: Preprocessing) -> Tensor:
        """Normalised images [N, C, H, W]."""
        return torch.stack([self.tensor(int(index), preprocessing) for index in indices])

    def label(self, index: int) -> int:
        """Label of an image, -1 if unknown."""
        return -1 if self.images.labels is None else int(self.images.labels[index])


def corrupted(images: ImageSource, corruptions: Sequence[str], severity: int = 5, seed: int = 0) -> list[Domain]:
    """One domain per corruption."""
    return [Domain(name, images, name, severity, seed) for name in corruptions]


def gradual(images: ImageSource, corruptions: Sequence[str], seed: int = 0) -> list[Domain]:
    """Domains of rising and falling severity: 1 to 5 and back for each corruption (Wang et al., 2022, CoTTA)."""
    steps = [*((s, "") for s in (1, 2, 3, 4, 5)), *((s, " again") for s in (4, 3, 2, 1))]
    return [Domain(f"{name}/{s}{again}", images, name, s, seed) for name in corruptions for s, again in steps]


@dataclass(frozen=True)
class OpenedData:
    """Domains with the model's labels. kind: the layout, "embedded" or "datasets".
    classes: the model's classes to predict, if the data has fewer (ImageNet-R, ImageNet-A); labels are columns of it.
    names: of all the model's classes, if known or if wnids show that they are ImageNet's."""

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
    scanner: Scanner = scan,
) -> OpenedData:
    """Open data by its path and give its images the model's labels.

    Args:
        where: A folder in a known layout, "embedded", or "datasets:NAME" / "datasets:NAME:SPLIT" (a Hugging Face dataset
            by name, or a folder for `load_from_disk` or `imagefolder`).
        num_classes: Number of classes of the model.
        class_names: Names of the model's classes.
        corruptions: Return one generated domain per corruption, of this `severity` and `seed`, instead of the images.
        parts: Parts of ImageNet-C to open; None: all.
        scanner: Lists the images of a folder; `scan`, or a cached version of it.

    Raises:
        InputError: Unknown layout, classes that do not match the model, or corruptions of corrupted data.
    """
    if _is_special(where):
        kind, _, name = str(where).partition(":")
        found = [(name or "clean", open_images(where))]
    else:
        layout = detect_layout(expand_user(where))
        chosen = [part for part in layout.parts if parts is None or layout.kind != "imagenet-c" or part.name in parts]
        kind, found = layout.kind, [(part.name, scanner(part.path)) for part in chosen]
    known = tuple(class_names) if class_names else None
    if known is None and num_classes == len(imagenet.wnids()) and any(_has_wnids(images) for _, images in found):
        known = imagenet.names()
    matched = [(name, *_with_model_labels(name, images, num_classes, class_names)) for name, images in found]
    subsets = {classes for _, _, classes in matched}
    if len(subsets) > 1:  # one part would decide the columns of all
        raise InputError(
            f"the parts of {str(where)!r} have different classes: complete them (`navia doctor` lists what is missing)"
        )
    domains = [Domain(name, images) for name, images, _ in matched]
    if corruptions:
        if len(domains) > 1:
            raise InputError(f"{str(where)!r} is corrupted already ({len(domains)} parts): leave out the corruption")
        domains = corrupted(domains[0].images, corruptions, severity, seed)
    return OpenedData(kind, tuple(domains), subsets.pop(), known)


def open_images(where: str | Path, scanner: Scanner = scan, *, source: bool = False) -> ImageSource:
    """Open a folder, "embedded" or "datasets:NAME" with its own labels, whatever the model's classes. source: of the
    embedded images those for source statistics."""
    if str(where) == "embedded":
        from navia.data import sample

        return sample.source_images() if source else sample.unseen_images()
    return _load_dataset(str(where)) if str(where).startswith("datasets:") else scanner(expand_user(where))


def _is_special(where: str | Path) -> bool:
    return str(where) == "embedded" or str(where).startswith("datasets:")


def open_source(
    where: str | Path, count: int | None = SOURCE_IMAGES, scanner: Scanner = scan, *, allow_fewer: bool = False
) -> Domain:
    """Open `count` (None: all) clean images for source statistics, whatever their classes. allow_fewer: take all if there
    are not as many; otherwise this is an error.

    Images are sampled with a fixed seed: the first by name may all be of one class, and the same folder must always give
    the same images. Every command and benchmark samples them here or in `leave_out_source`. The embedded sample keeps
    source images of its own, in random order already.
    """
    if not _is_special(where) and detect_layout(expand_user(where)).kind == "imagenet-c":
        raise InputError(f"{str(where)!r} holds corrupted images: give a folder of clean ones as the source")
    images = open_images(where, scanner, source=True)
    if count is not None and count > len(images) and not allow_fewer:
        raise InputError(f"{str(where)!r} has {len(images)} images, but {count} are wanted as the source: ask for fewer")
    order = list(range(len(images))) if str(where) == "embedded" else _shuffled(len(images))
    return Domain("source", Subset(images, order[:count]))


def leave_out_source(opened: OpenedData, count: int = SOURCE_IMAGES) -> tuple[OpenedData, Domain]:
    """Split off `count` clean images for source statistics; the returned domains do not contain them.

    They are those that `open_source` would sample. The embedded sample has separate source images.
    """
    if opened.kind == "embedded":
        return opened, open_source("embedded", count)
    images = opened.domains[0].images
    if opened.kind in SHIFTED_LAYOUTS:
        raise InputError(shifted_message(opened))
    if len(images) <= 2 * count:
        raise InputError(f"{len(images)} images are too few to leave {count} out as the source: give a folder of clean ones")
    order = _shuffled(len(images))
    rest = Subset(images, sorted(order[count:]))
    domains = tuple(replace(domain, images=rest) for domain in opened.domains)
    return replace(opened, domains=domains), Domain("source", Subset(images, sorted(order[:count])))


def shifted_message(opened: OpenedData) -> str:
    """Why these images cannot be the source."""
    return f"{opened.domains[0].name!r} ({opened.kind}) is shifted itself: give a folder of clean images as the source"


def local_folder(where: str) -> Path | None:
    """Folder of "datasets:FOLDER" or "datasets:FOLDER:SPLIT"; None for the name of a dataset."""
    folder = expand_user(where.removeprefix("datasets:").partition(":")[0])
    return folder if folder.is_dir() else None


def _shuffled(count: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(0).permutation(count)]


def _with_model_labels(
    name: str, images: ImageSource, num_classes: int, class_names: Sequence[str] | None
) -> tuple[ImageSource, tuple[int, ...] | None]:
    """Images with the model's labels, and the classes to predict (None: all)."""
    match, labels = ClassMatch(()), images.labels
    if isinstance(images, Folder | DatasetImages) and labels is not None and images.class_names is not None:
        numbered = isinstance(images, DatasetImages)
        try:
            match = match_classes(images.class_names, num_classes, class_names, numbered=numbered)
        except InputError as error:
            raise InputError(f"dataset {name!r}: {error}" if numbered else str(error)) from error
        labels = tuple(match.labels[label] if label >= 0 else label for label in labels)
        images = Subset(images, range(len(images)), labels)
    count = len(match.class_indices) if match.class_indices else num_classes
    if labels and not 0 <= min(labels) <= max(labels) < count:
        raise InputError(f"labels of {name!r} are {min(labels)}..{max(labels)}, but the model has {count} classes")
    return images, match.class_indices


def _load_dataset(where: str) -> DatasetImages:
    try:
        import datasets
    except ImportError as error:
        raise NaviaError("Hugging Face datasets need the datasets package: pip install 'navia[hf]'") from error
    name, _, split = where.removeprefix("datasets:").partition(":")
    place = str(local_folder(where) or name)
    try:
        if (Path(place) / "dataset_info.json").exists() or (Path(place) / "dataset_dict.json").exists():
            found = datasets.load_from_disk(place)
            found = found[split or next(iter(found))] if isinstance(found, datasets.DatasetDict) else found
        else:
            found = datasets.load_dataset(place, split=split or "test")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"cannot open dataset {where.removeprefix('datasets:')!r}: {error}") from error
    return DatasetImages(found)


def _has_wnids(images: ImageSource) -> bool:
    """Whether its classes are named by ImageNet's wnids."""
    found = getattr(images, "class_names", None)
    return bool(found) and images.labels is not None and all(name in imagenet.class_index() for name in found or ())
