"""Blurs. Corruptions take uint8 [H, W, C] and return floats in 0..255."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navia.data.corruptions.noise import to_levels


def gaussian(x: NDArray[Any], sigma: float) -> NDArray[Any]:
    """Gaussian filter over the first two axes, edges repeated, cut at four sigma; keeps the float type."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(x, (sigma, sigma) + (0,) * (x.ndim - 2), mode="nearest", truncate=4.0)


def gaussian_blur(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    return to_levels(gaussian(image / 255.0, (1, 2, 3, 4, 6)[severity - 1]))


def defocus_blur(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Out of focus: every point becomes a disk."""
    import cv2

    radius, softening = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity - 1]
    reach = max(8, radius)
    y, x = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    side = 3 if radius <= 8 else 5
    kernel = cv2.GaussianBlur(disk, ksize=(side, side), sigmaX=softening)
    blurred: NDArray[Any] = cv2.filter2D(image / 255.0, -1, kernel)
    return to_levels(blurred.reshape(image.shape))


def glass_blur(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Frosted glass: pixels are moved to near places, between two soft blurs."""
    sigma, reach, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[severity - 1]
    height, width, channels = image.shape
    softened = (gaussian(image / 255.0, sigma) * 255).astype(np.uint8)
    order = displaced_pixels(height, width, reach, rounds, rng)
    displaced = softened.reshape(-1, channels)[order].reshape(image.shape)
    return to_levels(gaussian(displaced / 255.0, sigma))


def displaced_pixels(height: int, width: int, reach: int, rounds: int, rng: np.random.RandomState) -> NDArray[np.int64]:
    """For each pixel (flat index) the index of the pixel whose colour it shows after the glass blur.

    The published loop goes backwards over the pixels and intends to swap each with a random neighbour. It assigns between
    views of one array, so that in effect the pixel takes the colour of its neighbour and the neighbour keeps it. That copy
    is the definition, because it made the published images.

    A neighbour that was visited before (higher index) shows its new colour, any other its old one. So each pixel points to
    the new or to the old state of another pixel. Following the pointers, twice as far with each gather, replaces the loop.
    """
    n = height * width
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    visits = (rows[:, None] * width + columns).ravel()
    visited = np.zeros(n, dtype=bool)
    visited[visits] = True
    order = np.arange(n)
    for _ in range(rounds):
        step = rng.randint(-reach, reach, size=(visits.size, 2))  # (dx, dy) per pixel
        source = visits + step[:, 1] * width + step[:, 0]
        pointer = np.arange(2 * n)  # the upper half, n + i, is the old state of pixel i
        pointer[:n] += n
        pointer[visits] = np.where((source > visits) & visited[source], source, source + n)
        while (pointer[:n] < n).any():
            pointer[:n] = pointer.take(pointer[:n])
        order = order[pointer[:n] - n]
    return order


def motion_blur(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """The camera moves on a straight line, within 45 degrees of the horizontal."""
    radius, sigma = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))[severity - 1]
    return np.clip(streak(image, radius, sigma, rng.uniform(-45, 45)), 0, 255)


def streak(x: NDArray[Any], radius: int, sigma: float, angle: float) -> NDArray[np.float64]:
    """Blur H x W x C along a line: one side of a Gaussian, `angle` in degrees, edges repeated, whole-pixel steps.

    Follows the `imagecorruptions` package instead of ImageMagick (used for the published data). As there, a step as long as
    the image ends the line, and the rest of the weight is lost. Terms are added one by one in its order, because the
    last bit of a sum can change the truncated uint8 value.
    """
    height, width = x.shape[:2]
    at = np.arange(2 * radius + 1)
    weights = np.exp(-(at**2) / (2 * sigma**2)) / (np.sqrt(2 * np.pi) * sigma)
    weights /= weights.sum()
    down, right = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    steps = [(math.ceil(i * down - 0.5), math.ceil(i * right - 0.5)) for i in range(len(weights))]
    inside = next((i for i, (dy, dx) in enumerate(steps) if abs(dy) >= height or abs(dx) >= width), len(steps))
    steps = steps[:inside]
    top, left = -min(dy for dy, _ in steps), -min(dx for _, dx in steps)
    bottom, far = max(dy for dy, _ in steps), max(dx for _, dx in steps)
    padded = np.pad(x.astype(np.float64), ((top, bottom), (left, far), (0, 0)), mode="edge")
    total = np.zeros(x.shape)
    for (dy, dx), weight in zip(steps, weights, strict=False):
        total += padded[top + dy : top + dy + height, left + dx : left + dx + width] * weight
    return total


def zoom_blur(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Zooming camera: the mean of the image and its enlargements."""
    stop, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[severity - 1]
    factors = np.arange(1, stop, step)
    x = (image / 255.0).astype(np.float32)
    total = np.zeros_like(x)
    for channel in range(image.shape[2]):
        plane = x[..., channel].astype(np.float64)
        for factor in factors:
            total[..., channel] += centre_zoom(plane, float(factor)).astype(np.float32)
    return to_levels((x + total) / (len(factors) + 1))


def centre_zoom(plane: NDArray[np.float64], factor: float, *, crop: bool = True) -> NDArray[np.float64]:
    """Enlarge the middle of H x W by linear interpolation, corner on corner, as `scipy.ndimage.zoom(order=1)` does.

    The enlargement comes out a few pixels larger than the input when `factor` does not divide it; `crop` drops those at
    the far end. One axis after the other, each as a product with a sparse matrix: same values, a tenth of the time.
    """
    if factor == 1:
        return plane
    height, width = plane.shape
    return (_zoom_matrix(width, factor, crop) @ (_zoom_matrix(height, factor, crop) @ plane).T).T


@lru_cache(maxsize=128)
def _zoom_matrix(size: int, factor: float, crop: bool) -> Any:
    """Enlargement along one axis as a sparse matrix: each row weights the two nearest pixels."""
    from scipy.sparse import csr_matrix

    kept = math.ceil(size / factor)
    start = (size - kept) // 2
    enlarged = round(kept * factor)
    place = np.arange(min(enlarged, size) if crop else enlarged) * ((kept - 1) / (enlarged - 1))
    low = np.floor(place).astype(np.int64)
    part = place - low
    weights = np.stack([1 - part, part], axis=1)
    # scipy gives black where rounding puts the last place a hair beyond the last pixel.
    weights[place > kept - 1] = 0
    between = start + np.minimum(np.stack([low, low + 1], axis=1), kept - 1)
    ends = 2 * np.arange(len(place) + 1)
    return csr_matrix((weights.ravel(), between.ravel(), ends), shape=(len(place), size))
