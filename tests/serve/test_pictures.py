"""Bytes from strangers: what is answered, what is refused, and with which words."""

import io
import re
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from navia.data.preprocessing import Preprocessing
from navia.errors import InputError
from navia.serve.decoding import decode_image, thumbnail
from navia.serve.settings import Limits

SEEN = Preprocessing((32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), resize=40)
LIMITS = Limits(max_pixels=1_000_000)


def picture(width: int = 60, height: int = 40, mode: str = "RGB") -> Image.Image:
    shades = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return Image.fromarray(shades).convert(mode)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A few bytes that promise a huge picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def read(data: bytes) -> Tensor:
    image = decode_image(data, SEEN, LIMITS)
    assert image.shape == (3, 32, 32)
    assert bool(image.isfinite().all())
    return image


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_a_file_is_read_as_from_disk(kind: str) -> None:
    assert torch.equal(read(saved(picture(), kind)), SEEN(picture()))


def test_pixels_as_an_array_are_a_picture() -> None:
    assert torch.equal(read(npy(np.asarray(picture()))), SEEN(picture()))
    assert torch.equal(read(npy(np.asarray(picture(mode="L")))), SEEN(picture(mode="L")))


def test_normalised_floats_go_in_as_they_are() -> None:
    image = SEEN(picture())
    assert torch.equal(read(npy(image.numpy())), image)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_lossy_files_are_read(kind: str) -> None:
    read(saved(picture(), kind))


def test_cmyk_grey_and_transparent_pictures_become_rgb() -> None:
    read(saved(picture(mode="CMYK"), "JPEG"))
    read(saved(picture(mode="LA"), "PNG"))
    read(saved(picture(mode="RGBA"), "PNG"))
    read(saved(picture(mode="P"), "PNG"))


def test_of_a_moving_picture_the_first_frame_counts() -> None:
    frames = [picture(), Image.new("RGB", (60, 40), "red")]
    moving = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)
    assert torch.equal(read(moving), read(saved(frames[0], "GIF")))


def test_a_picture_taken_sideways_is_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    sideways = saved(picture(), "PNG", exif=exif)
    assert torch.equal(read(sideways), SEEN(picture().rotate(-90, expand=True)))


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def lying_header(sides: bytes = b"(9999999999999, 9999, 3)", content: bytes = b"x" * 48) -> bytes:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': %s, }\n" % sides
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "text": (lambda: b"hello, I am no picture", "unknown image format"),
    "truncated": (lambda: saved(picture(), "JPEG")[:200], "cannot read"),
    "truncated array": (lambda: npy(np.zeros((40, 40, 3), np.uint8))[:-1], "bytes follow"),
    "bomb": (lambda: png_that_claims(60_000, 60_000), "too large"),
    "one pixel": (lambda: saved(picture(1, 1), "PNG"), "1x1"),
    "needle": (lambda: saved(picture(4000, 10), "PNG"), "narrow"),
    "huge": (lambda: saved(Image.new("L", (2000, 2000)), "PNG"), "too large"),
    "svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unknown image format"),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "unknown image format"),
    "tiff": (lambda: saved(picture(), "TIFF"), "unknown image format"),
    "NaN": (lambda: npy(np.full((3, 32, 32), np.nan, np.float32)), "NaN"),
    "infinite": (lambda: npy(np.full((3, 32, 32), np.inf, np.float64)), "NaN or infinite"),
    "not normalised": (lambda: npy(np.full((3, 32, 32), 200, np.float32)), "not normalised"),
    "other size": (lambda: npy(np.zeros((3, 16, 16), np.float32)), r"\(3, 32, 32\)"),
    "integers": (lambda: npy(np.zeros((3, 32, 32), np.int64)), "unsigned integers or floats"),
    "scalar": (lambda: npy(np.zeros((), np.uint8)), "uint8"),
    "no pixels": (lambda: npy(np.zeros((0, 0, 3), np.uint8)), "uint8"),
    "pickle": (pickled, "unsigned integers or floats"),
    "lying header": (lying_header, "impossible sides"),
    "negative sides": (lambda: lying_header(b"(-4, -12)"), "impossible sides"),
    "no pixels, many rows": (lambda: lying_header(b"(0, 0x%s)" % (b"f" * 40), b""), "impossible sides"),
    "a side that cannot be written down": (lambda: lying_header(b"(4, 0x%s)" % (b"f" * 9000)), "impossible sides"),
    "many sides": (lambda: lying_header(b"(" + b"1, " * 99 + b")", b"x"), "impossible sides"),
    "header only": (lambda: b"\x93NUMPY\x01\x00", "no readable header"),
    "unknown version": (lambda: b"\x93NUMPY\x09\x00" + b"x" * 100, "no readable header"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bytes_are_refused_by_name(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(InputError, match=words) as caught:
        read(make())
    assert not re.search("0x[0-9a-f]{6}", str(caught.value))  # no addresses, no paths
    assert "/" not in str(caught.value).replace("image/", "")


def test_thumbnail_is_what_the_model_saw() -> None:
    uri = thumbnail(SEEN(picture()), SEEN)
    assert uri.startswith("data:image/jpeg;base64,")
    grey = Preprocessing((28, 28), (0.3,), (0.35,))
    assert thumbnail(grey(picture(28, 28)), grey).startswith("data:image/jpeg")
