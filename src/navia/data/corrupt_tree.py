"""Write a tree like ImageNet-C from a folder of clean images: TARGET/corruption/severity/name.JPEG.

Files are made as the published ones: shorter side to 256 px, centre crop of 224 px, corruption, JPEG of quality 85. Random
seeds depend on the image's name only, so that the bytes do not depend on order, number of processes or interruptions.
Files are written atomically; an interrupted run continues where it stopped.
"""

import contextlib
import io
import itertools
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
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

import numpy as np
from PIL import Image

from navia.data.corruptions import MIN_SIDE, check_corruption, corrupt, corruption_seed
from navia.data.preprocessing import Preprocessing, open_image
from navia.data.sources import Folder, scan
from navia.errors import InputError, NaviaError, SpecError
from navia.io import UNFINISHED_SUFFIX, atomic_write, delay_interrupts, lock_file

DEFINITIONS = 1  # increase whenever a corruption gives other pixels: no tree may hold both
QUALITY = 85
SETTINGS_FILE = "navia-corrupt.json"
LOCK_FILE = ".navia-corrupt.lock"  # stays empty: empty files do not count as content

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """Number of files written and of files that existed, (name, reason) of each skipped image, and the duration."""

    written: int
    kept: int
    unreadable: tuple[tuple[str, str], ...]
    seconds: float


class Task(NamedTuple):
    """Files of one image and corruption. name: path below the source. file: path below a severity's folder."""

    name: str
    file: PurePosixPath
    corruption: str
    severities: tuple[int, ...]


class Result(NamedTuple):
    """Number of files written for a task, and why the others were not."""

    task: Task
    written: int
    unreadable: str = ""
    unwritable: str = ""


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
    """Write the corrupted copies that `target` does not have yet; a KeyboardInterrupt says how many files are done.

    Args:
        as_is: Keep the size of every image instead of resizing and cropping.
        workers: Number of processes; more than one need `if __name__ == "__main__":` in a script.
        limit: Maximum number of images.
        skip_unreadable: Leave out images that cannot be read; otherwise they raise an InputError.
        progress: Called with (finished files, all files).
    """
    start = time.perf_counter()
    corruptions, severities = tuple(dict.fromkeys(corruptions)), tuple(dict.fromkeys(severities))
    _check_arguments(source, target, corruptions, severities, workers, limit)
    if not as_is and not MIN_SIDE <= size <= resize:
        raise SpecError(f"size must be from {MIN_SIDE} px to the {resize} px of resize, not {size}")
    images = _target_files(scan(source))[:limit]
    writer = Writer(source, target, seed, None if as_is else size, None if as_is else resize)
    settings = {"source": source.resolve().name, "seed": seed, "size": writer.size, "resize": writer.resize}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_tree(target, {**settings, "quality": QUALITY, "definitions": DEFINITIONS}))
        except OSError as error:
            raise InputError(f"cannot write to {str(target)!r}: {error}") from error

        def missing_files() -> Iterator[Task]:
            for (name, file), corruption in itertools.product(images, corruptions):
                wanted = [s for s in severities if not _is_complete(target / corruption / str(s) / file)]
                if wanted:
                    yield Task(name, file, corruption, tuple(wanted))

        total = len(images) * len(corruptions) * len(severities)
        missing = sum(len(task.severities) for task in missing_files())
        counts = RunCounts(total, total - missing, skip_unreadable, progress)
        counts.report()
        try:
            if workers > 1:
                _run_in_processes(writer, missing_files(), workers, counts)
            else:
                for task in missing_files():
                    with delay_interrupts():  # files on the disk are counted
                        counts.add(writer.write(task))
                    if counts.failure:
                        break
        except KeyboardInterrupt:
            raise KeyboardInterrupt(str(counts)) from None
        except BrokenProcessPool as error:
            raise NaviaError(f"a worker process died, perhaps because memory ran out; {counts}") from error
    if counts.failure:
        raise InputError(f"{counts.failure}; {counts}")
    return Summary(counts.written, counts.kept, tuple(sorted(counts.unreadable.items())), time.perf_counter() - start)


def _check_arguments(
    source: Path, target: Path, corruptions: Sequence[str], severities: Sequence[int], workers: int, limit: int | None
) -> None:
    for name, severity in itertools.product(corruptions, severities):
        check_corruption(name, severity)
    if not corruptions or not severities:
        raise InputError("no corruption or no severity given: there is nothing to write")
    if workers < 1 or (limit is not None and limit < 1):
        raise SpecError(f"workers and limit must be at least 1, not {workers} and {limit}")
    original, copy = source.resolve(), target.resolve()
    if copy == original or original in copy.parents or copy in original.parents:  # copies would become originals
        raise InputError(f"the copy {str(target)!r} and the images {str(source)!r} must not lie inside each other")


def _target_files(folder: Folder) -> list[tuple[str, PurePosixPath]]:
    """Name of each image, and its file below the folder of a severity."""
    by_file: dict[PurePosixPath, str] = {}
    for index in range(len(folder)):
        name = folder.name(index)
        file = PurePosixPath(name).with_suffix(".JPEG")
        if file in by_file:
            raise InputError(f"{by_file[file]!r} and {name!r} would both become {str(file)!r}: rename one of them")
        by_file[file] = name
    return [(name, file) for file, name in by_file.items()]


@contextlib.contextmanager
def lock_tree(target: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Write the settings into `target`, or check that they are the same, and keep other runs out: a file that one run is
    still writing would look half-written to another."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{str(target)!r} is a file, not a folder")
    target.mkdir(parents=True, exist_ok=True)
    path = target / SETTINGS_FILE
    others = (entry for entry in target.iterdir() if not entry.name.endswith(UNFINISHED_SUFFIX))
    content = [entry.name for entry in others if entry.is_dir() or _is_complete(entry)]
    if content and not _is_complete(path):
        raise InputError(f"{str(target)!r} holds other things ({min(content)}, ...): choose a new or an empty folder")
    with lock_file(target / LOCK_FILE, f"another run writes to {str(target)!r}: wait for it or choose another folder"):
        for unfinished in target.rglob(f"*{UNFINISHED_SUFFIX}"):  # left by killed runs
            unfinished.unlink(missing_ok=True)
        if not _is_complete(path):
            with atomic_write(path) as unfinished:
                unfinished.write_text(json.dumps(settings, indent=2) + "\n")
        try:
            before = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise InputError(f"{str(path)!r} is damaged ({error}): choose another folder") from error
        changed = [name for name in settings if before.get(name) != settings[name]]
        was, now = (", ".join(f"{name} {json.dumps(s.get(name))}" for name in changed) for s in (before, settings))
        if changed:
            raise InputError(f"{str(target)!r} was made with {was}, not {now}: choose another folder")
        yield


def _is_complete(path: Path) -> bool:
    """Whether a file exists and is not empty, as after a power cut."""
    with contextlib.suppress(OSError):
        return path.stat().st_size > 0
    return False


@dataclass(frozen=True)
class Writer:
    """Makes the files of a tree. size and resize None: images keep their size."""

    source: Path
    target: Path
    seed: int
    size: int | None
    resize: int | None

    def write(self, task: Task) -> Result:
        """Write the files of a task, up to the first that fails."""
        for written, severity in enumerate(task.severities):
            try:
                pixels = _cropped(self.source / task.name, self.size, self.resize)
                seed = corruption_seed(task.name, task.corruption, severity, self.seed)
                data = io.BytesIO()
                image = Image.fromarray(corrupt(pixels, task.corruption, severity, seed=seed))
                image.save(data, "JPEG", quality=QUALITY, optimize=True)
            except InputError as error:
                return Result(task, written, unreadable=str(error))
            path = self.target / task.corruption / str(severity) / task.file
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path, sync=False) as unfinished:  # a million syncs would take longer than the images
                    unfinished.write_bytes(data.getvalue())
            except OSError as error:
                return Result(task, written, unwritable=f"cannot write {str(path)!r}: {error}")
        return Result(task, len(task.severities))


@lru_cache(maxsize=1)  # the tasks of an image follow each other
def _cropped(path: Path, size: int | None, resize: int | None) -> np.ndarray:
    image = open_image(path)
    channels = 1 if image.mode in ("1", "L", "LA") else 3
    shape = (image.height, image.width) if size is None else (size, size)
    as_published = Preprocessing(shape, (0.0,) * channels, (1.0,) * channels, resize, interpolation="bilinear")
    return np.asarray(as_published.crop(image))


@dataclass
class RunCounts:
    """Progress of a run. failure: the message that ends it."""

    total: int
    kept: int
    skip_unreadable: bool
    progress: Progress | None
    written: int = 0
    skipped: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def add(self, result: Result) -> None:
        """Count the files of a task."""
        self.written += result.written
        failure = result.unwritable
        if result.unreadable:
            name = result.task.name
            reason = result.unreadable if name in result.unreadable else f"{name}: {result.unreadable}"
            self.skipped += len(result.task.severities) - result.written
            self.unreadable[name] = reason
            if not self.skip_unreadable:
                failure = f"{reason} (leave out such images with --skip-unreadable or skip_unreadable=True)"
        self.failure = self.failure or failure
        self.report()

    def report(self) -> None:
        """Call the progress callback."""
        if self.progress is not None:
            self.progress(self.kept + self.written + self.skipped, self.total)

    def __str__(self) -> str:
        return f"{self.kept + self.written} of {self.total} files are done, the same command continues from there"


def _run_in_processes(writer: Writer, tasks: Iterator[Task], workers: int, counts: RunCounts) -> None:
    # Spawned, not forked: the caller may have threads, and locks that they hold.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    pending: set[Future[Result]] = set()
    try:
        following = list(itertools.islice(tasks, 2 * workers))
        with delay_interrupts(), _interrupts_blocked():
            pending |= {pool.submit(writer.write, task) for task in following}
        while pending and not counts.failure:
            finished = wait(pending, return_when=FIRST_COMPLETED).done
            following = list(itertools.islice(tasks, len(finished)))
            with delay_interrupts():  # otherwise a task could be neither waited for nor counted
                for future in finished:
                    pending.remove(future)
                    counts.add(future.result())
                pending |= {pool.submit(writer.write, task) for task in following}
    finally:
        pool.shutdown(cancel_futures=True)
        for future in pending:  # running tasks were finished, and count
            if not future.cancelled() and future.exception() is None:
                counts.add(future.result())


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C, which a terminal sends to all, and leave it to this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with contextlib.suppress(ModuleNotFoundError):
        import cv2

        cv2.setNumThreads(1)  # the workers share the cores


def _exit_with_parent() -> NoReturn:
    """A worker waits for tasks forever, even if its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
