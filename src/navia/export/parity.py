"""Whether an exported file answers as the adapter does: the same pictures through both, in batches of several sizes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from navia.export.frozen import ExportError, Frozen
from navia.models.base import ViT
from navia.reduction import NoReduction

Answer = Callable[[Tensor], Tensor]

BATCHES = (1, 7)  # then the rest, in batches of 16
NUDGE = 1e-6  # on normalised pixels, where one grey level is about 1e-2
MADE_UP = 16


@dataclass(frozen=True)
class Parity:
    """differences: the largest |difference| of a logit, by batch size. agree: pictures with the same top-1. beyond: pictures
    that differ by more than the tolerance; undecided: those of them whose merging hangs on the last bits of the numbers, so
    that the model itself answers differently when its pixels move by a millionth."""

    images: int
    differences: dict[int, float]
    agree: int
    beyond: int
    undecided: int
    tolerance: float

    @property
    def difference(self) -> float:
        return max(self.differences.values())

    @property
    def fine(self) -> bool:
        """No difference but for ties, and these few enough for the others to show something."""
        return self.beyond == self.undecided <= self.images / 2

    def describe(self) -> str:
        sizes = ", ".join(str(size) for size in self.differences)
        text = f"max |difference| {self.difference:.1e} over {self.images} pictures in batches of {sizes}; "
        text += f"top-1 agrees on {self.agree} of {self.images}"
        if self.beyond:
            text += f"; {self.beyond} beyond {self.tolerance:g}, of which {self.undecided} by ties between tokens"
        return text


def check(exported: Answer, eager: Answer, frozen: Frozen, images: Tensor, tolerance: float) -> Parity:
    """`exported` against `eager` on all `images`."""
    differences: dict[int, float] = {}
    agree = beyond = undecided = 0
    for batch in _batches(images):
        want, got = eager(batch), exported(batch)
        if want.shape != got.shape:
            raise ExportError(f"the exported file answers with shape {tuple(got.shape)}, not {tuple(want.shape)}")
        apart = (got - want).abs().amax(dim=1).nan_to_num(nan=float("inf"))
        differences[len(batch)] = max(differences.get(len(batch), 0.0), apart.max().item())
        agree += int((got.argmax(dim=1) == want.argmax(dim=1)).sum())
        for i in (apart > tolerance).nonzero().flatten().tolist():
            beyond += 1
            undecided += _is_undecided(frozen, batch[i], tolerance)
    return Parity(len(images), differences, agree, beyond, undecided, tolerance)


def pictures(vit: ViT, images: Tensor | None) -> Tensor:
    """What the check is made with: the given images, or made-up ones; enough of them for every batch size."""
    if images is None:
        return made_up_pictures(vit, MADE_UP)
    vit.check_images(images.to(vit.device))
    least = sum(BATCHES)
    return images.float().cpu().repeat(-(-least // len(images)), 1, 1, 1)[: max(least, len(images))]


def made_up_pictures(vit: ViT, count: int, seed: int = 0) -> Tensor:
    """Random pictures with the spectrum of photographs (amplitude 1/f, colours that go together), preprocessed."""
    height, width = vit.image_size or vit.preprocessing.size
    random = np.random.default_rng(seed)
    shape = (count, vit.in_chans, height, width)
    noise = random.standard_normal((count, 1, height, width)) + 0.5 * random.standard_normal(shape)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    smooth = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(frequency, 1 / max(height, width)), s=(height, width))
    smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
    grey = np.round(255 * np.clip(0.5 + 0.2 * smooth, 0, 1)) / 255
    mean, std = (np.reshape(values, (-1, 1, 1)) for values in (vit.preprocessing.mean, vit.preprocessing.std))
    return torch.from_numpy(((grey - mean) / std).astype(np.float32))


def _batches(images: Tensor) -> Iterator[Tensor]:
    start = 0
    for size in BATCHES:
        yield images[start : start + size]
        start += size
    yield from images[start:].split(16) if start < len(images) else ()


@torch.no_grad()
def _is_undecided(frozen: Frozen, image: Tensor, tolerance: float) -> bool:
    """Whether nudges far below a grey level change which tokens go together, and with that the answer: two runtimes round
    differently, and neither choice is then the right one."""
    if isinstance(frozen.reduce, NoReduction):
        return False
    generator = torch.Generator().manual_seed(0)
    nudges = torch.randn(16, *image.shape, generator=generator) * NUDGE
    nudged = torch.cat([image.unsqueeze(0), image + nudges])
    answers, groups = frozen(nudged), frozen.groups(nudged)
    moved = (answers - answers[:1]).abs().amax(dim=1) > tolerance
    return bool((moved & (groups != groups[:1]).any(dim=1)).any())
