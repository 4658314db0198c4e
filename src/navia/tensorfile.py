"""Safetensors files that say what they are: written whole or not at all, read with errors that name the file."""

import errno
import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from navia import __version__
from navia.errors import NaviaError
from navia.io import printable, written_whole


def write(path: str | Path, kind: str, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    portable = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    described = {"navia": kind, "version": __version__, "digest": _digest(portable), **metadata}
    described = {name: printable(value) for name, value in described.items()}
    try:
        with written_whole(Path(path)) as unfinished:
            save_file(portable, unfinished, described)
    except SafetensorError as cause:  # its name for what the system refused, such as a full disk
        raise OSError(errno.EIO, str(cause)) from cause


def read(path: str | Path, kind: str, error: type[NaviaError]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file of this kind; `error` is raised for anything else."""
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
    if metadata.get("digest", _digest(tensors)) != _digest(tensors):  # the format itself has no checksum
        raise error(f"{kind} {Path(path).name} is damaged: its values are not those that were written")
    return tensors, metadata


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
