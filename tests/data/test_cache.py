"""Cached pixels are the generated ones, to the bit, whatever happens to the folder."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from navia.data import cache as cache_module
from navia.data import sample
from navia.data.cache import CachedDomain, PixelCache, PixelFile
from navia.data.loader import Loader
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain, corrupted
from navia.data.streams import Stream, make_stream
from navia.errors import InputError

GREY = Preprocessing((28, 28), (0.2860,), (0.3530,))
RECORD = 28 * 28 + 4  # an image and its checksum
DATA = ("digest of names and sizes", "digest of times")


def stream_of(*corruptions: str, images: int = 12, seed: int = 0, severity: int = 3) -> Stream:
    return make_stream(corrupted(sample.unseen_images(), corruptions, severity), seed=seed, limit=images)


def pixels_of(stream: Stream, preprocessing: Preprocessing = GREY) -> np.ndarray:
    indices = np.concatenate([segment.indices for segment in stream.segments])
    return np.stack([stream.domains[domain].pixels(int(index), preprocessing) for domain, index in indices])


def files(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.glob("*.pixels"))


@pytest.fixture
def count_generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the index of every image that is generated."""
    found: list[int] = []
    usual = Domain.pixels

    def pixels(self: Domain, index: int, preprocessing: Preprocessing) -> np.ndarray:
        found.append(index)
        return usual(self, index, preprocessing)

    monkeypatch.setattr(Domain, "pixels", pixels)
    return found


def test_pixels_are_generated_once_and_stay_the_same(tmp_path: Path, count_generated: list[int]) -> None:
    stream, cache = stream_of("fog", "contrast"), PixelCache(tmp_path / "new" / "folder", 10**6)
    expected = pixels_of(stream)
    count_generated.clear()
    for generated in (24, 0):
        cached = cache.stream(stream, GREY, DATA)
        assert np.array_equal(pixels_of(cached), expected)
        assert len(count_generated) == generated
        count_generated.clear()
    found = pixels_of(cache.stream(stream_of("fog", seed=0), GREY, DATA))  # a shorter spec has the same file
    assert np.array_equal(found, expected[:12])
    assert not count_generated
    assert found.flags.writeable


def test_pixels_of_colour_images(tmp_path: Path) -> None:
    colour = Preprocessing((32, 40), (0.5,) * 3, (0.5,) * 3, resize=48)
    stream = stream_of("gaussian_noise")
    expected = pixels_of(stream, colour)
    for _ in range(2):
        assert np.array_equal(pixels_of(PixelCache(tmp_path, 10**6).stream(stream, colour, DATA), colour), expected)
    (path,) = tmp_path.glob("*.pixels")
    assert path.stat().st_size == 12 * (32 * 40 * 3 + 4)


def test_clean_images_are_not_cached(tmp_path: Path) -> None:
    stream = make_stream([Domain("clean", sample.unseen_images())], seed=0, limit=4)
    assert PixelCache(tmp_path, 10**6).stream(stream, GREY, DATA).domains == stream.domains
    assert files(tmp_path) == []


def test_everything_that_decides_the_pixels_decides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, usual = PixelCache(tmp_path, 10**7), stream_of("fog")
    cache.stream(usual, GREY, DATA)
    (domain,) = usual.domains
    variants = [
        (stream_of("fog", severity=4), GREY, DATA),
        (stream_of("snow"), GREY, DATA),
        (stream_of("fog", seed=1), GREY, DATA),  # other images
        (replace(usual, domains=(replace(domain, seed=1),)), GREY, DATA),
        (usual, replace(GREY, resize=32), DATA),
        (usual, replace(GREY, resize=32, interpolation="nearest"), DATA),
        (usual, replace(GREY, floor_crop=True), DATA),
        (usual, replace(GREY, mean=(0.5,) * 3, std=(0.5,) * 3), DATA),
        (usual, GREY, (DATA[0], "changed images")),
        (usual, GREY, ("other names or sizes", DATA[1])),
    ]
    for number, (stream, preprocessing, data) in enumerate(variants, 2):
        cache.stream(stream, preprocessing, data)
        assert len(files(tmp_path)) == number
    cache.stream(usual, replace(GREY, mean=(0.1,), std=(0.2,), origin="elsewhere"), DATA)  # not of the pixels
    assert len(files(tmp_path)) == number
    monkeypatch.setattr(cache_module, "__version__", "another")
    cache.stream(usual, GREY, DATA)
    assert len(files(tmp_path)) == number + 1


def test_another_preprocessing_or_image_than_the_files_is_generated(tmp_path: Path, count_generated: list[int]) -> None:
    cached = PixelCache(tmp_path, 10**6).stream(stream_of("fog"), GREY, DATA).domains[0]
    assert isinstance(cached, CachedDomain)
    plain = Domain(cached.name, cached.images, cached.corruption, cached.severity, cached.seed)
    other = replace(GREY, resize=40)
    absent = next(i for i in range(1000) if i not in cached.positions)
    for index, preprocessing in ((int(cached.positions[0]), other), (absent, GREY), (len(cached.images) - 1, GREY)):
        for _ in range(2):
            assert np.array_equal(cached.pixels(index, preprocessing), plain.pixels(index, preprocessing))
    assert len(count_generated) == 12


# ---- the bound


def test_the_least_recently_used_files_make_room(tmp_path: Path) -> None:
    cache = PixelCache(tmp_path, 2 * 12 * RECORD)
    for at, name in enumerate(("fog", "snow")):
        cache.stream(stream_of(name), GREY, DATA)
        (path,) = tmp_path.glob(f"{name}*")
        os.utime(path, (at, at))
    (tmp_path / "notes.txt").write_text("not ours")
    cache.stream(stream_of("fog"), GREY, DATA)  # is now the one used last
    cache.stream(stream_of("frost"), GREY, DATA)
    assert files(tmp_path) == ["fog", "frost"]
    cache.stream(stream_of("contrast", images=24), GREY, DATA)
    assert files(tmp_path) == ["contrast"]
    assert sum(path.stat().st_size for path in tmp_path.glob("*.pixels")) == cache.limit
    assert (tmp_path / "notes.txt").exists()


def test_what_does_not_fit_is_generated_and_said_once(
    tmp_path: Path, count_generated: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The domains of one stream never delete each other's files."""
    stream = stream_of("fog", "snow", "frost")
    expected = pixels_of(stream)
    cache = PixelCache(tmp_path, 2 * 12 * RECORD + 1)
    for generated in (36, 12):
        count_generated.clear()
        assert np.array_equal(pixels_of(cache.stream(stream, GREY, DATA)), expected)
        assert len(count_generated) == generated
    assert files(tmp_path) == ["fog", "snow"]
    assert len(caplog.messages) == 1
    assert "frost-3" in caplog.text
    assert "does not fit" in caplog.text


def test_the_space_is_taken_before_the_first_image(tmp_path: Path) -> None:
    PixelCache(tmp_path, 10**9).stream(stream_of("fog", images=100), GREY, DATA)
    (path,) = tmp_path.glob("*.pixels")
    assert path.stat().st_size == 100 * RECORD
    assert path.stat().st_blocks * 512 >= 100 * RECORD


def test_a_file_that_is_deleted_in_the_middle_costs_nothing_but_time(tmp_path: Path) -> None:
    stream = stream_of("fog")
    cached = PixelCache(tmp_path, 10**6).stream(stream, GREY, DATA)
    next(tmp_path.glob("*.pixels")).unlink()
    assert np.array_equal(pixels_of(cached), pixels_of(stream))
    assert files(tmp_path) == []


# ---- what goes wrong


def test_a_folder_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write the cache '.*file/cache': Not a directory"):
        PixelCache(tmp_path / "file" / "cache", 10**6).stream(stream_of("fog"), GREY, DATA)


def test_a_full_disk_is_refused_before_the_first_image(tmp_path: Path) -> None:
    """Nothing is left of a file that is larger than the disk."""
    count = 2 * shutil.disk_usage(tmp_path).total // RECORD
    with pytest.raises(InputError, match=r"cannot write the cache .*No space left.*lower --cache-limit"):
        PixelCache(tmp_path, 10**18)._reserve([PixelFile(tmp_path / "huge.pixels", count, (28, 28))])
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", ["no checksum", "half of the pixels", "zeros", "cut off", "noise"])
def test_half_written_images_are_never_served(tmp_path: Path, damage: str) -> None:
    stream = stream_of("fog")
    expected = pixels_of(stream)
    cached = PixelCache(tmp_path, 10**6).stream(stream, GREY, DATA)
    pixels_of(cached)
    (path,) = tmp_path.glob("*.pixels")
    content = bytearray(path.read_bytes())
    start = 5 * RECORD  # of the sixth image
    if damage == "cut off":
        path.write_bytes(content[: start + 100])
    else:
        first, last = {"no checksum": (RECORD - 4, RECORD), "half of the pixels": (RECORD // 2, RECORD - 4)}.get(
            damage, (0, RECORD)
        )
        content[start + first : start + last] = (b"\x55" if damage == "noise" else b"\0") * (last - first)
        path.write_bytes(content)
    for _ in range(2):
        assert np.array_equal(pixels_of(cached), expected)
    assert np.array_equal(pixels_of(PixelCache(tmp_path, 10**6).stream(stream, GREY, DATA)), expected)


_FILL = """
import sys
from pathlib import Path
from tests.data.test_cache import DATA, GREY, pixels_of, stream_of
from navia.data.cache import PixelCache

folder, backwards = sys.argv[1:]
stream = PixelCache(Path(folder), 10**7).stream(stream_of("fog", "snow", images=100), GREY, DATA)
print("ready", flush=True)
sys.stdin.readline()  # both at once
for _ in range(3):
    for domain in stream.domains:
        for index in domain.positions[::-1] if backwards == "yes" else domain.positions:
            domain.pixels(int(index), GREY)
print(int(pixels_of(stream).astype(int).sum()))
"""


def test_two_processes_fill_one_file(tmp_path: Path) -> None:
    stream = stream_of("fog", "snow", images=100)
    expected = pixels_of(stream)
    command = [sys.executable, "-c", _FILL, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parents[2]}
    both = [subprocess.Popen([*command, backwards], **pipes) for backwards in ("yes", "no")]  # type: ignore[call-overload]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        assert int(process.communicate()[0]) == expected.astype(int).sum()
        assert process.returncode == 0
    cached = PixelCache(tmp_path, 10**7).stream(stream, GREY, DATA)
    for domain in cached.domains:
        assert isinstance(domain, CachedDomain)
        assert all(domain.file.read(place) is not None for place in range(100))
    assert np.array_equal(pixels_of(cached), expected)


def test_worker_processes_fill_and_read_it(tmp_path: Path) -> None:
    stream = stream_of("fog")
    cached = PixelCache(tmp_path, 10**6).stream(stream, GREY, DATA)
    expected = [batch.images for batch in Loader(stream, GREY, 4)]
    for workers in (2, 0):
        for batch, images in zip(Loader(cached, GREY, 4, workers), expected, strict=True):
            assert batch.images.equal(images)
    (domain,) = cached.domains
    assert isinstance(domain, CachedDomain)
    assert all(domain.file.read(place) is not None for place in range(12))
