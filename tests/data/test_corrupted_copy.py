"""`navia corrupt`: the files of ImageNet-C by the authors' recipe, the same bytes however often the run was stopped."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from navia.cli.corrupt import corrupt as command
from navia.data.corrupt_tree import LOCK_FILE, Result, RunCounts, Summary, lock_tree, write_corrupted
from navia.data.corruptions import corrupt, corruption_seed, names
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain, scan
from navia.errors import InputError, SpecError

pytestmark = pytest.mark.slow

pytest.importorskip("cv2")
pytest.importorskip("scipy")

NOISE = ("gaussian_noise", "shot_noise")
SMALL = ("--size", "48", "--resize", "56")
PROGRAM = "import typer; from navia.cli.corrupt import corrupt; typer.run(corrupt)"
WAIT = 120.0  # seconds; far more than needed, for busy machines


def make_image(seed: int, height: int = 70, width: int = 90) -> Image.Image:
    """Smooth colours, so that a resize or a shifted crop shows."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def fill(folder: Path, count: int = 4) -> Path:
    for i in range(count):
        path = folder / f"n{i % 2:02}" / f"image {i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(i).save(path)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return fill(tmp_path / "clean")


def copy(source: Path, target: Path, **options: Any) -> Summary:
    given: dict[str, Any] = {"corruptions": NOISE, "severities": (1, 5), "size": 48, "resize": 56, **options}
    return write_corrupted(source, target, **given)


def files(target: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too, but for the lock."""
    paths = [path for path in sorted(target.rglob("*")) if path.is_file() and path.name != LOCK_FILE]
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in paths}


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85, optimize=True)
    return buffer.getvalue()


def invoke(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(command)
    data, out, *others = (str(argument) for argument in arguments)
    return CliRunner().invoke(app, [data, "--out", out, *others], env={"COLUMNS": "200"})


def start(*arguments: object, program: str = PROGRAM) -> "subprocess.Popen[str]":
    """The command as a process, in a session of its own."""
    data, out, *others = (str(argument) for argument in arguments)
    return subprocess.Popen(
        [sys.executable, "-c", program, data, "--out", out, *others],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


def until(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + WAIT
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def living(session: int) -> list[int]:
    """Processes of a session that are not dead."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = entry.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(entry.parent.name))
    return found


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough to be stopped in the middle."""
    return fill(tmp_path / "many", 60)


def test_layout_and_names(source: Path, tmp_path: Path) -> None:
    summary = copy(source, tmp_path / "out", severities=(2, 4))
    expected = {
        f"{corruption}/{severity}/n{i % 2:02}/image {i:02}.JPEG"
        for corruption in NOISE
        for severity in (2, 4)
        for i in range(4)
    }
    assert set(files(tmp_path / "out")) == expected | {"navia-corrupt.json"}
    assert (summary.written, summary.kept, summary.unreadable) == (16, 0, ())
    assert summary.seconds > 0


def test_a_folder_without_classes(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    make_image(0).save(tmp_path / "flat" / "a.b.webp")
    copy(tmp_path / "flat", tmp_path / "out", corruptions=["fog"], severities=[3])
    assert set(files(tmp_path / "out")) == {"fog/3/a.b.JPEG", "navia-corrupt.json"}


@pytest.mark.parametrize("corruption", ["gaussian_noise", "glass_blur", "frost", "elastic_transform", "spatter"])
def test_files_are_the_corrupted_crop_as_jpeg(source: Path, tmp_path: Path, corruption: str) -> None:
    """By the authors' recipe, with torchvision's transforms instead of ours, and as a domain sees it on the fly."""
    transforms = pytest.importorskip("torchvision.transforms")
    copy(source, tmp_path / "out", corruptions=[corruption], severities=[3], seed=7)
    crop = transforms.Compose([transforms.Resize(56), transforms.CenterCrop(48)])
    folder = scan(source)
    domain = Domain("any", folder, corruption, 3, seed=7)
    preprocessing = Preprocessing((48, 48), (0.5,) * 3, (0.5,) * 3, 56, "bilinear")
    for position in range(len(folder)):
        name = folder.name(position)
        seen = np.asarray(crop(Image.open(source / name)))
        corrupted = corrupt(seen, corruption, 3, seed=corruption_seed(name, corruption, 3, 7))
        written = (tmp_path / "out" / corruption / "3" / name).with_suffix(".JPEG").read_bytes()
        assert written == jpeg(corrupted)
        assert np.array_equal(domain.pixels(position, preprocessing), corrupted)


def test_the_published_size_is_the_default(source: Path, tmp_path: Path) -> None:
    write_corrupted(source, tmp_path / "out", corruptions=["contrast"], severities=[1], limit=1)
    image = Image.open(tmp_path / "out" / "contrast" / "1" / "n00" / "image 00.JPEG")
    assert (image.size, image.mode, image.format) == ((224, 224), "RGB", "JPEG")
    whole = Image.open(source / "n00" / "image 00.png").resize((329, 256), Image.Resampling.BILINEAR)
    crop = np.asarray(whole.crop((52, 16, 276, 240)))
    expected = corrupt(crop, "contrast", 1, seed=0)  # has no random numbers
    assert np.abs(np.asarray(image, int) - expected).mean() < 2
    assert image.quantization == Image.open(io.BytesIO(jpeg(expected))).quantization


def test_as_is_keeps_the_size(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "out", as_is=True, corruptions=["fog"], severities=[2])
    pixels = np.asarray(Image.open(source / "n01" / "image 01.png"))
    expected = jpeg(corrupt(pixels, "fog", 2, seed=corruption_seed("n01/image 01.png", "fog", 2)))
    assert (tmp_path / "out" / "fog" / "2" / "n01" / "image 01.JPEG").read_bytes() == expected
    assert pixels.shape == (70, 90, 3)


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_grey_stays_grey(tmp_path: Path, mode: str) -> None:
    (tmp_path / "grey").mkdir()
    make_image(3).convert(mode).save(tmp_path / "grey" / "a.png")
    copy(tmp_path / "grey", tmp_path / "out", severities=[4])
    grey = Preprocessing((48, 48), (0.5,), (0.5,), 56, "bilinear")
    for corruption in NOISE:
        path = tmp_path / "out" / corruption / "4" / "a.JPEG"
        with Image.open(path) as written:
            assert written.mode == "L"
        pixels = Domain("any", scan(tmp_path / "grey"), corruption, 4).pixels(0, grey)
        assert pixels.ndim == 2
        assert path.read_bytes() == jpeg(pixels)


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK"])
def test_all_else_becomes_rgb(tmp_path: Path, mode: str) -> None:
    (tmp_path / "other").mkdir()
    make_image(3).convert(mode).save(tmp_path / "other" / "a.tif")
    copy(tmp_path / "other", tmp_path / "out", corruptions=["fog"], severities=[4])
    with Image.open(tmp_path / "out" / "fog" / "4" / "a.JPEG") as written:
        assert written.mode == "RGB"


def test_seeds_and_severities_differ(source: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        copy(source, tmp_path / str(seed), seed=seed)
    first, second = files(tmp_path / "0"), files(tmp_path / "1")
    assert first.keys() == second.keys()
    assert not any(first[name] == second[name] for name in first)
    for name in first:
        if "/1/" in name:
            assert first[name] != first[name.replace("/1/", "/5/")]


def test_the_same_bytes_for_any_number_of_workers(source: Path, tmp_path: Path) -> None:
    summaries = [copy(source, tmp_path / str(workers), workers=workers, corruptions=names()) for workers in (1, 3)]
    assert [summary.written for summary in summaries] == [120, 120]
    assert files(tmp_path / "1") == files(tmp_path / "3")


def test_what_is_there_is_kept(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy(source, out)
    whole = files(out)
    gone, own = out / "shot_noise/5/n00/image 02.JPEG", out / "shot_noise/1/n01/image 03.JPEG"
    gone.unlink()
    own.write_bytes(b"not to be touched")
    (out / "gaussian_noise/1/n00/image 00.JPEG").write_bytes(b"")  # as after a power cut
    summary = copy(source, out)
    assert (summary.written, summary.kept) == (2, 14)
    assert own.read_bytes() == b"not to be touched"
    assert {name: data for name, data in files(out).items() if out / name != own} == {
        name: data for name, data in whole.items() if out / name != own
    }


def test_more_can_be_added_later(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "steps", corruptions=["fog"], severities=[3], limit=2)
    copy(source, tmp_path / "steps", corruptions=["fog", "snow"], severities=[3, 1])
    summary = copy(source, tmp_path / "once", corruptions=["snow", "fog", "snow"], severities=[1, 3, 1])
    assert summary.written == 16
    assert files(tmp_path / "steps") == files(tmp_path / "once")


def test_limit_takes_the_first_by_name(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "out", corruptions=["fog"], severities=[3], limit=3)
    written = {Path(name).name for name in files(tmp_path / "out")}
    assert written == {"image 00.JPEG", "image 02.JPEG", "image 01.JPEG", "navia-corrupt.json"}


def test_half_written_files_are_removed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy(source, out)
    whole = files(out)
    left_over = [out / ".navia-corrupt.json.77.navia-part", out / "shot_noise/1/n00/.image 00.JPEG.77.navia-part"]
    for path in left_over:
        path.write_bytes(b"half")
    copy(source, out)
    assert files(out) == whole
    fresh = tmp_path / "fresh"  # killed before it had any settings
    fresh.mkdir()
    (fresh / ".navia-corrupt.json.77.navia-part").write_bytes(b"{")
    copy(source, fresh)
    assert files(fresh) == whole


def test_two_runs_into_one_tree_are_refused_before_either_loses_a_file(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    copy(source, out)
    writing = out / "shot_noise/1/n00/.image 00.JPEG.77.navia-part"
    with lock_tree(out, json.loads((out / "navia-corrupt.json").read_text())):
        writing.write_bytes(b"half")
        with pytest.raises(InputError, match=r"another run writes to .*out'"):
            copy(source, out)
        assert writing.exists()
    copy(source, out)
    assert not writing.exists()


def test_a_folder_of_something_else_is_left_without_a_trace(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("words")
    with pytest.raises(InputError, match="holds other things"):
        copy(source, other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


def test_progress_goes_from_what_was_there_to_all(source: Path, tmp_path: Path) -> None:
    copy(source, tmp_path / "out", corruptions=["fog"])
    for workers in (1, 2):
        calls: list[tuple[int, int]] = []
        (tmp_path / "out" / "fog" / "1" / "n00" / "image 00.JPEG").unlink()
        copy(
            source, tmp_path / "out", corruptions=["fog"], workers=workers,
            progress=lambda done, total, calls=calls: calls.append((done, total)),
        )  # fmt: skip
        assert calls == [(7, 8), (8, 8)]


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 1), ("size", 50), ("resize", 60), ("as_is", True), ("definitions", 0), ("source", "other")]
)
def test_other_settings_are_refused_by_name(source: Path, tmp_path: Path, name: str, value: Any) -> None:
    out = tmp_path / "out"
    copy(source, out)
    whole = files(out)
    if name == "definitions":
        path = out / "navia-corrupt.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
        whole = files(out)
        value = None
    elif name == "source":
        source = source.rename(source.parent / value)
    options = {} if name in ("definitions", "source") else {name: value}
    expected = {"as_is": r"size 48, resize 56, not size null, resize null"}.get(name, rf"made with {name} .*, not {name} ")
    with pytest.raises(InputError, match=expected):
        copy(source, out, **options)
    assert files(out) == whole


@pytest.mark.parametrize("content", ["no json", "[1]", "\udcff"])
def test_damaged_settings_are_refused(source: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "navia-corrupt.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"navia-corrupt\.json' is damaged"):
        copy(source, tmp_path / "out")


def test_folders_inside_each_other_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for target in (
        source,
        source / "out",
        source / "n00" / "out",
        tmp_path / "link" / "out",
        source / ".." / "clean",
        tmp_path,
    ):
        with pytest.raises(InputError, match="must not lie inside each other"):
            copy(source, target)
    assert set(files(source)) == {f"n{i % 2:02}/image {i:02}.png" for i in range(4)}


def test_sources_and_targets_that_are_none_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images in"):
        copy(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(InputError, match="no folder"):
        copy(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        copy(source, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("important")
    with pytest.raises(InputError, match=r"holds other things \(thesis\.tex"):
        copy(source, tmp_path / "full")
    assert files(tmp_path / "full") == {"thesis.tex": b"important"}


def test_images_that_would_share_a_file_are_named(source: Path, tmp_path: Path) -> None:
    make_image(9).save(source / "n00" / "image 02.bmp")
    with pytest.raises(
        InputError, match=r"'n00/image 02\.bmp' and 'n00/image 02\.png' would both become 'n00/image 02\.JPEG'"
    ):
        copy(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"corruptions": ["fog", "rain"]}, "unknown corruption 'rain'; known: gaussian_noise"),
        ({"severities": [1, 0]}, "severity must be an integer from 1 to 5, not 0"),
        ({"severities": [6]}, "severity must be an integer from 1 to 5, not 6"),
        ({"severities": []}, "nothing to write"),
        ({"corruptions": []}, "nothing to write"),
    ],
)
def test_corruptions_that_are_none_are_refused(
    source: Path, tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        copy(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"workers": 0}, {"limit": 0}, {"limit": -1}, {"size": 27}, {"size": 60}])
def test_numbers_that_are_none_are_refused(source: Path, tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(SpecError, match=next(iter(options))):
        copy(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unreadable_image_is_named_or_left_out(source: Path, tmp_path: Path, workers: int) -> None:
    out = tmp_path / "out"
    good = (source / "n00" / "image 02.png").read_bytes()
    (source / "n00" / "image 02.png").write_bytes(good[: len(good) // 2])
    with pytest.raises(
        InputError, match=r"image 02\.png.*skip_unreadable=True.*; \d+ of 16 files are done, the same command"
    ):
        copy(source, out, workers=workers)
    summary = copy(source, out, workers=workers, skip_unreadable=True)
    assert summary.written + summary.kept == 12
    assert [name for name, _ in summary.unreadable] == ["n00/image 02.png"]
    assert "cannot read image" in summary.unreadable[0][1]
    (source / "n00" / "image 02.png").write_bytes(good)  # mended
    assert copy(source, out).written == 4
    copy(source, tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole")


def test_a_image_too_small_to_corrupt_is_named(source: Path, tmp_path: Path) -> None:
    make_image(0, 20, 90).save(source / "n00" / "image 00.png")
    with pytest.raises(InputError, match=r"n00/image 00\.png: image must be at least 28 px"):
        copy(source, tmp_path / "out", as_is=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_place_that_cannot_be_written_is_named(source: Path, tmp_path: Path, workers: int) -> None:
    out = tmp_path / "out"
    copy(source, out, corruptions=["gaussian_noise"])
    (out / "shot_noise").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write '.*shot_noise.*; 8 of 16 files are done, the same command"):
        copy(source, out, workers=workers)
    (out / "shot_noise").unlink()
    assert copy(source, out).kept == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_target_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(InputError, match=r"cannot write to '.*out'"):
        copy(source, tmp_path / "locked" / "out")


NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200)); "


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_stops_the_run_and_more_room_goes_on(source: Path, tmp_path: Path, workers: int) -> None:
    """Room for files of 1200 bytes only: blurred images fit, noisy ones do not."""
    out = tmp_path / "out"
    chosen = ("--corruption", "defocus_blur", "--corruption", "gaussian_noise", "--severity", 5, "--limit", 1)
    arguments = (source, out, *chosen, *SMALL)
    process = start(*arguments, "--workers", workers, program=NO_ROOM + PROGRAM)
    _, problems = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert re.search(
        r"InputError: cannot write '.*gaussian_noise.*File too large.*1 of 2 files are done, the same", problems
    )
    assert set(files(out)) == {"defocus_blur/5/n00/image 00.JPEG", "navia-corrupt.json"}  # nothing half-written
    answer = json.loads(invoke(*arguments, "--json").stdout)
    assert (answer["written"], answer["kept"]) == (1, 1)


HELD = ("image 12.png", "image 14.png")  # the seventh and the eighth of n00
SWAP = """
import os, sys
import navia.data.corrupt_tree as copy

lock_tree = copy.lock_tree

def lock_and_swap(*arguments):
    for name in {held!r}:
        os.unlink(os.path.join(sys.argv[1], "n00", name))
        os.mkfifo(os.path.join(sys.argv[1], "n00", name))
    return lock_tree(*arguments)

copy.lock_tree = lock_and_swap
"""


@dataclass
class Running:
    """A run with two workers, each of which waits for an image: 30 of its 80 files are written."""

    process: "subprocess.Popen[str]"
    arguments: tuple[object, ...]
    pipes: list[int]

    def give_images(self) -> None:
        for pipe in self.pipes:
            os.set_blocking(pipe, True)
            os.write(pipe, as_png(make_image(12)))
            os.close(pipe)
        self.pipes.clear()


def as_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Two images are pipes by the time they are read: nothing comes after them before the test says so."""
    source = fill(tmp_path / "some", 32)
    shutil.rmtree(source / "n01")
    arguments = (source, tmp_path / "out", "--corruption", "snow", *SMALL, "--workers", 2)
    process = start(*arguments, program=SWAP.format(held=HELD) + PROGRAM)
    found = Running(process, arguments, [])
    for name in HELD:

        def opened(path: Path = source / "n00" / name) -> bool:
            try:
                found.pipes.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # not a pipe yet, or nobody reads from it
                return False
            return True

        until(lambda name=name: (source / "n00" / name).is_fifo(), process)
        until(opened, process)
    yield found
    for pipe in found.pipes:
        os.close(pipe)
    for survivor in living(process.pid):
        os.kill(survivor, signal.SIGKILL)
    process.communicate()


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@needs_proc
def test_a_killed_run_goes_on_to_the_same_bytes(running: Running, tmp_path: Path) -> None:
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.communicate()
    before = files(tmp_path / "out")
    assert sum(name.endswith(".JPEG") for name in before) == 30
    for name in HELD:
        (tmp_path / "some" / "n00" / name).unlink()
        make_image(12).save(tmp_path / "some" / "n00" / name)
    again = start(*running.arguments, "--json")
    output, problems = again.communicate(timeout=WAIT)
    assert again.returncode == 0, problems
    answer = json.loads(output)
    assert (answer["kept"], answer["written"]) == (30, 50)
    after = files(tmp_path / "out")
    copy(tmp_path / "some", tmp_path / "undisturbed", corruptions=["snow"], severities=range(1, 6))
    assert after == files(tmp_path / "undisturbed")
    assert {name: after[name] for name in before if name.endswith(".JPEG")} == {
        name: data for name, data in before.items() if name.endswith(".JPEG")
    }


@needs_proc
def test_no_worker_outlives_a_killed_parent(running: Running) -> None:
    process = running.process
    assert len(living(process.pid)) >= 3  # the parent and two workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_gone(process.pid)


def wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + WAIT
    while living(group):
        assert time.monotonic() < deadline, living(group)
        time.sleep(0.05)


@needs_proc
def test_ctrl_c_says_how_far_it_got(running: Running, tmp_path: Path) -> None:
    process = running.process
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    running.give_images()
    output, problems = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert output == ""
    written = files(tmp_path / "out")
    done = sum(name.endswith(".JPEG") for name in written)
    assert 40 <= done < 80  # what was under way is finished
    assert f"navia: interrupted: {done} of 80 files are done, the same command continues from there\n" in problems
    assert "Traceback" not in problems
    assert not any(name.endswith(".navia-part") for name in written)
    wait_until_gone(process.pid)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_before_a_file_is_counted_leaves_none_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    count = RunCounts.add

    def interrupt_and_count(self: RunCounts, result: Result) -> None:
        if self.written == 5:
            os.kill(os.getpid(), signal.SIGINT)
        count(self, result)

    monkeypatch.setattr(RunCounts, "add", interrupt_and_count)
    source, out = fill(tmp_path / "some", 8), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt) as caught:
        copy(source, out, corruptions=["contrast"], severities=range(1, 6), workers=workers)
    done = sum(name.endswith(".JPEG") for name in files(out))
    assert f"{done} of 40 files are done" in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_right_at_the_beginning(many: Path, tmp_path: Path, workers: int) -> None:
    """While the workers are being started and have not heard of anything yet."""
    process = start(many, tmp_path / "out", *SMALL, "--workers", workers)
    until((tmp_path / "out" / "navia-corrupt.json").exists, process)
    time.sleep(0.3 * workers)
    os.killpg(process.pid, signal.SIGINT)
    _, problems = process.communicate(timeout=WAIT)
    assert process.returncode == 130, problems
    assert "navia: interrupted: " in problems
    assert "Traceback" not in problems


def test_the_command_by_default_writes_the_fifteen(source: Path, tmp_path: Path) -> None:
    result = invoke(source, tmp_path / "out", *SMALL, "--limit", 1)
    assert result.exit_code == 0
    assert re.fullmatch(r"75 files written in \d+ s -> .*out\n", result.stdout)
    folders = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").glob("*/*")}
    assert folders == {f"{name}/{severity}" for name in names() for severity in range(1, 6)}
    lines = result.stderr.splitlines()
    assert lines[0] == "0 of 75 files"
    assert lines[-1] == "75 of 75 files"
    assert 8 <= len(lines) <= 12
    assert all(re.fullmatch(r"\d+ of 75 files(, \d+ s left)?", line) for line in lines)


def test_extra_adds_the_four(source: Path, tmp_path: Path) -> None:
    result = invoke(source, tmp_path / "out", *SMALL, "--extra", "--severity", 3, "--limit", 1, "--json")
    assert json.loads(result.stdout)["written"] == 19
    assert {path.name for path in (tmp_path / "out").glob("*/")} >= set(names(extra=True))
    result = invoke(
        source, tmp_path / "two", *SMALL, "--extra", "--corruption", "fog", "--severity", 3, "--limit", 1, "--json"
    )
    assert json.loads(result.stdout)["written"] == 5


def test_json_lists_what_was_left_out(source: Path, tmp_path: Path) -> None:
    (source / "n01" / "image 03.png").write_text("no image")
    arguments = (source, tmp_path / "out", *SMALL, "--corruption", "fog", "--severity", 1, "--skip-unreadable")
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["written"], answer["kept"]) == (3, 0)
    assert [name for name, _ in answer["unreadable"]] == ["n01/image 03.png"]
    assert "left out: cannot read image" in result.stderr
    assert "3 were there already, 1 images left out" in invoke(*arguments).stdout


def test_the_command_hands_everything_on(source: Path, tmp_path: Path) -> None:
    chosen = ("--corruption", "shot_noise", "--severity", 2, "--severity", 4)
    invoke(source, tmp_path / "a", *chosen, "--seed", 3, "--size", 40, "--resize", 44, "--limit", 2)
    copy(source, tmp_path / "b", corruptions=["shot_noise"], severities=[2, 4], seed=3, size=40, resize=44, limit=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    invoke(source, tmp_path / "c", *chosen, "--as-is")
    copy(source, tmp_path / "d", corruptions=["shot_noise"], severities=[2, 4], as_is=True)
    assert files(tmp_path / "c") == files(tmp_path / "d")


def test_the_command_refuses_with_the_librarys_words(source: Path, tmp_path: Path) -> None:
    result = invoke(source, tmp_path / "out", "--severity", 9)
    assert isinstance(result.exception, InputError)
    assert "severity must be an integer from 1 to 5, not 9" in str(result.exception)
