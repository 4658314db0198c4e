"""A stream of positions -> batches of tensors, decoded (and corrupted) in worker processes, in the stream's order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from navia.data.domain import DatasetPictures, Domain
from navia.data.open import open_domains, open_images
from navia.data.preprocessing import Preprocessing
from navia.data.streams import Stream, make_stream
from navia.errors import InputError, SpecError

Shot = tuple[int, int, int]  # stretch, domain, position


@dataclass(frozen=True)
class Batch:
    """images [B, C, H, W], or this process's share of them; labels [B], -1 where unknown; names and domains of the pictures.
    number: place among the stream's batches. reset: adaptation starts from the source before this batch."""

    images: Tensor
    labels: Tensor
    names: tuple[str, ...]
    domains: tuple[str, ...]
    number: int
    reset: bool


def batch_images(batch: Any) -> Tensor:
    """Return the images of a batch from any common loader.

    Args:
        batch: A tensor; a tuple or list with the images first (`ImageFolder`); a dict with `pixel_values`, `images` or
            `image` (Hugging Face); or an object with an attribute `images` (`Batch`).

    Raises:
        InputError: There is no image tensor at that place.
    """
    images = _image_of(batch)
    if not isinstance(images, Tensor):
        raise InputError(
            f"images must be a tensor [B, C, H, W], got {type(images).__name__}: give a tensor, (images, labels), or a dict "
            "with pixel_values, images or image; vit.preprocessing.batch(...) makes a tensor of Pillow images"
        )
    return images


def batch_labels(batch: Any) -> Tensor | None:
    """Return the labels [B] of a batch as `batch_images` takes it; None if it has none or all are unknown (-1)."""
    found = _label_of(batch)
    if found is None:
        return None
    try:
        labels = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"labels of a batch must be class indices, got {type(found).__name__} ({error})") from error
    if labels.dim() != 1 or labels.is_floating_point():
        raise InputError(f"labels of a batch must be class indices [B], got {labels.dtype} {tuple(labels.shape)}")
    return None if len(labels) and bool((labels < 0).all()) else labels.long()


def iterate_batches(
    data: Any,
    preprocessing: Preprocessing,
    batch_size: int = 64,
    limit: int | None = None,
    workers: int = 0,
    seed: int = 0,
    *,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Iterate over (images, labels) of any data that navia takes.

    Args:
        data: A folder, "embedded" or "datasets:NAME"; a `Domain` or `Stream`; a Hugging Face dataset; a map-style
            `torch.utils.data.Dataset` of images or (image, label); a `DataLoader` or another iterable of batches as
            `batch_images` takes them; or a tensor [N, C, H, W].
        preprocessing: Applied to files and to Pillow images. Tensors are taken as they are.
        batch_size: Images per batch. Batches of a loader keep their own size.
        limit: Maximum number of images.
        workers: Processes that decode images. A loader has its own.
        seed: Order of labelled images. Unlabelled folders are read in the order of their names, loaders and tensors in
            their own order.
        num_classes: Number of classes of the model, to give class folders the model's labels (see `open_domains`). Without
            it, labels are positions among the sorted class folders, as in torchvision's `ImageFolder`.
        class_names: The model's class names, for the same purpose.

    Yields:
        Images [B, C, H, W] and labels [B], or None without labels.

    Raises:
        InputError: The data is of another kind, or an image cannot be read.

    Example:
        >>> for images, labels in iterate_batches("photos", vit.preprocessing, batch_size=32):
        ...     logits = adapter(images)
    """
    if batch_size < 1 or workers < 0 or (limit is not None and limit < 1):
        raise SpecError(f"batch_size and limit must be at least 1, workers at least 0; got {batch_size}, {limit}, {workers}")
    classes = None
    if isinstance(data, str | Path) and num_classes is not None:
        opened = open_domains(data, num_classes, class_names)
        classes = None if opened.classes is None else torch.tensor(opened.classes)
        labelled = opened.domains[0].collection.labels is not None
        data = make_stream(opened.domains, seed=seed if labelled else None)
    seen = 0
    for batch in _any_batches(data, preprocessing, batch_size, limit, workers, seed):
        images, labels = batch_images(batch), batch_labels(batch)
        if labels is not None and len(labels) != len(images):
            raise InputError(f"a batch has {len(images)} images but {len(labels)} labels")
        if labels is not None and classes is not None:
            labels = classes[labels]
        kept = len(images) if limit is None else min(len(images), limit - seen)
        yield images[:kept], None if labels is None else labels[:kept]
        seen += kept
        if limit is not None and seen >= limit:
            return


def _any_batches(
    data: Any, preprocessing: Preprocessing, batch_size: int, limit: int | None, workers: int, seed: int
) -> Iterable[Any]:
    if isinstance(data, str | Path):
        data = Domain(str(data), open_images(data))
    elif hasattr(data, "column_names") and hasattr(data, "features"):  # of Hugging Face datasets
        data = Domain("dataset", DatasetPictures(data))
    if isinstance(data, Domain):
        data = make_stream([data], seed=None if data.collection.labels is None else seed)
    if isinstance(data, Stream):
        return Loader(data, preprocessing, batch_size, workers)
    if isinstance(data, Tensor):
        return data.split(batch_size)
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        order = np.random.default_rng(seed).permutation(len(data))[:limit].tolist()
        samples = _Samples(data, preprocessing)
        return DataLoader(samples, batch_size, sampler=order, num_workers=workers, generator=torch.Generator())
    if isinstance(data, Iterable) and not isinstance(data, Mapping | Dataset):
        return data
    raise InputError(
        f"cannot read images from {type(data).__name__}: give a folder, a map-style dataset, a DataLoader of tensors, "
        "tuples or dicts, or a tensor"
    )


def _image_of(item: Any) -> Any:
    """The images of a batch or the image of a sample, unchecked."""
    if isinstance(item, Mapping):
        key = next((key for key in ("pixel_values", "images", "image") if key in item), None)
        if key is None:
            found = ", ".join(map(str, item)) or "nothing"
            raise InputError(f"a batch that is a dict needs its images as pixel_values, images or image; it has {found}")
        return item[key]
    if isinstance(item, tuple | list):
        if not item:
            raise InputError(f"a batch is an empty {type(item).__name__}: its images must come first")
        return item[0]
    return getattr(item, "images", item)


def _label_of(item: Any) -> Any:
    """The labels of a batch or the label of a sample, unchecked; None without any."""
    if isinstance(item, Mapping):
        return next((item[key] for key in ("labels", "label") if key in item), None)
    if isinstance(item, tuple | list):
        return item[1] if len(item) > 1 else None
    return getattr(item, "labels", None)


class _Samples(Dataset[tuple[Tensor, int]]):
    """Samples of a map-style dataset as (image tensor, label or -1)."""

    def __init__(self, dataset: Any, preprocessing: Preprocessing) -> None:
        self.dataset = dataset
        self.preprocessing = preprocessing

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = self.dataset[index]
        image, label = _image_of(sample), _label_of(sample)
        try:
            number = -1 if label is None else int(label)
        except (TypeError, ValueError) as error:
            raise InputError(f"sample {index} of the dataset has the label {label!r}, not a class index") from error
        return image if isinstance(image, Tensor) else self.preprocessing(image), number


class Share:
    """Which pictures of a batch this process decodes: all of them, unless several divide a stream among themselves."""

    def own(self, shots: list[Shot]) -> list[Shot]:
        return shots

    def of_all(self, reasons: list[str | None]) -> list[str | None]:
        """Why pictures of the batch could not be read, from all processes in the batch's order."""
        return reasons


class Loader:
    """Iterates over the batches of a stream, from batch number `start` on. No batch spans two stretches.

    Pictures that cannot be read stop the stream with an InputError, or with `skip_unreadable` are left out of their batch
    and listed in `unreadable` (name, reason); a batch of nothing else is left out altogether."""

    def __init__(
        self,
        stream: Stream,
        preprocessing: Preprocessing,
        batch: int = 64,
        workers: int = 0,
        *,
        skip_unreadable: bool = False,
        start: int = 0,
        share: Share | None = None,
    ) -> None:
        if batch < 1 or workers < 0:
            raise SpecError(f"batch must be at least 1 and workers at least 0, not {batch} and {workers}")
        self.stream = stream
        self.preprocessing = preprocessing
        self.workers = workers
        self.skip_unreadable = skip_unreadable
        self.start = start
        self.share = share or Share()
        self.unreadable: list[tuple[str, str]] = []
        self.plan: list[list[Shot]] = [
            [(number, int(domain), int(position)) for domain, position in stretch.shots[begin : begin + batch]]
            for number, stretch in enumerate(stream.stretches)
            for begin in range(0, len(stretch), batch)
        ]

    def __len__(self) -> int:
        """Batches still to come when iteration begins."""
        return max(0, len(self.plan) - self.start)

    def __iter__(self) -> Iterator[Batch]:
        if not 0 <= self.start <= len(self.plan):
            raise SpecError(f"start {self.start} lies outside of the stream: it has {len(self.plan)} batches")
        self.unreadable.clear()
        decoded = DataLoader(
            _Decoder(self.stream, self.preprocessing),
            batch_sampler=[self.share.own(shots) for shots in self.plan[self.start :]],
            num_workers=self.workers,
            collate_fn=_stack,
            generator=torch.Generator(),  # draws a number that nobody uses: the caller's generator is left alone
        )
        last_stretch = self.plan[self.start - 1][0][0] if self.start else -1
        reset = False  # stays due until there is a batch, however many pictures or stretches could not be read
        for number, (images, own_reasons) in enumerate(decoded, self.start):
            shots, reasons = self.plan[number], self.share.of_all(own_reasons)
            stretch = self.stream.stretches[shots[0][0]]
            reset = reset or (stretch.reset and shots[0][0] != last_stretch)
            last_stretch = shots[0][0]
            self._note(shots, reasons)
            good = [shot for shot, reason in zip(shots, reasons, strict=True) if reason is None]
            if good:
                yield self._batch(images, good, number, reset)
                reset = False

    def _note(self, shots: list[Shot], reasons: list[str | None]) -> None:
        for (_, domain, position), reason in zip(shots, reasons, strict=True):
            if reason is not None:
                if not self.skip_unreadable:
                    raise InputError(
                        f"{reason} (navia doctor lists all such images; navia run --skip-unreadable leaves them out)"
                    )
                self.unreadable.append((self.stream.domains[domain].collection.name(position), reason))

    def _batch(self, images: Tensor, shots: list[Shot], number: int, reset: bool) -> Batch:
        domains = [(self.stream.domains[domain], position) for _, domain, position in shots]
        return Batch(
            images=images,
            labels=torch.tensor([domain.label(position) for domain, position in domains]),
            names=tuple(domain.collection.name(position) for domain, position in domains),
            domains=tuple(domain.name for domain, _ in domains),
            number=number,
            reset=reset,
        )


def _stack(answers: list[Tensor | str]) -> tuple[Tensor, list[str | None]]:
    """Readable pictures as one tensor [B, C, H, W] ([0]: there are none), and per shot why it could not be read.

    Done in the workers: every tensor that comes out of one holds a file open, and a tensor per picture would use up the
    open files of a process and leave it waiting for ever."""
    images = [answer for answer in answers if isinstance(answer, Tensor)]
    reasons = [answer if isinstance(answer, str) else None for answer in answers]
    return (torch.stack(images) if images else torch.empty(0)), reasons


class _Decoder(Dataset[Tensor | str]):
    """Tensor of one shot, or in words why there is none."""

    def __init__(self, stream: Stream, preprocessing: Preprocessing) -> None:
        self.domains = stream.domains
        self.preprocessing = preprocessing

    def __getitem__(self, shot: Shot) -> Tensor | str:
        _, domain, position = shot
        try:
            return self.domains[domain].tensor(position, self.preprocessing)
        except InputError as error:
            return str(error)
