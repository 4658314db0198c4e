"""A folder of clean pictures -> a tree like that of ImageNet-C: TARGET/corruption/severity/name.JPEG.

Every file is cropped, corrupted and saved as the published ones were: shorter side to 256 px, centre crop of 224 px, the
corruption, JPEG of quality 85. Its random numbers depend on the picture's name alone, so that the bytes are the same
whatever the order, the number of processes or the interruptions. Files appear under their names only when they are
whole; a run that was stopped goes on where it stopped.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from navia.data.corrupt_tree.recipe import Recipe
from navia.data.corrupt_tree.tree import claim, missing_files, pictures_of, units_of
from navia.data.corrupt_tree.workers import Progress, Tally, work
from navia.data.corruptions import SMALLEST_SIDE, names
from navia.data.folder import scan
from navia.errors import InputError, SpecError, known_names


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
    recipe = Recipe(source, target, seed, None if as_is else size, None if as_is else resize)
    pictures = pictures_of(folder)[:limit]
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(claim(target, recipe.settings()))
            missing = missing_files(recipe, pictures, corruptions, severities)
        except OSError as error:
            raise InputError(f"cannot write to {str(target)!r}: {error}") from error
        tally = Tally(missing.size, int((~missing).sum()), skip_unreadable, progress)
        tally.report()
        work(recipe, units_of(pictures, corruptions, severities, missing), workers, tally)
    return Summary(tally.written, tally.kept, tuple(sorted(tally.unreadable.items())), time.perf_counter() - began)


def _checked(corruptions: Sequence[str], severities: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Without repetitions, in the order given."""
    known = names(extra=True)
    for name in corruptions:
        if name not in known:
            raise InputError(f"unknown corruption {name!r}{known_names(name, known)}")
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
