"""Whether an exported file predicts what the adapter predicts: the same images through both, in several batch sizes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from navia.export.module import ExportError, FrozenModel
from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import NoReduction

Predict = Callable[[Tensor], Tensor]

BATCHES = (1, 7)  # then the other images, in batches of 16
NOISE = 1e-6  # on normalised pixels; one grey level is about 1e-2


@dataclass(frozen=True)
class Parity:
    """The result of a comparison. A tie is an image whose token merging depends on the last bits of the numbers: the model
    itself predicts something else when its pixels change by a millionth."""

    images: int
    differences: dict[int, float]  # largest absolute difference of a logit, by batch size
    agree: int  # images with the same top-1 class
    beyond: int  # images that differ by more than the tolerance
    ties: int  # how many of these are ties
    tolerance: float

    @property
    def difference(self) -> float:
        return max(self.differences.values())

    @property
    def passed(self) -> bool:
        """No difference except by ties, and ties in at most half of the images."""
        return self.beyond == self.ties <= self.images / 2

    def describe(self) -> str:
        sizes = ", ".join(map(str, self.differences))
        beyond = f"; {self.beyond} beyond {self.tolerance:g} ({self.ties} by ties between tokens)" if self.beyond else ""
        return (
            f"max |difference| {self.difference:.1e} over {self.images} images in batches of {sizes}; "
            f"top-1 agrees on {self.agree} of {self.images}{beyond}"
        )


def compare(exported: Predict, expected: Predict, frozen: FrozenModel, images: Tensor, tolerance: float) -> Parity:
    """Compare the logits of `exported` with those of `expected` on all `images`."""
    differences: dict[int, float] = {}
    agree = beyond = ties = 0
    rest = images[sum(BATCHES) :]
    for batch in (*images[: sum(BATCHES)].split(list(BATCHES)), *(rest.split(16) if len(rest) else ())):
        want, got = expected(batch), exported(batch)
        if want.shape != got.shape:
            raise ExportError(f"the exported file returns logits of shape {tuple(got.shape)}, not {tuple(want.shape)}")
        difference = (got - want).abs().amax(dim=1).nan_to_num(nan=float("inf"))
        differences[len(batch)] = max(differences.get(len(batch), 0.0), difference.max().item())
        agree += int((got.argmax(dim=1) == want.argmax(dim=1)).sum())
        different = batch[difference > tolerance]
        beyond += len(different)
        ties += sum(_is_tie(frozen, image, tolerance) for image in different)
    return Parity(len(images), differences, agree, beyond, ties, tolerance)


def comparison_images(vit: ViT, images: Tensor | None) -> Tensor:
    """The given images, repeated until they fill every batch size, or random ones."""
    if images is None:
        return random_images(vit, 16)
    vit.check_images(images.to(vit.device), values=True)
    least = sum(BATCHES)
    return images.float().cpu().repeat(-(-least // len(images)), 1, 1, 1)[: max(least, len(images))]


def random_images(vit: ViT, count: int, seed: int = 0) -> Tensor:
    """Random preprocessed images with the spectrum of photographs (amplitude 1/f, correlated colours)."""
    height, width = vit.image_size or vit.preprocessing.size
    random, shape = np.random.default_rng(seed), (count, vit.in_chans, height, width)
    noise = random.standard_normal((count, 1, height, width)) + 0.5 * random.standard_normal(shape)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    smooth = np.fft.irfft2(np.fft.rfft2(noise) / np.maximum(frequency, 1 / max(height, width)), s=(height, width))
    smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
    grey = np.round(255 * np.clip(0.5 + 0.2 * smooth, 0, 1)) / 255
    mean, std = (np.reshape(values, (-1, 1, 1)) for values in (vit.preprocessing.mean, vit.preprocessing.std))
    return torch.from_numpy(((grey - mean) / std).astype(np.float32))


@torch.no_grad()
def _is_tie(frozen: FrozenModel, image: Tensor, tolerance: float) -> bool:
    """Whether noise far below a grey level changes which tokens are merged, and with that the logits. Two runtimes round
    differently, and neither choice is then the right one."""
    if isinstance(frozen.reduce, NoReduction):
        return False
    noise = torch.randn(16, *image.shape, generator=torch.Generator().manual_seed(0)) * NOISE
    images = torch.cat([image.unsqueeze(0), image + noise])
    out = forward(frozen.vit, images, frozen.reduce, edits=frozen.edits, classes=frozen.classes, trace=True)
    assert out.tokens.sources is not None
    merged = out.tokens.sources.unsqueeze(2) == out.tokens.sources.unsqueeze(1)  # which tokens are together [B, N, N]
    changed = (out.logits - out.logits[:1]).abs().amax(dim=1) > tolerance
    return bool((changed & (merged != merged[:1]).flatten(1).any(dim=1)).any())
