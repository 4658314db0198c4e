"""Delta files: only the tensors that adaptation changed, with the model, method and reducer they belong to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navia.errors import NaviaError
from navia.io import read_tensors, write_tensors
from navia.methods.base import Method

_KIND = "delta"


class DeltaError(NaviaError):
    """A delta file that is broken or belongs to another model, method or reducer."""


class BrokenDeltaError(DeltaError):
    """A delta file that cannot be read, or was damaged since it was written."""


def save_delta(
    path: str | Path,
    method: Method,
    source: dict[str, Tensor],
    weights: str,
    steps: int,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write the tensors that differ from the source state. notes: metadata that goes with them."""
    changed = {
        name: value for name, value in method.tensors().items() if name not in source or not torch.equal(value, source[name])
    }
    metadata = {
        "weights": weights,
        "model": method.vit.name,
        "method": method.name,
        "reduce": str(method.reduce),
        "classes": json.dumps(_class_list(method)),
        "steps": str(steps),
        "options": json.dumps(vars(method.options), default=str),
    }
    write_tensors(path, _KIND, changed, {**(notes or {}), **metadata})


def read_delta(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    return read_tensors(path, _KIND, BrokenDeltaError)


def classes_of(metadata: Mapping[str, str], unknown: list[int] | None = None) -> list[int] | None:
    """The classes that a delta predicts, None for all; `unknown` if its file, written by an older version, does not say."""
    classes: list[int] | None = _json(metadata, "classes", unknown, list | None)
    if not all(isinstance(number, int) for number in classes or ()):
        raise BrokenDeltaError("delta has unreadable classes")
    return classes


def check_delta(tensors: dict[str, Tensor], metadata: dict[str, str], method: Method, weights: str) -> None:
    """Raise DeltaError unless the delta fits this model, method, reducer, options and classes, and is finite."""
    for what, own in (("weights", weights), ("method", method.name), ("reduce", str(method.reduce))):
        if metadata.get(what) != own:
            shown = (metadata.get("model"), method.vit.name) if what == "weights" else (metadata.get(what), own)
            raise DeltaError(f"delta belongs to another {what}: {shown[0]}, not {shown[1]}")
    options = _json(metadata, "options", {}, dict)
    for name in method.output_options:
        mine = getattr(method.options, name)
        if options.get(name, mine) != mine:
            raise DeltaError(f"delta belongs to another {name}: {options[name]}, not {mine}")
    classes = _class_list(method)
    if classes_of(metadata, classes) != classes:
        raise DeltaError(
            f"delta belongs to other classes: {describe_classes(classes_of(metadata))}, not {describe_classes(classes)}"
        )
    if not metadata.get("steps", "0").isdecimal():
        raise BrokenDeltaError(f"delta says that it took {metadata['steps']!r} steps")
    shapes = _shapes(method)
    for name, value in tensors.items():
        if not _fits(value, shapes.get(name)):
            raise DeltaError(f"delta holds {name} {tuple(value.shape)}, which this adapter does not tune")
        if not bool(value.isfinite().all()):
            raise BrokenDeltaError(f"delta holds NaN or infinite values in {name}")


def describe_classes(classes: list[int] | None) -> str:
    """Class indices for a message, shortened."""
    if classes is None:
        return "all of the model"
    return ", ".join(map(str, classes[:5])) + (f", ... ({len(classes)} in all)" if len(classes) > 5 else "")


def _class_list(method: Method) -> list[int] | None:
    return None if method.classes is None else method.classes.tolist()


def _json(metadata: Mapping[str, str], what: str, unknown: Any, kind: Any) -> Any:
    """A JSON value of the metadata, checked: the file may come from anywhere."""
    if what not in metadata:
        return unknown
    try:
        value = json.loads(metadata[what])
    except (ValueError, RecursionError) as error:
        raise BrokenDeltaError(f"delta has unreadable {what}") from error
    if not isinstance(value, kind):
        raise BrokenDeltaError(f"delta has unreadable {what}")
    return value


def _shapes(method: Method) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the tensors that the method has or will have; None: any length."""
    present = {name: tuple(value.shape) for name, value in method.tensors().items()}
    return present | {f"memory.{name}": shape for name, shape in method.memory_shapes().items()}


def _fits(value: Tensor, shape: tuple[int | None, ...] | None) -> bool:
    if shape is None or len(shape) != value.dim() or not value.is_floating_point():
        return False
    return all(want in (None, length) for want, length in zip(shape, value.shape, strict=True))
