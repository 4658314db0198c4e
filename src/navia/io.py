"""Files: atomic writes, locks between processes, tensor files, paths that are not valid UTF-8, and delayed Ctrl-C."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from navia import __version__
from navia.errors import InputError, NaviaError

if TYPE_CHECKING:  # torch is imported only where tensors are read or written
    from torch import Tensor

UNFINISHED_SUFFIX = ".navia-part"  # of the temporary files of `atomic_write`


def expand_user(path: str | Path) -> Path:
    """Replace a leading ~ by the home folder."""
    return Path(os.path.expanduser(path))


def to_bytes(text: str) -> bytes:
    """Encode as UTF-8. File names that are not valid UTF-8 (lone surrogates in Python) get their bytes on disk."""
    return text.encode("utf-8", "surrogatepass" if os.name == "nt" else "surrogateescape")


def printable(text: str) -> str:
    r"""Make text valid Unicode: bytes of a file name that are not UTF-8 become \udcXX."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def atomic_write(path: Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path and rename it to `path` at the end, so that readers never see half a file.

    The temporary name contains the process id: two processes never write to the same file. If the block raises, the
    temporary file is removed and `path` stays as it was.

    Args:
        path: The file to create or replace.
        sync: Flush the file and its folder to disk, so that the file survives a power cut.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED_SUFFIX}")
    try:
        yield unfinished
        if sync:
            sync_to_disk(unfinished)
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    if sync:
        sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder, so that it survives a power cut."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock_file(path: Path, refusal: str, timeout: float = 0.0) -> contextlib.ExitStack:
    """Lock `path` against other processes until the end of a `with` block, `close()`, or the end of this process.

    Args:
        path: An empty file of its own, created if needed and left in place. Never a data file.
        refusal: The error message if another process holds the lock.
        timeout: Seconds to wait for the other process.

    Raises:
        InputError: Another process still holds the lock after `timeout` seconds.
    """
    from filelock import FileLock, Timeout

    held = contextlib.ExitStack()
    try:
        held.enter_context(FileLock(path, timeout, thread_local=False))
    except Timeout:
        raise InputError(refusal) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks: work without one
            raise
    return held


def write_tensors(path: str | Path, kind: str, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    """Write a safetensors file whose metadata names its kind, the version and a checksum of the values."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    portable = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    full = {"navia": kind, "version": __version__, "digest": _digest(portable), **metadata}
    try:
        with atomic_write(Path(path)) as unfinished:
            save_file(portable, unfinished, {name: printable(value) for name, value in full.items()})
    except SafetensorError as cause:  # raised for errors of the system, such as a full disk
        raise OSError(errno.EIO, str(cause)) from cause


def read_tensors(path: str | Path, kind: str, error: type[NaviaError]) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Read tensors and metadata of a file that `write_tensors` wrote; raise `error` for any other file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not Path(path).is_file():
        raise error(f"no {kind} file {str(path)!r}")
    try:
        data = Path(path).read_bytes()  # safetensors itself does not open files whose names are not UTF-8
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except SafetensorError as cause:
        raise error(f"cannot read {kind} {Path(path).name}: {cause}") from cause
    if metadata.get("navia") != kind:
        raise error(f"{Path(path).name} is no {kind} file")
    if metadata.get("digest", _digest(tensors)) != _digest(tensors):  # safetensors has no checksum
        raise error(f"{kind} {Path(path).name} is damaged: its values are not those that were written")
    return tensors, metadata


def _digest(tensors: "dict[str, Tensor]") -> str:
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextlib.contextmanager
def delay_interrupts(on_interrupt: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Delay Ctrl-C: the first one calls `on_interrupt` and takes effect at the end, a second one at once."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield  # only the main thread gets signals
        return
    handler, waiting = usual, False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            handler(number, frame)
        waiting = True
        on_interrupt()

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if waiting:
        signal.raise_signal(signal.SIGINT)
