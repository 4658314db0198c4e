"""Image files -> normalised tensors as the model was trained on: decode, resize, crop, normalise."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from navia.errors import InputError

MAX_PIXELS = 100_000_000  # a decoded image of this size takes 0.3 GB
_PILLOW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}

ImageLike = Image.Image | np.ndarray | Tensor | str | Path


def open_image(path: str | Path) -> Image.Image:
    """Decode an image file and apply its EXIF orientation; an InputError names the file."""
    try:
        with open(path, "rb") as file:
            return decode(file, f"image {str(path)!r}")
    except FileNotFoundError:
        raise InputError(f"no image file {str(path)!r}") from None
    except OSError as error:
        raise InputError(f"cannot read image {str(path)!r}: {error}") from error


def decode(
    file: IO[bytes], name: str, *, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] | None = None
) -> Image.Image:
    """Decode the (first) image of an open file. formats: names of Pillow's formats that are allowed; None: all."""
    try:
        with Image.open(file, formats=formats) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError(f"{image.width}x{image.height} px")
            image.load()
            return ImageOps.exif_transpose(image)
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is too large to decode: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:  # ValueError: damaged PPM, PNG, TIFF
        unknown = isinstance(error, UnidentifiedImageError)  # its message names an object in memory
        raise InputError(f"cannot read {name}: {'unknown image format' if unknown else error}") from error


def as_pillow(image: ImageLike) -> Image.Image:
    """Convert to a Pillow image: a path, or uint8 pixels as an array [H, W] or [H, W, C] or a tensor [C, H, W]."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, str | Path):
        return open_image(image)
    got = type(image).__name__
    if isinstance(image, np.ndarray | Tensor):
        is_tensor = isinstance(image, Tensor)
        pixels = np.moveaxis(image.detach().cpu().numpy(), 0, -1) if isinstance(image, Tensor) else image
        grey = pixels.ndim == 2 and not is_tensor
        if pixels.dtype == np.uint8 and pixels.size and (grey or (pixels.ndim == 3 and pixels.shape[2] in _PILLOW_MODES)):
            return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))
        got = f"{'a tensor' if is_tensor else 'an array'} of {image.dtype} and shape {tuple(image.shape)}"
    raise InputError(
        f"an image must be a Pillow image, a path, or uint8: an array [H, W, C] or a tensor [C, H, W]; got {got}"
    )


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop and normalise images for one model.

    Args:
        size: (height, width) of the model's input.
        mean: Mean per channel (1, 3 or 4 channels) of pixels in [0, 1].
        std: Standard deviation per channel.
        resize: Length of the shorter side before the crop, an exact (height, width), or None for a crop only.
        interpolation: nearest, bilinear, bicubic or lanczos.
        origin: Where these values come from, for reports.
        floor_crop: Round half pixels of the crop's margin down (transformers); otherwise to even (torchvision).

    Example:
        >>> from PIL import Image
        >>> preprocessing = navia.Preprocessing((224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, resize=256)
        >>> preprocessing.batch([Image.new("RGB", (300, 280))]).shape
        torch.Size([1, 3, 224, 224])
    """

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
        """Return the normalised float tensor [C, H, W] of an image."""
        return self.normalise(self.crop(image))

    def normalise(self, cropped: Image.Image | np.ndarray) -> Tensor:
        """Normalise an image (or its uint8 pixels) that is cropped already, to a float tensor [C, H, W]."""
        pixels = np.asarray(cropped, dtype=np.float32).reshape(*self.size, len(self.mean)) / np.float32(255)
        normalised = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normalised.transpose(2, 0, 1), dtype=np.float32))

    def batch(self, images: Iterable[ImageLike]) -> Tensor:
        """Return a batch [B, C, H, W] of images: Pillow images, paths, or uint8 pixels (see `as_pillow`)."""
        if isinstance(images, str | Path | Image.Image):
            raise InputError(f"a batch needs a list of images, got one {type(images).__name__}")
        tensors = [self(image) for image in images]
        if not tensors:
            raise InputError("a batch needs a list of images, got an empty one")
        return torch.stack(tensors)

    def crop(self, image: ImageLike) -> Image.Image:
        """Resize and crop an image; the result is not normalised yet."""
        image = as_pillow(image).convert(_PILLOW_MODES[len(self.mean)])
        if self.resize is not None:
            short = min(image.size)  # the longer side is rounded down, as in torchvision
            side = self.resize
            resized = side[::-1] if isinstance(side, tuple) else tuple(int(side * length / short) for length in image.size)
            image = image.resize((resized[0], resized[1]), Image.Resampling[self.interpolation.upper()])
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
        """Smallest and largest normalised value of pixels in [-margin, 1 + margin]."""
        mean, std = np.array(self.mean), np.array(self.std)
        return float(((-margin - mean) / std).min()), float(((1 + margin - mean) / std).max())

    def denormalise(self, images: Tensor) -> Tensor:
        """Map normalised images [..., C, H, W] back to [0, 1]."""
        mean, std = images.new_tensor([self.mean, self.std])[..., None, None]
        return images * std + mean

    def crop_only(self) -> "Preprocessing":
        """Return the same without the resize, for images that are resized already (ImageNet-C)."""
        return replace(self, resize=None, origin=f"{self.origin}, crop only")

    def describe(self) -> str:
        """One line for reports."""
        size = self.resize
        to = f"resize to {size[1]}x{size[0]}" if isinstance(size, tuple) else f"shorter side to {size}"
        steps = f"{to} px ({self.interpolation}), " if size is not None else ""
        mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
        return f"{steps}centre crop {self.size[1]}x{self.size[0]}, mean ({mean}), std ({std}) [{self.origin}]"

    def as_dict(self) -> dict[str, Any]:
        """Fields as JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
