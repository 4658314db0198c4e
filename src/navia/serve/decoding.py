"""Bytes from the network -> what the model sees. Whatever is wrong with them is an InputError that names it."""

import base64
import io
import math
from typing import NoReturn

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data.preprocessing import Preprocessing, decode
from navia.errors import InputError
from navia.serve.settings import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # the common ones: each further decoder is one more to trust
_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 10_000


def read_picture(data: bytes, preprocessing: Preprocessing, limits: Limits) -> Tensor:
    """A picture file or an array in NumPy's format -> normalised tensor [C, H, W]."""
    if not data:
        raise InputError("the image is empty")
    if data.startswith(_MAGIC):
        return _from_array(_array(data), preprocessing, limits)
    picture = decode(io.BytesIO(data), "the image", max_pixels=limits.pixels, formats=FORMATS)
    return _from_picture(picture, preprocessing, limits)


def thumbnail(image: Tensor, preprocessing: Preprocessing, side: int = 96) -> str:
    """What the model saw, small, as a data URI."""
    pixels = preprocessing.denormalise(image).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels[:, :, :3])
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _from_picture(picture: Image.Image, preprocessing: Preprocessing, limits: Limits) -> Tensor:
    if min(picture.size) < limits.side:
        raise InputError(f"the image has {picture.width}x{picture.height} px: at least {limits.side} each way are needed")
    longest = max(picture.size) / min(picture.size)
    if preprocessing.resize is not None and longest > 100:  # enlarging the shorter side would make it gigantic
        raise InputError(f"the image of {picture.width}x{picture.height} px is too long and narrow")
    return preprocessing(picture)


def _array(data: bytes) -> np.ndarray:
    """An array without pickles, whose header tells the truth about its size."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(file, max_header_size=_MOST_HEADER)
    except (ValueError, KeyError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError) as error:
        raise InputError("the array has no readable header (.npy, version 1 or 2)") from error
    if dtype.hasobject or dtype.kind not in "uf" or fortran:
        raise InputError(f"the array must be of unsigned integers or floats in C order, not {dtype}")
    if len(shape) > 3 or not all(0 < side < 2**31 for side in shape):
        raise InputError(f"the array of {dtype} has impossible sides: at most three, each of one pixel or more")
    content = data[file.tell() :]
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise InputError(f"the array says {shape} {dtype}, but {len(content)} bytes follow")
    return np.frombuffer(content, dtype).reshape(shape)


def _from_array(array: np.ndarray, preprocessing: Preprocessing, limits: Limits) -> Tensor:
    """uint8 [H, W] or [H, W, 3]: pixels of a picture. Floats [C, H, W]: what the model sees, normalised already."""
    if array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        if array.size > 3 * limits.pixels:
            raise InputError(f"the array of {array.shape[1]}x{array.shape[0]} px is too large")
        return _from_picture(Image.fromarray(array), preprocessing, limits)
    if array.dtype.kind != "f" or array.shape != (len(preprocessing.mean), *preprocessing.size):
        _refuse(array, preprocessing)
    image = torch.from_numpy(array.astype(np.float32))
    if not bool(image.isfinite().all()):
        raise InputError("the array holds NaN or infinite values")
    low, high = preprocessing.value_range(margin=0.5)
    if float(image.min()) < low or float(image.max()) > high:
        raise InputError("the array is not normalised as the model needs it: send uint8 pixels instead")
    return image


def _refuse(array: np.ndarray, preprocessing: Preprocessing) -> NoReturn:
    wanted = (len(preprocessing.mean), *preprocessing.size)
    raise InputError(
        f"the array is {array.dtype} {array.shape}; send uint8 (height, width, 3) or normalised floats {wanted}"
    )
