"""Streams, datasets, loaders and tensors -> batches of images; streams are decoded in worker processes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from navia.data.preprocessing import Preprocessing
from navia.data.sources import DatasetImages, Domain, open_domains, open_images
from navia.data.streams import Stream, make_stream
from navia.errors import InputError, SpecError

SampleIndex = tuple[int, int, int]  # segment, domain, image


@dataclass(frozen=True)
class Batch:
    """One batch of a stream: images [B, C, H, W] (with a `Shard` those of this process), labels [B] (-1: unknown), names and
    domains of the images. number: among the stream's batches. reset: adaptation restarts from the source before it."""

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
    images, _ = _split(batch)
    if not isinstance(images, Tensor):
        raise InputError(
            f"images must be a tensor [B, C, H, W], got {type(images).__name__}: give a tensor, (images, labels), or a dict "
            "with pixel_values, images or image; vit.preprocessing.batch(...) makes a tensor of Pillow images"
        )
    return images


def batch_labels(batch: Any) -> Tensor | None:
    """Return the labels [B] of a batch as `batch_images` takes it; None if it has none or all are unknown (-1)."""
    _, found = _split(batch)
    if found is None:
        return None
    try:
        labels = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"labels of a batch must be class indices, got {type(found).__name__} ({error})") from error
    if labels.dim() != 1 or labels.is_floating_point():
        raise InputError(f"labels of a batch must be class indices [B], got {labels.dtype} {tuple(labels.shape)}")
    return None if len(labels) and bool((labels < 0).all()) else labels.long()


def _split(item: Any) -> tuple[Any, Any]:
    """Images and labels of a batch, or image and label of a sample, unchecked; None without labels."""
    if isinstance(item, Mapping):
        key = next((key for key in ("pixel_values", "images", "image") if key in item), None)
        if key is None:
            found = ", ".join(map(str, item)) or "nothing"
            raise InputError(f"a batch that is a dict needs its images as pixel_values, images or image; it has {found}")
        return item[key], next((item[key] for key in ("labels", "label") if key in item), None)
    if isinstance(item, tuple | list):
        if not item:
            raise InputError(f"a batch is an empty {type(item).__name__}: its images must come first")
        return item[0], item[1] if len(item) > 1 else None
    return getattr(item, "images", item), getattr(item, "labels", None)


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
    device: torch.device | None = None,
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
        seed: Order of datasets and labelled folders. Unlabelled folders are read by name, other data in its own order.
        num_classes: Number of classes of the model, to give class folders the model's labels (see `open_domains`). Without
            it, labels are positions among the sorted class folders, as in torchvision's `ImageFolder`.
        class_names: The model's class names, for the same purpose.
        device: Where the images will go; for CUDA those that are decoded here are put into pinned memory.

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
    classes, seen = None, 0
    if isinstance(data, str | Path) and num_classes is not None:
        opened = open_domains(data, num_classes, class_names)
        classes = None if opened.classes is None else torch.tensor(opened.classes)
        data = make_stream(opened.domains, seed=None if opened.domains[0].images.labels is None else seed)
    for batch in _any_batches(data, preprocessing, batch_size, limit, workers, seed, device):
        images, labels = batch_images(batch), batch_labels(batch)
        if labels is not None and len(labels) != len(images):
            raise InputError(f"a batch has {len(images)} images but {len(labels)} labels")
        if labels is not None and classes is not None:
            labels = classes[labels]
        left = None if limit is None else limit - seen
        yield images[:left], None if labels is None else labels[:left]
        seen += len(images)
        if limit is not None and seen >= limit:
            return


def _any_batches(
    data: Any,
    preprocessing: Preprocessing,
    batch_size: int,
    limit: int | None,
    workers: int,
    seed: int,
    device: torch.device | None,
) -> Iterable[Any]:
    if isinstance(data, str | Path):
        data = Domain(str(data), open_images(data))
    elif hasattr(data, "column_names") and hasattr(data, "features"):  # of Hugging Face datasets
        data = Domain("dataset", DatasetImages(data))
    if isinstance(data, Domain):
        data = make_stream([data], seed=None if data.images.labels is None else seed)
    if isinstance(data, Stream):
        return Loader(data, preprocessing, batch_size, workers, device=device)
    if isinstance(data, Tensor):
        return data.split(batch_size)
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        order = np.random.default_rng(seed).permutation(len(data))[:limit].tolist()
        samples = _Samples(data, preprocessing)
        return DataLoader(
            samples,
            batch_size,
            sampler=order,
            num_workers=workers,
            pin_memory=is_cuda(device),
            generator=torch.Generator(),
        )
    if isinstance(data, Iterable) and not isinstance(data, Mapping | Dataset):
        return data
    raise InputError(
        f"cannot read images from {type(data).__name__}: give a folder, a map-style dataset, a DataLoader of tensors, "
        "tuples or dicts, or a tensor"
    )


@dataclass(frozen=True)
class _Samples(Dataset[tuple[Tensor, int]]):
    """Samples of a map-style dataset as (image tensor, label or -1)."""

    dataset: Any
    preprocessing: Preprocessing

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = _split(self.dataset[index])
        try:
            label = -1 if label is None else int(label)
        except (TypeError, ValueError) as error:
            raise InputError(f"sample {index} of the dataset has the label {label!r}, not a class index") from error
        return image if isinstance(image, Tensor) else self.preprocessing(image), label


class Shard:
    """Selects the images of a batch that this process decodes: all, unless several processes share a stream."""

    def select(self, indices: list[SampleIndex]) -> list[SampleIndex]:
        """Images of the batch for this process."""
        return indices

    def gather(self, reasons: list[str | None]) -> list[str | None]:
        """Collect the read errors of all processes in the order of the batch."""
        return reasons


def is_cuda(device: torch.device | None) -> bool:
    """Whether images for this device belong into pinned memory."""
    return device is not None and device.type == "cuda"


def move_images(images: Tensor, device: torch.device) -> Tensor:
    """Images on `device`. Copies to CUDA do not wait; others do, because nothing else would wait for them."""
    return images.to(device, non_blocking=is_cuda(device))


class Loader:
    """Iterate over the batches of a stream from batch `start` on. No batch spans two segments.

    skip_unreadable: leave out images that cannot be read and list them in `unreadable` as (name, reason); otherwise they
    raise an InputError. shard: for several processes that share a stream. device: where the images will go; for CUDA they
    are put into pinned memory, from which copies do not wait."""

    def __init__(
        self,
        stream: Stream,
        preprocessing: Preprocessing,
        batch_size: int = 64,
        workers: int = 0,
        *,
        skip_unreadable: bool = False,
        start: int = 0,
        shard: Shard | None = None,
        device: torch.device | None = None,
    ) -> None:
        if batch_size < 1 or workers < 0:
            raise SpecError(f"batch_size must be at least 1 and workers at least 0, not {batch_size} and {workers}")
        self.stream, self.preprocessing, self.workers = stream, preprocessing, workers
        self.skip_unreadable, self.start, self.shard = skip_unreadable, start, shard or Shard()
        self.device = device
        self.unreadable: list[tuple[str, str]] = []
        self.plan: list[list[SampleIndex]] = [
            [(number, int(domain), int(index)) for domain, index in segment.indices[begin : begin + batch_size]]
            for number, segment in enumerate(stream.segments)
            for begin in range(0, len(segment), batch_size)
        ]

    def __len__(self) -> int:
        """Number of batches from `start` on."""
        return max(0, len(self.plan) - self.start)

    def __iter__(self) -> Iterator[Batch]:
        if not 0 <= self.start <= len(self.plan):
            raise SpecError(f"start {self.start} lies outside of the stream: it has {len(self.plan)} batches")
        self.unreadable.clear()
        decoded = DataLoader(
            _Decoder(self.stream.domains, self.preprocessing),
            batch_sampler=[self.shard.select(indices) for indices in self.plan[self.start :]],
            num_workers=self.workers,
            collate_fn=_stack,
            pin_memory=is_cuda(self.device),
            generator=torch.Generator(),  # so that the global generator is not advanced
        )
        last_segment = self.plan[self.start - 1][0][0] if self.start else -1
        reset = False  # stays due until there is a batch, however many images or segments could not be read
        for number, (images, own_errors) in enumerate(decoded, self.start):
            segment = self.plan[number][0][0]
            reset = reset or (self.stream.segments[segment].reset and segment != last_segment)
            last_segment = segment
            samples = []
            for (_, at, index), error in zip(self.plan[number], self.shard.gather(own_errors), strict=True):
                domain = self.stream.domains[at]
                name = domain.images.name(index)
                if error is None:
                    samples.append((name, domain.name, domain.label(index)))
                    continue
                self.unreadable.append((name, error))
                if not self.skip_unreadable:
                    advice = "navia doctor lists such images, navia run --skip-unreadable leaves them out"
                    raise InputError(f"{error} ({advice})")
            if samples:
                names, domains, labels = zip(*samples, strict=True)
                yield Batch(images, torch.tensor(labels), names, domains, number, reset)
                reset = False


def _stack(decoded: list[Tensor | str]) -> tuple[Tensor, list[str | None]]:
    """Readable images [B, C, H, W] ([0] if there are none), and for each image its read error or None.

    Runs in the workers: every tensor from a worker holds a file open, and one per image would exhaust a process's open
    files and hang it."""
    images = [image for image in decoded if isinstance(image, Tensor)]
    errors = [image if isinstance(image, str) else None for image in decoded]
    return (torch.stack(images) if images else torch.empty(0)), errors


@dataclass(frozen=True)
class _Decoder(Dataset[Tensor | str]):
    """Decoded image, or the read error as text."""

    domains: tuple[Domain, ...]
    preprocessing: Preprocessing

    def __getitem__(self, sample: SampleIndex) -> Tensor | str:
        try:
            return self.domains[sample[1]].tensor(sample[2], self.preprocessing)
        except InputError as error:
            return str(error)
