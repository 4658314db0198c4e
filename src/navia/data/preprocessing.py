"""The way from a picture to the tensor that a model was trained on: resize, crop, scale, normalise."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data.folder import open_image
from navia.errors import InputError

_PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}

ImageLike = Image.Image | np.ndarray | Tensor | str | Path


def as_pillow(image: ImageLike) -> Image.Image:
    """A Pillow image as it is, of a file, or of pixels in uint8: an array [H, W] or [H, W, C], a tensor [C, H, W]."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | Path):
        return open_image(image)
    got = type(image).__name__
    if isinstance(image, np.ndarray | Tensor):
        pixels = image if isinstance(image, np.ndarray) else image.detach().cpu().numpy()
        if isinstance(image, Tensor) and image.dim() == 3:
            pixels = pixels.transpose(1, 2, 0)
        flat = pixels.ndim == 2 and isinstance(image, np.ndarray)
        if pixels.dtype == np.uint8 and pixels.size and (flat or (pixels.ndim == 3 and pixels.shape[2] in _PILLOW_MODES)):
            return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))
        kind = "an array" if isinstance(image, np.ndarray) else "a tensor"
        got = f"{kind} of {image.dtype} and shape {tuple(image.shape)}"
    raise InputError(
        f"an image must be a Pillow image, a path, or uint8: an array [H, W, C] or a tensor [C, H, W]; got {got}"
    )


@dataclass(frozen=True)
class Preprocessing:
    """size: (height, width) that the model sees. resize: the shorter side's length before the centre crop, an exact
    (height, width), or None for a crop only. origin: where these values come from, for reports. floor_crop: half pixels
    of the crop's margin are cut off, as transformers does; otherwise they go to the even side, as torchvision does."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | tuple[int, int] | None = None
    interpolation: str = "bicubic"
    origin: str = "given by the user"
    floor_crop: bool = False

    def __post_init__(self) -> None:
        if self.interpolation not in ("nearest", "bilinear", "bicubic", "lanczos"):
            raise InputError(f"unknown interpolation {self.interpolation!r}; known: nearest, bilinear, bicubic, lanczos")
        if len(self.mean) != len(self.std) or len(self.mean) not in _PILLOW_MODES:
            raise InputError(f"mean and std must both have 1, 3 or 4 channels, got {len(self.mean)} and {len(self.std)}")
        resize = self.resize if isinstance(self.resize, tuple) else (1 if self.resize is None else self.resize,)
        if min(*self.size, *resize) < 1 or any(s <= 0 for s in self.std):
            raise InputError("preprocessing needs positive sizes and positive standard deviations")

    def __call__(self, image: ImageLike) -> Tensor:
        """Image -> normalised float tensor [C, H, W]."""
        return self.normalise(self.crop(image))

    def normalise(self, cropped: Image.Image | np.ndarray) -> Tensor:
        """A picture that was cropped already (or its pixels, uint8) -> normalised float tensor [C, H, W]."""
        pixels = np.asarray(cropped, dtype=np.float32).reshape(*self.size, len(self.mean)) / np.float32(255)
        normalised = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normalised.transpose(2, 0, 1), dtype=np.float32))

    def batch(self, images: Iterable[ImageLike]) -> Tensor:
        """Images -> [B, C, H, W]. Each is a Pillow image, the path of a file, or its pixels in uint8: an array [H, W],
        [H, W, C] or a tensor [C, H, W]."""
        if isinstance(images, str | Path | Image.Image):
            raise InputError(f"a batch is made from a list of images, got one {type(images).__name__}")
        tensors = [self(image) for image in images]
        if not tensors:
            raise InputError("a batch is made from a list of images, got an empty one")
        return torch.stack(tensors)

    def crop(self, image: ImageLike) -> Image.Image:
        """The image as the model sees it, before scaling and normalisation."""
        image = as_pillow(image).convert(_PILLOW_MODES[len(self.mean)])
        if self.resize is not None:
            image = image.resize(self._resized(image), Image.Resampling[self.interpolation.upper()])
        height, width = self.size
        if image.height < height or image.width < width:
            remedy = ": leave out --crop-only, so that it is resized first" if self.resize is None else ""
            raise InputError(
                f"image of {image.width}x{image.height} px is smaller than the crop of {width}x{height} px{remedy}"
            )
        half = math.floor if self.floor_crop else round
        left, top = half((image.width - width) / 2), half((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))

    def value_range(self, margin: float = 0.0) -> tuple[float, float]:
        """Smallest and largest normalised value of pixels from -margin to 1 + margin, black being 0 and white 1."""
        channels = list(zip(self.mean, self.std, strict=True))
        return min((-margin - mean) / std for mean, std in channels), max(
            (1 + margin - mean) / std for mean, std in channels
        )

    def denormalise(self, images: Tensor) -> Tensor:
        """Normalised [..., C, H, W] -> [0, 1], the inverse of the last step."""
        mean = torch.tensor(self.mean, dtype=images.dtype, device=images.device)[:, None, None]
        std = torch.tensor(self.std, dtype=images.dtype, device=images.device)[:, None, None]
        return images * std + mean

    def crop_only(self) -> "Preprocessing":
        """For pictures that are already resized, such as the files of ImageNet-C."""
        return replace(self, resize=None, origin=f"{self.origin}, crop only")

    def describe(self) -> str:
        if self.resize is None:
            steps = ""
        elif isinstance(self.resize, int):
            steps = f"shorter side to {self.resize} px ({self.interpolation}), "
        else:
            steps = f"resize to {self.resize[1]}x{self.resize[0]} px ({self.interpolation}), "
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"{steps}centre crop {self.size[1]}x{self.size[0]}, mean ({mean}), std ({std}) [{self.origin}]"

    def as_dict(self) -> dict[str, Any]:
        return {
            "size": list(self.size),
            "resize": list(self.resize) if isinstance(self.resize, tuple) else self.resize,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
            "origin": self.origin,
            "floor_crop": self.floor_crop,
        }

    def _resized(self, image: Image.Image) -> tuple[int, int]:
        """(width, height) after the resize; the longer side is truncated as torchvision does."""
        if isinstance(self.resize, tuple):
            return self.resize[1], self.resize[0]
        assert self.resize is not None
        short, long = sorted(image.size)
        longer = int(self.resize * long / short)
        return (self.resize, longer) if image.width <= image.height else (longer, self.resize)
