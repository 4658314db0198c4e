"""Weather. Corruptions take uint8 [H, W, C] and return floats in 0..255."""

from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navia.data.corruptions.blur import centre_zoom, gaussian, streak
from navia.data.corruptions.digital import hsv_to_rgb, rgb_to_hsv
from navia.data.corruptions.noise import to_levels

LUMA = (0.299, 0.587, 0.114)

# By the random number. The authors have six photographs but choose from five; the second and the third are the same.
# See the NOTICE beside the files.
FROST = ("frost1.webp", "frost2.webp", "frost2.webp", "frost4.jpg", "frost5.jpg")


def snow(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Flakes: thresholded coarse noise with motion blur, added to a paler image once as it is and once rotated by 180°.

    Follows the `imagecorruptions` package (motion blur without ImageMagick), with one difference: the flakes are rounded
    to 8 bits after the blur, not truncated before it.
    """
    import cv2

    mean, spread, coarse, threshold, radius, sigma, keep = (
        (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity - 1]
    height, width, channels = image.shape
    x = image.astype(np.float32) / np.float32(255)
    flakes = centre_zoom(rng.normal(loc=mean, scale=spread, size=(height, width)), coarse, crop=False)
    flakes[flakes < threshold] = 0
    flakes = streak(np.clip(flakes, 0, 1)[..., None], radius, sigma, rng.uniform(-135, -45))
    flakes = np.round(flakes[:height, :width] * 255).astype(np.uint8) / 255.0
    grey = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None] if channels == 3 else x
    pale = keep * x + (1 - keep) * np.maximum(x, grey * 1.5 + 0.5)
    return to_levels(pale + flakes + np.rot90(flakes, k=2))


def frost(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """A random part of a photograph of ice crystals, mixed into the image."""
    keep, add = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    height, width, channels = image.shape
    texture = _enlarged(_texture(FROST[rng.randint(len(FROST))]), height, width)
    top = rng.randint(0, texture.shape[0] - height)
    left = rng.randint(0, texture.shape[1] - width)
    ice: NDArray[Any] = texture[top : top + height, left : left + width]
    if channels == 1:
        ice = (ice @ np.array(LUMA))[..., None]
    return np.clip(keep * image + add * ice, 0, 255)


@lru_cache(maxsize=len(FROST))
def _texture(name: str) -> NDArray[np.uint8]:
    from PIL import Image

    with files("navia.data.corruptions").joinpath("frost", name).open("rb") as file:
        return np.asarray(Image.open(file).convert("RGB"))


def _enlarged(texture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """The texture itself where the image fits into it, else enlarged so that there is room to move by a tenth."""
    if height < texture.shape[0] and width < texture.shape[1]:
        return texture
    import cv2

    factor = 1.1 * max(height / texture.shape[0], width / texture.shape[1], 1.0)
    size = (int(np.ceil(texture.shape[1] * factor)), int(np.ceil(texture.shape[0] * factor)))
    return cv2.resize(texture, dsize=size, interpolation=cv2.INTER_CUBIC)


def fog(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """A fractal cloud over the image, which loses contrast in the same measure."""
    density, decay = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    height, width = image.shape[:2]
    x = image / 255.0
    brightest = x.max()
    side = 1 << (max(height, width) - 1).bit_length()
    x += density * plasma(side, decay, rng)[:height, :width, None]
    return to_levels(x * brightest / (brightest + density))


def plasma(side: int, decay: float, rng: np.random.RandomState) -> NDArray[np.float64]:
    """Diamond-square noise (plasma fractal) on a torus, 0..1. side: a power of two. Finer grids vary `decay` times less.

    The published code uses the amplitude twice, as factor and as range: this gives the fog its texture.
    """
    field = np.zeros((side, side))
    step, amplitude = side, 100.0

    def fill(target: NDArray[np.float64], total: NDArray[np.float64]) -> None:
        target[...] = total / 4 + amplitude * rng.uniform(-amplitude, amplitude, total.shape)

    while step >= 2:
        half = step // 2
        corners, centres = field[::step, ::step], field[half::step, half::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        fill(centres, pairs + np.roll(pairs, -1, axis=1))
        upright = centres + np.roll(centres, 1, axis=0)
        fill(field[::step, half::step], upright + (corners + np.roll(corners, -1, axis=1)))
        level = centres + np.roll(centres, 1, axis=1)
        fill(field[half::step, ::step], level + (corners + np.roll(corners, -1, axis=0)))
        step, amplitude = half, amplitude / decay
    field -= field.min()
    field /= field.max()
    return field


def brightness(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """More light: a constant on the value of each pixel, hue and saturation kept."""
    more = (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]
    if image.shape[2] == 1:
        return to_levels(image / 255.0 + more)
    hue, saturation, value = rgb_to_hsv(*np.moveaxis(image, 2, 0) / 255.0)
    return to_levels(np.stack(hsv_to_rgb(hue, saturation, np.clip(value + more, 0, 1)), axis=2))


def spatter(image: NDArray[np.uint8], severity: int, rng: np.random.RandomState) -> NDArray[Any]:
    """Drops on the lens: water up to severity 3, mud from 4."""
    mean, spread, sigma, threshold, strength, mud = (
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    )[severity - 1]
    x = image.astype(np.float32) / np.float32(255)
    liquid = gaussian(rng.normal(loc=mean, scale=spread, size=image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float32), strength)
        cover[cover < 0.8] = 0
        x *= 1 - cover[..., None]
    else:
        cover = _water(liquid, strength)
    colour = np.array((63, 42, 20) if mud else (175, 238, 238)) / 255.0
    if image.shape[2] == 1:
        colour = np.array([colour @ LUMA])
    return to_levels(x + cover[..., None] * colour.astype(np.float32))


def _water(liquid: NDArray[np.float64], strength: float) -> NDArray[np.float32]:
    """How much of the colour of water each pixel gets: embossed by the distance to the rim of its drop."""
    import cv2

    level = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(level, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, np.float32(20)), (3, 3)).astype(np.uint8)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    relief = cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, emboss)
    cover: NDArray[np.float32] = level * cv2.blur(relief, (3, 3)).astype(np.float32)
    # Without a single drop, as happens on small images, there is nothing to scale; the published code divides by zero.
    highest = cover.max()
    if highest > 0:
        cover /= highest
    cover *= strength
    return cover
