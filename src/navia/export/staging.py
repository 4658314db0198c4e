"""Files that appear whole, and only after they were found right."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from navia.errors import InputError

MARK = "navia.json"  # says of a folder that it was exported, and may so be replaced


@contextmanager
def staged(path: Path, force: bool) -> Iterator[Path]:
    """A place in a folder of its own beside `path`. What lies there is moved to `path` when the block ends well, together
    with files beside it (weights too large for one file), and deleted when it does not."""
    check_free(path, force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error
    try:
        yield folder / path.name
        _move(folder, path)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_free(path: Path, force: bool) -> None:
    """Refuse a path that exists, unless `force` may replace what is there."""
    if not path.exists():
        return
    if not force:
        what = f"{str(path)!r} exists already: take another path, or"
        raise InputError(f"{what} force=True to replace it", command_line=f"{what} --force to replace it")
    if path.is_dir() and not (path / MARK).is_file() and any(path.iterdir()):
        raise InputError(f"{str(path)!r} is a folder that navia did not export: take another path")


def _move(folder: Path, path: Path) -> None:
    new = folder / path.name
    if path.exists() and (path.is_dir() or new.is_dir()):
        path.rename(folder / f"{path.name}.replaced")  # which goes with the folder
    beside = [file for file in folder.iterdir() if file.is_file() and file != new]
    for file in (*beside, new):  # the one that people look for comes last
        _sync(file)
        file.replace(path.parent / file.name)


def _sync(path: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
