"""What the commands share: printing, progress, loading a model, and checks of files to write."""

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from navia.errors import InputError

if TYPE_CHECKING:
    from navia.models.base import ViT

console = Console()
errors = Console(stderr=True)


def print_json(value: Any) -> None:
    """Print dataclasses as objects, and null for numbers that are not finite, which JSON does not have."""
    finite = json.loads(json.dumps(value, default=dataclasses.asdict), parse_constant=lambda _: None)
    sys.stdout.write(json.dumps(finite, indent=2) + "\n")


def print_result(as_json: bool, value: Any, *parts: str | Table) -> None:
    """Print the value as JSON, or else the lines and tables."""
    if as_json:
        print_json(value)
    for part in () if as_json else parts:
        print_line(part) if isinstance(part, str) else print_wide(part)


def print_line(text: str, where: Console = console) -> None:
    """Print the text unchanged: no markup in file names, no line break inside a command."""
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def warn_renamed(old: str, new: str) -> None:
    print_line(f"navia: {old} is now {new}; the old form will be removed in the next release", errors)


def print_wide(table: Table) -> None:
    """Print the whole table even if the terminal is narrower: a shortened number would mislead."""
    width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(width, console.width)).print(table)


@contextlib.contextmanager
def progress(unit: str) -> Iterator[Callable[..., None]]:
    """Give a function that shows (done, total, note=""): a bar on a terminal, elsewhere a line on stderr for each tenth."""
    if errors.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            task = bar.add_task(unit, total=None)
            yield lambda done, total, note="": bar.update(task, completed=done, total=total, description=f"{unit} {note}")
        return
    first: tuple[float, int] | None = None
    shown = -1

    def print_tenths(done: int, total: int | None, note: str = "") -> None:
        nonlocal first, shown
        now, tenths = time.perf_counter(), done * 10 // total if total else shown
        began, before = first = first or (now, done)
        if total and tenths != shown:
            left = f", {(now - began) / (done - before) * (total - done):.0f} s left" if before < done < total else ""
            print_line(f"{done} of {total} {unit}{left}", errors)
        shown = tenths

    yield print_tenths


def load_model(
    model: str, checkpoint: Path | None, crop_only: bool = False, device: str = "cpu", *, num_classes: int | None = None,
    **settings: Any,
) -> "ViT":  # fmt: skip
    """Load a model as the shared options say. settings: more keywords of `navia.load`."""
    from navia.models.device import find_device, keep_freed_memory
    from navia.models.load import load

    if num_classes is not None:
        settings["num_classes"] = num_classes
        if checkpoint is None:
            raise InputError("--num-classes is for weights of your own: give them with --checkpoint")
    where = find_device(device)
    if where.type == "cpu":
        keep_freed_memory()
    vit = load(model, checkpoint=checkpoint, **settings).to(where)
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


def method_options(method: str, pairs: list[str] | None) -> dict[str, Any]:
    """Options of a method from the pairs of --opt; unknown options are refused by name, old names give a warning."""
    from navia.methods.base import METHODS

    kind, options = METHODS.get(method).Options, parse_options(pairs)
    for old in kind.renamed.keys() & options.keys():
        warn_renamed(f"option {old} of {method}", kind.renamed[old])
        options[kind.renamed[old]] = options.pop(old)
    kind.from_kwargs(method, options)
    return options


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Parse KEY=VALUE pairs; a value is JSON if it can be (0.01, true, [0, 1]), else text."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"--opt needs KEY=VALUE, not {pair!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def file_to_write(out: Path, default: str) -> Path:
    """Return `out`, or `out/default` if it is a folder; refuse before any work what cannot be written."""
    if out.is_dir():
        out = out / default
    if out.is_dir() or (out.exists() and not os.access(out, os.W_OK)):
        raise InputError(f"cannot write {str(out)!r}: it is {'a folder' if out.is_dir() else 'read-only'}")
    return _check_writable(out.parent, out)


def folder_to_write(out: Path) -> Path:
    """Return `out`; refuse before any work a file or a folder that cannot be written."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file, not a folder: give another folder to write to")
    return _check_writable(out, out)


def _check_writable(folder: Path, out: Path) -> Path:
    """Leaves nothing behind; the folder itself is made when there is something to write."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{str(existing)!r} is a file, not a folder")
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise InputError(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    return out


def write(out: Path, save: Callable[[Path], None]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save(out)
    except OSError as error:
        raise InputError(f"cannot write {str(out)!r}: {error}") from error
