"""The tree of copies: whose it is, what of it is there, what is still to be written."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from navia.data.corrupt_tree.recipe import Picture, Recipe, Unit
from navia.data.folder import Folder
from navia.errors import InputError
from navia.io import UNFINISHED_SUFFIX, atomic_write, lock_file

SETTINGS_FILE = "navia-corrupt.json"
LOCK_FILE = ".navia-corrupt.lock"  # stays empty: empty files do not count


def pictures_of(folder: Folder) -> list[Picture]:
    owners: dict[PurePosixPath, str] = {}
    for position in range(len(folder)):
        name = folder.name(position)
        file = PurePosixPath(name).with_suffix(".JPEG")
        if file in owners:
            raise InputError(f"{owners[file]!r} and {name!r} would both become {str(file)!r}: rename one of them")
        owners[file] = name
    return [Picture(name, file) for file, name in owners.items()]


def claim(target: Path, settings: dict[str, Any]) -> ExitStack:
    """Write down in `target` what its files are made with, or make sure that they are made with the same. No other run
    writes to it until the returned lock is closed: what one is still writing would look half-written to the other."""
    if target.exists() and not target.is_dir():
        raise InputError(f"{str(target)!r} is a file, not a folder")
    target.mkdir(parents=True, exist_ok=True)
    content = _finished(target, tidy=False)
    if content and SETTINGS_FILE not in content:
        raise InputError(f"{str(target)!r} holds other things ({min(content)}, ...): choose a new or an empty folder")
    lock = lock_file(target / LOCK_FILE, f"another run writes to {str(target)!r}: wait for it or choose another folder")
    try:
        _settle(target, settings)
    except BaseException:
        lock.close()
        raise
    return lock


def _settle(target: Path, settings: dict[str, Any]) -> None:
    path = target / SETTINGS_FILE
    if SETTINGS_FILE in _finished(target):
        _check_settings(path, settings)
    else:
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps(settings, indent=2) + "\n")


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


def _finished(folder: Path, tidy: bool = True) -> set[str]:
    """Names in a folder, without the empty files of a power cut. tidy: remove what killed runs left half-written."""
    finished: set[str] = set()
    if not folder.is_dir():
        return finished
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(UNFINISHED_SUFFIX):
                if tidy:
                    Path(entry.path).unlink(missing_ok=True)
            elif not entry.is_file() or entry.stat().st_size > 0:
                finished.add(entry.name)
    return finished


def missing_files(
    recipe: Recipe, pictures: Sequence[Picture], corruptions: Sequence[str], severities: Sequence[int]
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


def units_of(
    pictures: Sequence[Picture], corruptions: Sequence[str], severities: Sequence[int], missing: np.ndarray
) -> Iterator[Unit]:
    for position, c in np.argwhere(missing.any(axis=2)):
        wanted = tuple(severity for severity, lacks in zip(severities, missing[position, c], strict=True) if lacks)
        yield Unit(pictures[position], corruptions[c], wanted)
