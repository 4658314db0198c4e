"""Decode bytes from the network into normalised tensors. Invalid bytes raise an InputError that names the problem."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data.preprocessing import Preprocessing, decode
from navia.errors import InputError
from navia.serve.settings import Limits

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # only the common ones: every further decoder is one more to trust
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000


def decode_images(files: Sequence[bytes], preprocessing: Preprocessing, limits: Limits) -> Tensor:
    """Decode files into a batch [B, C, H, W]; an error names the position of its image."""
    images = []
    for position, data in enumerate(files):
        try:
            images.append(decode_image(data, preprocessing, limits))
        except InputError as error:
            raise InputError(f"image {position}: {error}" if len(files) > 1 else str(error)) from error
    return torch.stack(images)


def decode_image(data: bytes, preprocessing: Preprocessing, limits: Limits) -> Tensor:
    """Decode an image file or an array in NumPy's format into a normalised tensor [C, H, W]."""
    if not data:
        raise InputError("the image is empty")
    if data.startswith(_MAGIC):
        return _from_array(_read_array(data), preprocessing, limits)
    image = decode(io.BytesIO(data), "the image", max_pixels=limits.max_pixels, formats=FORMATS)
    return _preprocess(image, preprocessing, limits)


def thumbnail(image: Tensor, preprocessing: Preprocessing, side: int = 96) -> str:
    """The input of the model as a small JPEG in a data URI."""
    pixels = preprocessing.denormalise(image).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    small = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels[:, :, :3])
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _preprocess(image: Image.Image, preprocessing: Preprocessing, limits: Limits) -> Tensor:
    if min(image.size) < limits.min_side:
        raise InputError(f"the image has {image.width}x{image.height} px: at least {limits.min_side} each way are needed")
    if preprocessing.resize is not None and max(image.size) > 100 * min(image.size):  # resizing would make it huge
        raise InputError(f"the image of {image.width}x{image.height} px is too long and narrow")
    return preprocessing(image)


def _read_array(data: bytes) -> np.ndarray:
    """Read an array without pickle; its header must agree with its size."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(file, max_header_size=_MAX_HEADER)
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
    """uint8 [H, W] or [H, W, 3] are pixels; floats [C, H, W] are already normalised."""
    if array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)):
        if array.size > 3 * limits.max_pixels:
            raise InputError(f"the array of {array.shape[1]}x{array.shape[0]} px is too large")
        return _preprocess(Image.fromarray(array), preprocessing, limits)
    needed = (len(preprocessing.mean), *preprocessing.size)
    if array.dtype.kind != "f" or array.shape != needed:
        got = f"{array.dtype} {array.shape}"
        raise InputError(f"the array is {got}; send uint8 (height, width, 3) or normalised floats {needed}")
    image = torch.from_numpy(array.astype(np.float32))
    if not bool(image.isfinite().all()):
        raise InputError("the array holds NaN or infinite values")
    low, high = preprocessing.value_range(margin=0.5)
    if float(image.min()) < low or float(image.max()) > high:
        raise InputError("the array is not normalised as the model needs it: send uint8 pixels instead")
    return image
