"""A stream of positions -> batches of tensors, decoded (and corrupted) in worker processes, in the stream's order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from navia.data.preprocessing import Preprocessing
from navia.data.streams import Stream
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


def batch_images(batch: Any) -> Any:
    """What holds the images in a batch of any usual loader: itself (a tensor), its first element (a tuple or list), its
    pixel_values, images or image (a dict), or its attribute images (navia's own). Unchecked."""
    if isinstance(batch, Mapping):
        key = next((key for key in ("pixel_values", "images", "image") if key in batch), None)
        if key is None:
            has = ", ".join(map(str, batch)) or "nothing"
            raise InputError(f"a batch that is a dict needs its images as pixel_values, images or image; it has {has}")
        return batch[key]
    if isinstance(batch, tuple | list):
        if not batch:
            raise InputError(f"a batch is an empty {type(batch).__name__}: its images must come first")
        return batch[0]
    return getattr(batch, "images", batch)


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
