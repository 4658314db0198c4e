"""The 15 corruptions of ImageNet-C and its 4 extra ones, at severities 1 to 5, reproducible image by image.

Definition: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019, in the 224 px version of the published data. A 224 px image gets the pixels of the authors' own code for the
same legacy numpy seed, except for motion blur and snow: the authors used ImageMagick, these follow the numpy version of the
`imagecorruptions` package. At other sizes every length in pixels stays as published, as in that package; only the elastic
transform scales with the shorter side. The published files were saved as JPEG of quality 85 afterwards; that step is left
to the caller. scipy, cv2 and Pillow are imported only by the corruptions that use them.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navia.data.corruptions import blur, digital, noise, weather
from navia.errors import InputError, NaviaError, known_names
from navia.io import to_bytes

MIN_SIDE = 28

Corruption = Callable[[NDArray[np.uint8], int, np.random.RandomState], NDArray[Any]]

_FUNCTIONS: dict[str, tuple[Corruption, ...]] = {
    "noise": (noise.gaussian_noise, noise.shot_noise, noise.impulse_noise),
    "blur": (blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur),
    "weather": (weather.snow, weather.frost, weather.fog, weather.brightness),
    "digital": (digital.contrast, digital.elastic_transform, digital.pixelate, digital.jpeg_compression),
    "extra": (noise.speckle_noise, blur.gaussian_blur, weather.spatter, digital.saturate),
}
_BY_NAME = {function.__name__: function for members in _FUNCTIONS.values() for function in members}

CORRUPTIONS: dict[str, tuple[str, ...]] = {
    group: tuple(function.__name__ for function in members) for group, members in _FUNCTIONS.items()
}
"""Names by group, in the order of the paper."""


def names(*, extra: bool = False) -> tuple[str, ...]:
    """Names of the 15 corruptions in the order of the paper; extra: also the 4 extra ones."""
    return tuple(name for group, members in CORRUPTIONS.items() if extra or group != "extra" for name in members)


def check_corruption(name: str, severity: int) -> None:
    """Raise an InputError for an unknown name or severity."""
    if name not in _BY_NAME:
        raise InputError(f"unknown corruption {name!r}{known_names(name, _BY_NAME)}")
    if isinstance(severity, bool) or not isinstance(severity, int | np.integer) or not 1 <= severity <= 5:
        raise InputError(f"severity must be an integer from 1 to 5, not {severity!r}")


def corruption_seed(image: str, name: str, severity: int, seed: int = 0) -> int:
    """Seed of one image's corruption, from the image's name: the same in every order and process."""
    return zlib.crc32(to_bytes(f"{seed}/{name}/{severity}/{image}"))


def corrupt(image: NDArray[np.uint8], name: str, severity: int, *, seed: int | np.random.Generator) -> NDArray[np.uint8]:
    """Apply one corruption. The input and the global random state are not changed.

    Args:
        image: uint8 [H, W, 3], [H, W, 1] or [H, W], both sides at least 28 px.
        name: One of `names(extra=True)`.
        severity: 1 to 5.
        seed: An int gives the same pixels every time; a Generator is advanced by one number.

    Returns:
        uint8 array of the same shape.

    Example:
        >>> foggy = corrupt(image, "fog", 3, seed=7)
    """
    check_corruption(name, severity)
    pixels = _as_channels_last(image)
    try:
        corrupted = _BY_NAME[name](pixels, int(severity), _random_state(seed))
    except ModuleNotFoundError as missing:
        raise NaviaError(f"{name} needs {missing.name}, not installed here: pip install 'navia[bench]'") from missing
    # Truncated, not rounded, like the published files.
    return corrupted.astype(np.uint8, copy=False).reshape(image.shape)


def _as_channels_last(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = f"dtype {image.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"image must be a numpy array of dtype uint8, not {found}")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise InputError(f"image must have shape (H, W), (H, W, 1) or (H, W, 3), not {image.shape}")
    height, width = image.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise InputError(f"image must be at least {MIN_SIDE} px on each side, not {height} x {width}")
    return np.ascontiguousarray(image).reshape(height, width, -1)


def _random_state(seed: int | np.random.Generator) -> np.random.RandomState:
    if isinstance(seed, np.random.Generator):
        seed = int(seed.integers(2**32))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise InputError(f"seed must be an integer from 0 to 2**32 - 1 or a numpy Generator, not {seed!r}")
    # The published code used the legacy generator; another one would give other pixels for equal seeds.
    return np.random.RandomState(int(seed))
