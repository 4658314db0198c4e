"""Saving and loading only what adaptation moved, with where it belongs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navia.adapt import tensorfile
from navia.adapt.method import Method
from navia.errors import NaviaError

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
    moved = {
        name: value for name, value in method.tensors().items() if name not in source or not torch.equal(value, source[name])
    }
    metadata = {
        "weights": weights,
        "model": method.vit.name,
        "method": method.name,
        "reduce": str(method.reduce),
        "steps": str(steps),
        "options": json.dumps(vars(method.options), default=str),
    }
    tensorfile.write(path, _KIND, moved, {**(notes or {}), **metadata})


def read_delta(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    return tensorfile.read(path, _KIND, BrokenDeltaError)


def check_delta(tensors: dict[str, Tensor], metadata: dict[str, Any], method: Method, weights: str) -> None:
    """Raise DeltaError unless the delta fits this model, method and reducer, and is finite."""
    for what, own in (("weights", weights), ("method", method.name), ("reduce", str(method.reduce))):
        if metadata.get(what) != own:
            shown = (metadata.get("model"), method.vit.name) if what == "weights" else (metadata.get(what), own)
            raise DeltaError(f"delta belongs to another {what}: {shown[0]}, not {shown[1]}")
    present = method.tensors()
    for name, value in tensors.items():
        known = name.startswith("memory.") if name not in present else present[name].shape == value.shape
        if not known:
            raise DeltaError(f"delta holds {name} {tuple(value.shape)}, which this adapter does not tune")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise BrokenDeltaError(f"delta holds NaN or infinite values in {name}")
