"""A folder of clean pictures -> a tree like that of ImageNet-C: TARGET/corruption/severity/name.JPEG.

Every file is cropped, corrupted and saved as the published ones were: shorter side to 256 px, centre crop of 224 px, the
corruption, JPEG of quality 85. Its random numbers depend on the picture's name alone, so that the bytes are the same
whatever the order, the number of processes or the interruptions. Files appear under their names only when they are
whole; a run that was stopped goes on where it stopped.
"""

import contextlib
import io
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

import numpy as np
from PIL import Image

from navia.errors import InputError, NaviaError, SpecError
from navia.images.corruptions import SMALLEST_SIDE, corrupt, names, seed_of
from navia.images.folder import Folder, open_image, scan
from navia.images.preprocessing import Preprocessing

DEFINITIONS = 1  # to be raised whenever a corruption gives other pixels: no tree may hold both
QUALITY = 85
SETTINGS_FILE = "navia-corrupt.json"
UNFINISHED = ".navia-part"  # how the names of half-written files end

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """Files written now, files that were there already, (name, reason) of each picture left out, seconds of the run."""

    written: int
    kept: int
    unreadable: tuple[tuple[str, str], ...]
    seconds: float


def write_corrupted(
    source: Path,
    target: Path,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    seed: int = 0,
    size: int = 224,
    resize: int = 256,
    as_is: bool = False,
    workers: int = 1,
    limit: int | None = None,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Write the corrupted copies of all pictures (`limit`: of the first so many) of `source` that `target` lacks.

    as_is      keep the size of every picture instead of resizing and cropping it
    workers    processes; with more than one a script that calls this needs the usual `if __name__ == "__main__":`
    progress   called with (files dealt with, files in all)

    A KeyboardInterrupt is raised anew with a text that says how far it got.
    """
    began = time.perf_counter()
    corruptions, severities = _checked(corruptions, severities)
    _check_numbers(size, resize, as_is, workers, limit)
    _check_apart(source, target)
    folder = scan(source)
    recipe = _Recipe(source, target, seed, None if as_is else size, None if as_is else resize)
    pictures = _pictures(folder)[:limit]
    try:
        _claim(target, recipe.settings())
        missing = _missing(recipe, pictures, corruptions, severities)
    except OSError as error:
        raise InputError(f"cannot write to {str(target)!r}: {error}") from error
    tally = _Tally(missing.size, int((~missing).sum()), skip_unreadable, progress)
    tally.report()
    _work(recipe, _units(pictures, corruptions, severities, missing), workers, tally)
    return Summary(tally.written, tally.kept, tuple(sorted(tally.unreadable.items())), time.perf_counter() - began)


class _Picture(NamedTuple):
    """name: below the source, where seeds come from. file: below a severity's folder of the target."""

    name: str
    file: PurePosixPath


class _Unit(NamedTuple):
    """What a worker does in one go. Small, so that an interrupted run ends soon."""

    picture: _Picture
    corruption: str
    severities: tuple[int, ...]


class _Outcome(NamedTuple):
    """How many files of the unit were written, and in words why not all."""

    unit: _Unit
    written: int
    unreadable: str = ""
    unwritable: str = ""


@dataclass(frozen=True)
class _Recipe:
    """All that the pixels depend on besides the picture, its corruption and its severity. size None: as it is."""

    source: Path
    target: Path
    seed: int
    size: int | None
    resize: int | None

    def settings(self) -> dict[str, Any]:
        """What must be equal for all files of a tree."""
        return {
            "source": self.source.resolve().name,
            "seed": self.seed,
            "size": self.size,
            "resize": self.resize,
            "quality": QUALITY,
            "definitions": DEFINITIONS,
        }

    def folder(self, corruption: str, severity: int) -> Path:
        return self.target / corruption / str(severity)

    def do(self, unit: _Unit) -> _Outcome:
        for written, severity in enumerate(unit.severities):
            try:
                data = self._file(unit, severity)
            except InputError as error:
                return _Outcome(unit, written, unreadable=str(error))
            path = self.folder(unit.corruption, severity) / unit.picture.file
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                _write(path, data)
            except OSError as error:
                return _Outcome(unit, written, unwritable=f"cannot write {str(path)!r}: {error}")
        return _Outcome(unit, len(unit.severities))

    def _file(self, unit: _Unit, severity: int) -> bytes:
        pixels = _cropped(self.source / unit.picture.name, self.size, self.resize)
        seed = seed_of(unit.picture.name, unit.corruption, severity, self.seed)
        return _as_jpeg(corrupt(pixels, unit.corruption, severity, seed=seed))


@lru_cache(maxsize=1)  # the units of a picture follow each other
def _cropped(path: Path, size: int | None, resize: int | None) -> np.ndarray:
    image = open_image(path)
    channels = 1 if image.mode in ("1", "L", "LA") else 3
    shape = (image.height, image.width) if size is None else (size, size)
    like_published = Preprocessing(shape, (0.0,) * channels, (1.0,) * channels, resize, interpolation="bilinear")
    return np.asarray(like_published.crop(image))


def _as_jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    """All or nothing. The process is part of the temporary name: two runs never write to the same file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _checked(corruptions: Sequence[str], severities: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Without repetitions, in the order given."""
    known = names(extra=True)
    for name in corruptions:
        if name not in known:
            raise InputError(f"unknown corruption {name!r}; known: {', '.join(known)}")
    for severity in severities:
        if severity not in range(1, 6):
            raise InputError(f"severity must be an integer from 1 to 5, not {severity!r}")
    if not corruptions or not severities:
        raise InputError("no corruption or no severity given: there is nothing to write")
    return tuple(dict.fromkeys(corruptions)), tuple(dict.fromkeys(severities))


def _check_numbers(size: int, resize: int, as_is: bool, workers: int, limit: int | None) -> None:
    if workers < 1:
        raise SpecError(f"workers must be at least 1, not {workers}")
    if limit is not None and limit < 1:
        raise SpecError(f"limit must be at least 1, not {limit}")
    if not as_is and not SMALLEST_SIDE <= size <= resize:
        raise SpecError(f"size must be from {SMALLEST_SIDE} px to the {resize} px of resize, not {size}")


def _check_apart(source: Path, target: Path) -> None:
    """Copies among the originals would be taken for originals next time."""
    original, copy = source.resolve(), target.resolve()
    if copy == original or original in copy.parents or copy in original.parents:
        raise InputError(f"the copy {str(target)!r} and the images {str(source)!r} must not lie inside each other")


def _pictures(folder: Folder) -> list[_Picture]:
    owners: dict[PurePosixPath, str] = {}
    for position in range(len(folder)):
        name = folder.name(position)
        file = PurePosixPath(name).with_suffix(".JPEG")
        if file in owners:
            raise InputError(f"{owners[file]!r} and {name!r} would both become {str(file)!r}: rename one of them")
        owners[file] = name
    return [_Picture(name, file) for file, name in owners.items()]


def _claim(target: Path, settings: dict[str, Any]) -> None:
    """Write down in `target` what its files are made with, or make sure that they are made with the same."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{str(target)!r} is a file, not a folder")
    target.mkdir(parents=True, exist_ok=True)
    path = target / SETTINGS_FILE
    content = _finished(target)
    if SETTINGS_FILE in content:
        _check_settings(path, settings)
    elif content:
        raise InputError(f"{str(target)!r} holds other things ({min(content)}, ...): choose a new or an empty folder")
    else:
        _write(path, (json.dumps(settings, indent=2) + "\n").encode())


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    try:
        before = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): choose another folder") from error
    if not isinstance(before, dict):
        raise InputError(f"{str(path)!r} is damaged (no settings): choose another folder")
    others = [name for name in settings if before.get(name) != settings[name]]
    if others:
        was, now = (", ".join(f"{name} {json.dumps(s.get(name))}" for name in others) for s in (before, settings))
        raise InputError(f"{str(path.parent)!r} was made with {was}, not {now}: choose another folder")


def _finished(folder: Path) -> set[str]:
    """Names in a folder. Removes what killed runs left half-written, and leaves out the empty files of a power cut."""
    finished: set[str] = set()
    if not folder.is_dir():
        return finished
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(UNFINISHED):
                Path(entry.path).unlink(missing_ok=True)
            elif not entry.is_file() or entry.stat().st_size > 0:
                finished.add(entry.name)
    return finished


def _missing(
    recipe: _Recipe, pictures: Sequence[_Picture], corruptions: Sequence[str], severities: Sequence[int]
) -> np.ndarray:
    """Which files are still to be written: bool [pictures, corruptions, severities]."""
    missing = np.ones((len(pictures), len(corruptions), len(severities)), dtype=bool)
    by_folder: dict[PurePosixPath, list[int]] = {}
    for position, picture in enumerate(pictures):
        by_folder.setdefault(picture.file.parent, []).append(position)
    for c, corruption in enumerate(corruptions):
        for s, severity in enumerate(severities):
            for folder, positions in by_folder.items():
                finished = _finished(recipe.folder(corruption, severity) / folder)
                missing[positions, c, s] = [pictures[position].file.name not in finished for position in positions]
    return missing


def _units(
    pictures: Sequence[_Picture], corruptions: Sequence[str], severities: Sequence[int], missing: np.ndarray
) -> Iterator[_Unit]:
    for position, c in np.argwhere(missing.any(axis=2)):
        wanted = tuple(severity for severity, lacks in zip(severities, missing[position, c], strict=True) if lacks)
        yield _Unit(pictures[position], corruptions[c], wanted)


@dataclass
class _Tally:
    """How far a run is, and what stops it."""

    total: int
    kept: int
    skip_unreadable: bool
    progress: Progress | None
    written: int = 0
    left_out: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    trouble: str = ""

    def note(self, outcome: _Outcome) -> None:
        self.written += outcome.written
        if outcome.unreadable:
            self._leave_out(outcome)
        self.trouble = self.trouble or outcome.unwritable
        self.report()

    def _leave_out(self, outcome: _Outcome) -> None:
        name = outcome.unit.picture.name
        reason = outcome.unreadable if name in outcome.unreadable else f"{name}: {outcome.unreadable}"
        self.left_out += len(outcome.unit.severities) - outcome.written
        self.unreadable[name] = reason
        if not self.skip_unreadable:
            self.trouble = self.trouble or f"{reason} (leave out such images with --skip-unreadable or skip_unreadable=True)"

    def report(self) -> None:
        if self.progress is not None:
            self.progress(self.kept + self.written + self.left_out, self.total)

    def how_far(self) -> str:
        return f"{self.kept + self.written} of {self.total} files are done, the same command goes on from there"


def _work(recipe: _Recipe, units: Iterator[_Unit], workers: int, tally: _Tally) -> None:
    try:
        if workers == 1:
            _work_here(recipe, units, tally)
        else:
            _work_in_processes(recipe, units, workers, tally)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(tally.how_far()) from None
    except BrokenProcessPool as error:
        raise NaviaError(f"a worker process died, perhaps of too little memory; {tally.how_far()}") from error
    if tally.trouble:
        raise InputError(f"{tally.trouble}; {tally.how_far()}")


def _work_here(recipe: _Recipe, units: Iterator[_Unit], tally: _Tally) -> None:
    for unit in units:
        tally.note(recipe.do(unit))
        if tally.trouble:
            return


def _work_in_processes(recipe: _Recipe, units: Iterator[_Unit], workers: int, tally: _Tally) -> None:
    # Started anew instead of forked: the caller may have threads, and locks that they hold.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    waiting: set[Future[_Outcome]] = set()
    try:
        with _interrupts_held_back():
            waiting |= {pool.submit(recipe.do, unit) for unit in islice(units, 2 * workers)}
        while waiting and not tally.trouble:
            finished = wait(waiting, return_when=FIRST_COMPLETED).done
            for future in finished:
                waiting.remove(future)
                tally.note(future.result())
            waiting |= {pool.submit(recipe.do, unit) for unit in islice(units, len(finished))}
    finally:
        pool.shutdown(cancel_futures=True)
        for future in waiting:  # what was under way has been finished, and counts
            if not future.cancelled() and future.exception() is None:
                tally.note(future.result())


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal. Those started in here inherit that it is held back, and leave it to
    this one, which gets it at the end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(ModuleNotFoundError):
        import cv2

        cv2.setNumThreads(1)  # the workers share the cores; more threads would wait for each other


def _die_with_parent() -> NoReturn:
    """A worker waits for work for ever: nobody tells it when its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_any([parent.sentinel])
    os._exit(1)
