"""Noise. Corruptions take uint8 [H, W, C] and return float or uint8 in 0..255."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_levels(x: NDArray[Any]) -> NDArray[Any]:
    """Clip an image to 0..1 and scale it to 0..255, in place."""
    np.clip(x, 0, 1, out=x)
    x *= 255
    return x


def gaussian_noise(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Low light: normal noise on every channel."""
    scale = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return to_levels(image / 255.0 + rng.normal(scale=scale, size=image.shape))


def shot_noise(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Few photons: a Poisson count with `photons` at white."""
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return to_levels(rng.poisson(image / 255.0 * photons) / float(photons))


def impulse_noise(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Bit errors: some values become black or white, with equal probability."""
    amount = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    hit = rng.random_sample(image.shape) <= amount
    white = rng.random_sample(image.shape) <= 0.5
    # The published code scales the other values to 0..1 and back, and truncation lowers a few of them by one.
    round_trip = (np.arange(256) / 255.0 * 255).astype(np.uint8)
    return np.where(hit, np.where(white, np.uint8(255), np.uint8(0)), round_trip[image])


def speckle_noise(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Noise proportional to the brightness."""
    scale = (0.15, 0.2, 0.35, 0.45, 0.6)[severity - 1]
    x = image / 255.0
    return to_levels(x + x * rng.normal(scale=scale, size=image.shape))
