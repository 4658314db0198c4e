"""A benchmark with a cache of corrupted images has the rows of one without, to the bit."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from navia.bench.executors.serial import run_serial
from navia.bench.grid import FailedCellsError, cells, run_grid
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.data.cache import PixelCache
from tests.bench.test_grid import SPEC, same
from tests.conftest import write_by_class
from tests.paused import start_paused
from tests.test_cli import invoke

pytestmark = pytest.mark.slow


def rows_of(text: str, folder: Path, cache: PixelCache | None = None, workers: int = 0) -> list[tuple[Any, Any]]:
    """Rows and traces in the order of the grid."""
    store, spec = Store(folder), parse_spec(text, "a")
    list(run_grid(spec, store, partial(run_serial, cache=cache, workers=workers)))
    found = {row.key: (same(row), store.trace(row.key)) for row in store.rows()}
    return [found[cell.key] for cell in cells(spec)]


@pytest.mark.parametrize("stream", ["reset", "mixed", "continual, label_shift: 0.5"])
def test_rows_and_traces_are_those_without_a_cache(stream: str, tmp_path: Path) -> None:
    text = SPEC.replace("images: 12}", f"images: 12, stream: {stream}}}").replace("seeds: [0]", "seeds: [0, 1]")
    plain = rows_of(text, tmp_path / "plain")
    cache = PixelCache(tmp_path / "cache", 10**7)
    assert rows_of(text, tmp_path / "filling", cache) == plain
    written = {path: path.stat().st_mtime_ns for path in cache.folder.glob("*.pixels")}
    assert len(written) == 4  # two corruptions, and each seed has its own images
    assert rows_of(text, tmp_path / "filled", cache, workers=1) == plain
    assert {path.name for path in cache.folder.glob("*.pixels")} == {path.name for path in written}


def test_changed_images_are_not_served_from_the_old_file(tmp_path: Path) -> None:
    """The same names and sizes, and other pixels: only the times tell."""
    data = tmp_path / "data"
    data.mkdir()
    paths = sorted(write_by_class(data, 40).glob("*/*.png"))
    sizes = max(path.stat().st_size for path in paths)
    for path in paths:
        path.write_bytes(path.read_bytes().ljust(sizes, b"\0"))  # readers ignore what follows the image
    text = SPEC.replace("path: embedded", f"path: {data}")
    cache = PixelCache(tmp_path / "cache", 10**7)
    first = rows_of(text, tmp_path / "first", cache)
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
        os.utime(path, (1, 1))
    second = rows_of(text, tmp_path / "second", cache)
    assert [row["data_digest"] for row, _ in second] == [row["data_digest"] for row, _ in first]
    assert second != first
    assert second == rows_of(text, tmp_path / "plain")


def test_a_killed_run_leaves_no_wrong_pixels(tmp_path: Path) -> None:
    """Killed in the middle of the fifth image: its pixels are written, its checksum is not."""
    (tmp_path / "a.yaml").write_text(SPEC)
    command = ["bench", str(tmp_path / "a.yaml"), "-o", str(tmp_path / "killed"), "--cache", str(tmp_path / "cache")]
    process = start_paused("navia.data.cache._checksum", 10, command, tmp_path)  # each image: read, then written
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = PixelCache(tmp_path / "cache", 20 * 10**9)
    (path,) = cache.folder.glob("*.pixels")
    stored = [chunk for chunk in _records(path) if any(chunk[-4:])]
    halves = [chunk for chunk in _records(path) if any(chunk[:-4]) and not any(chunk[-4:])]
    assert (len(stored), len(halves)) == (4, 1)
    plain = rows_of(SPEC, tmp_path / "plain")
    assert rows_of(SPEC, tmp_path / "killed", cache) == plain
    assert all(any(chunk[-4:]) for chunk in _records(path))


def _records(path: Path) -> list[bytes]:
    content, record = path.read_bytes(), 28 * 28 + 4
    return [content[at : at + record] for at in range(0, len(content), record)]


def test_the_command_keeps_pixels_within_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC)
    command = ("bench", str(tmp_path / "a.yaml"), "-o", str(tmp_path / "rows"), "--cache", str(tmp_path / "cache"))
    assert invoke(*command, "--dry-run").exit_code == 0
    assert not (tmp_path / "cache").exists()
    result = invoke(*command, "--cache-limit", "0.001")
    assert result.exit_code == 0, result.output
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "cache").glob("*.pixels")) == [
        "contrast",
        "gaussian_noise",
    ]
    (tmp_path / "file").touch()
    refused = invoke(*command[:-1], str(tmp_path / "file"))
    assert refused.exit_code == 1
    assert "is a file, not a folder" in str(refused.exception)


def test_a_cache_that_cannot_be_written_fails_its_cells_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedCellsError, match="cannot write the cache"):
        rows_of(SPEC, tmp_path / "rows", PixelCache(tmp_path / "file" / "cache", 10**7))


def test_the_cache_is_no_part_of_a_key(tmp_path: Path) -> None:
    rows_of(SPEC, tmp_path / "rows", PixelCache(tmp_path / "cache", 10**7))
    store = Store(tmp_path / "rows")
    assert list(run_grid(parse_spec(SPEC, "a"), store)) == []  # nothing is missing without it


@pytest.mark.skipif(sys.platform == "win32", reason="Ray")
def test_ray_workers_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from navia.bench.executors.ray import ray_executor

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plain, store, spec = rows_of(SPEC, tmp_path / "plain"), Store(tmp_path / "ray"), parse_spec(SPEC, "a")
    cache = PixelCache(tmp_path / "cache", 10**7)
    list(run_grid(spec, store, ray_executor(workers=1, cache=cache)))
    found = {row.key: (same(row), store.trace(row.key)) for row in store.rows()}
    assert [found[cell.key] for cell in cells(spec)] == plain
    assert len(list(cache.folder.glob("*.pixels"))) == 2
