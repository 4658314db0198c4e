"""Digital corruptions. They take uint8 [H, W, C] and return values in 0..255."""

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from navia.data.corruptions.noise import to_levels

if TYPE_CHECKING:
    from PIL.Image import Image

Plane = NDArray[np.float64]


def contrast(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Each channel moves towards its mean."""
    keep = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    x = image / 255.0
    mean = x.mean(axis=(0, 1), keepdims=True)
    return to_levels((x - mean) * keep + mean)


def saturate(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Less saturated at severities 1 and 2, more from 3 on. Grey images are unchanged."""
    factor, more = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))[severity - 1]
    if image.shape[2] == 1:
        return image.copy()
    hue, saturation, value = rgb_to_hsv(*np.moveaxis(image, 2, 0) / 255.0)
    return to_levels(np.stack(hsv_to_rgb(hue, np.clip(saturation * factor + more, 0, 1), value), axis=2))


def pixelate(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    from PIL.Image import Resampling

    keep = (0.6, 0.5, 0.4, 0.3, 0.25)[severity - 1]
    height, width = image.shape[:2]
    small = _as_pillow(image).resize((int(width * keep), int(height * keep)), Resampling.BOX)
    return np.asarray(small.resize((width, height), Resampling.BOX))


def jpeg_compression(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    from PIL import Image

    file = BytesIO()
    _as_pillow(image).save(file, "JPEG", quality=(25, 18, 15, 10, 7)[severity - 1])
    return np.asarray(Image.open(file))


def _as_pillow(image: NDArray[np.uint8]) -> "Image":
    from PIL import Image

    return Image.fromarray(image if image.shape[2] == 3 else image[..., 0])


def elastic_transform(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """A random affine map, then a smooth random displacement of each pixel.

    The published lengths are for 224 px (and say 244). They scale with the shorter side here, so that a small image is
    bent like a large one; the amplitude does so twice, because the noise under it averages out over `sigma` pixels.
    """
    import cv2
    from scipy.ndimage import map_coordinates

    amplitude, sigma, jitter = (
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    )[severity - 1]
    height, width = image.shape[:2]
    scale = min(height, width) / 224
    amplitude, sigma, jitter = amplitude * scale**2, sigma * scale, jitter * scale

    middle = np.array([width, height], dtype=np.float32) // 2
    third = min(height, width) // 3
    anchors = middle + np.array([[third, third], [third, -third], [-third, -third]], dtype=np.float32)
    moved = anchors + rng.uniform(-jitter, jitter, size=anchors.shape).astype(np.float32)
    x = image.astype(np.float32) / np.float32(255)
    affine = cv2.getAffineTransform(anchors, moved)
    x = cv2.warpAffine(x, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101).reshape(image.shape)

    dx = (_smooth(rng.uniform(-1, 1, size=(height, width)), sigma) * amplitude).astype(np.float32)
    dy = (_smooth(rng.uniform(-1, 1, size=(height, width)), sigma) * amplitude).astype(np.float32)
    at = (np.arange(height)[:, None] + dy, np.arange(width) + dx)
    planes = [map_coordinates(x[..., channel], at, order=1, mode="reflect") for channel in range(x.shape[2])]
    return to_levels(np.stack(planes, axis=2))


def _smooth(field: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Gaussian filter of H x W, edges mirrored, cut at three sigma."""
    from scipy.fft import dctn, idctn
    from scipy.ndimage import gaussian_filter

    if sigma < 8:
        return gaussian_filter(field, sigma, mode="reflect", truncate=3)
    # A kernel as long as the image (severities 1 and 2) is cheaper by the cosine transform, in which this filter is a
    # factor for each wave. No matrix product: its threads would fight with those of other workers.
    return idctn(dctn(field) * _response(field.shape[0], sigma)[:, None] * _response(field.shape[1], sigma))


@lru_cache(maxsize=16)
def _response(size: int, sigma: float) -> NDArray[np.float64]:
    """What the Gaussian filter, cut at three sigma, leaves of each cosine along an axis with mirrored edges."""
    reach = int(3 * sigma + 0.5)
    at = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (at / sigma) ** 2)
    weights /= weights.sum()
    return (np.cos(np.pi / size * np.arange(size)[:, None] * at) * weights).sum(axis=1)


def rgb_to_hsv(red: Plane, green: Plane, blue: Plane) -> tuple[Plane, Plane, Plane]:
    """Hue, saturation and value; every sum and quotient as in scikit-image."""
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    # Grey pixels have no hue: any divisor but zero makes both quotients zero, which is the convention.
    divisor = np.where(spread == 0, 1.0, spread)
    saturation = spread / np.where(spread == 0, 1.0, value)
    hue = np.where(green == value, 2.0 + (blue - red) / divisor, (green - blue) / divisor)
    # Of several equal maxima the later channel decides.
    np.copyto(hue, 4.0 + (red - green) / divisor, where=blue == value)
    hue /= 6.0
    hue += hue < 0
    hue[spread == 0] = 0.0
    return hue, saturation, value


def hsv_to_rgb(hue: Plane, saturation: Plane, value: Plane) -> tuple[Plane, Plane, Plane]:
    """The inverse of `rgb_to_hsv`."""
    part = hue * 6
    sector = np.floor(part)
    part -= sector
    sector[sector == 6] = 0
    # Between the highest and the lowest channel lies one that rises in even sectors and falls in odd ones.
    low = value * (1 - saturation)
    middle = value * (1 - np.where(sector % 2 == 0, 1 - part, part) * saturation)
    red = np.where((sector == 2) | (sector == 3), low, np.where((sector == 0) | (sector == 5), value, middle))
    green = np.where(sector > 3, low, np.where((sector == 1) | (sector == 2), value, middle))
    blue = np.where(sector < 2, low, np.where((sector == 3) | (sector == 4), value, middle))
    return red, green, blue
