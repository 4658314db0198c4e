"""Where pictures come from (a collection), and pictures of one kind (a domain): a collection as it is, or corrupted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data.corruptions import corrupt, names, seed_of
from navia.data.preprocessing import Preprocessing
from navia.errors import InputError, known_names


class Collection(Protocol):
    """Pictures that can be read one by one. labels: one per picture, or None where nobody knows."""

    @property
    def labels(self) -> Sequence[int] | None: ...

    def __len__(self) -> int: ...

    def name(self, position: int) -> str:
        """Unique and stable: seeds depend on it, and results are listed under it."""

    def read(self, position: int) -> Image.Image:
        """The decoded picture, or an InputError that names it."""


@dataclass(frozen=True)
class Pixels:
    """A collection in memory: images uint8 [N, H, W] or [N, H, W, 3]."""

    images: np.ndarray
    labels: Sequence[int] | None = None
    prefix: str = "image"

    def __len__(self) -> int:
        return len(self.images)

    def name(self, position: int) -> str:
        return f"{self.prefix}/{position:05}"

    def read(self, position: int) -> Image.Image:
        return Image.fromarray(self.images[position])


@dataclass(frozen=True)
class Subset:
    """Some pictures of a collection, in the order of `positions`; each keeps its name."""

    whole: Collection
    positions: Sequence[int]

    @cached_property
    def labels(self) -> Sequence[int] | None:
        labels = self.whole.labels
        return None if labels is None else [labels[i] for i in self.positions]

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, position: int) -> str:
        return self.whole.name(self.positions[position])

    def read(self, position: int) -> Image.Image:
        return self.whole.read(self.positions[position])


class DatasetPictures:
    """A collection from a Hugging Face `datasets.Dataset` with an image column (decoded to Pillow pictures).
    class_names: of the labels, where the data set knows them."""

    def __init__(self, dataset: Any, image: str = "image", label: str = "label") -> None:
        columns = list(dataset.column_names)
        if image not in columns:
            raise InputError(f"the data set has no column {image!r}; it has {', '.join(columns)}")
        self.dataset = dataset
        self.image = image
        numbers = _whole_numbers(dataset[label], label) if label in columns else None
        self.labels = None if numbers and set(numbers) == {-1} else numbers  # -1: a test set whose labels are kept back
        self.class_names: Sequence[str] | None = getattr(dataset.features.get(label), "names", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def name(self, position: int) -> str:
        return f"{position:07}"

    def read(self, position: int) -> Image.Image:
        try:
            picture = self.dataset[position][self.image]
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"cannot read image {position} of the data set: {error}") from error
        if not isinstance(picture, Image.Image):
            raise InputError(f"column {self.image!r} of the data set holds {type(picture).__name__}, not images")
        return picture


def _whole_numbers(values: Iterable[Any], column: str) -> list[int]:
    numbers = list(values)
    for value in numbers:
        if not isinstance(value, int):
            raise InputError(f"column {column!r} of the data set holds {value!r}, not the number of a class")
    return numbers


@dataclass(frozen=True)
class Domain:
    """Pictures of one kind. severity 0: as they are."""

    name: str
    collection: Collection
    corruption: str | None = None
    severity: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.corruption is not None and self.corruption not in names(extra=True):
            raise InputError(f"unknown corruption {self.corruption!r}{known_names(self.corruption, names(extra=True))}")
        if self.severity not in range(6):  # said here: later it would look as if the pictures could not be read
            raise InputError(f"severity must be an integer from 0 (as they are) to 5, not {self.severity!r}")

    def picture(self, position: int, preprocessing: Preprocessing) -> np.ndarray:
        """What the model would see, uint8 [H, W] or [H, W, 3]: cropped first and then corrupted, as ImageNet-C was."""
        name = self.collection.name(position)
        try:
            pixels = np.asarray(preprocessing.crop(self.collection.read(position)))
            if self.corruption is None or self.severity == 0:
                return pixels
            seed = seed_of(name, self.corruption, self.severity, self.seed)
            return corrupt(pixels, self.corruption, self.severity, seed=seed)
        except InputError as error:
            if name in str(error):
                raise
            raise InputError(f"{name}: {error}") from error

    def tensor(self, position: int, preprocessing: Preprocessing) -> Tensor:
        """[C, H, W], normalised."""
        return preprocessing.normalise(self.picture(position, preprocessing))

    def tensors(self, positions: Iterable[int], preprocessing: Preprocessing) -> Tensor:
        """[N, C, H, W], normalised."""
        return torch.stack([self.tensor(int(position), preprocessing) for position in positions])

    def label(self, position: int) -> int:
        """-1 where nobody knows."""
        return -1 if self.collection.labels is None else int(self.collection.labels[position])


def corrupted(collection: Collection, corruptions: Sequence[str], severity: int = 5, seed: int = 0) -> list[Domain]:
    """One domain per corruption."""
    return [Domain(name, collection, name, severity, seed) for name in corruptions]


def gradual(collection: Collection, corruptions: Sequence[str], seed: int = 0) -> list[Domain]:
    """Each corruption comes and goes: severities 1 to 5 and back (Wang et al., 2022, CoTTA)."""
    steps = ((1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (4, " again"), (3, " again"), (2, " again"), (1, " again"))
    return [
        Domain(f"{name}/{severity}{again}", collection, name, severity, seed)
        for name in corruptions
        for severity, again in steps
    ]
