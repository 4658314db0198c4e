"""Weights from a local file into a model, or an error that names what does not fit."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from navia.errors import CheckpointError

_CLASSIFIERS = {
    "timm": ("head.weight", "head_dist.weight"),
    "hf": ("classifier.weight", "cls_classifier.weight", "distillation_classifier.weight"),
    "torchvision": ("heads.head.weight",),
}
_WRAPPERS = ("state_dict", "model", "model_state", "state_dict_ema")


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Copy the weights of a .safetensors or (weights-only) .pth file into `model`; all or nothing."""
    state = read_state_dict(path)
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    extra = [name for name in state if name not in own]
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} missing ({_first(missing)})")
    if extra:
        problems.append(f"{len(extra)} unknown to the model ({_first(extra)})")
    if shapes:
        name = shapes[0]
        sizes = f"{name}: {tuple(state[name].shape)} in the file, {tuple(own[name].shape)} in the model"
        problems.append(f"{len(shapes)} of another shape ({sizes})")
    if problems:
        raise CheckpointError(f"checkpoint {Path(path).name} does not fit: {'; '.join(problems)}")
    broken = [name for name, value in state.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if broken:
        raise CheckpointError(f"checkpoint {Path(path).name} holds NaN or infinite weights ({_first(broken)})")
    model.load_state_dict(state)


def num_classes_in(path: str | Path, library: str) -> int | None:
    """How many classes the classifier in a checkpoint has; None: it has none that goes by the library's name."""
    state = read_state_dict(path)
    found = sorted({len(state[name]) for name in _CLASSIFIERS.get(library, ()) if name in state})
    if len(found) > 1:
        several = " and ".join(map(str, found))
        raise CheckpointError(
            f"checkpoint {Path(path).name} has classifiers of {several} classes: give num_classes (--num-classes)"
        )
    return found[0] if found else None


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint file by name, out of the usual wrappers and without a data-parallel prefix."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint file {str(path)!r}")
    try:
        content = _read(path)
    except Exception as error:  # whatever a broken or hostile file makes the readers raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"cannot read checkpoint {path.name}: {reason}") from error
    for wrapper in _WRAPPERS:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"checkpoint {path.name} holds no tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    mapped = zipfile.is_zipfile(path)  # read only where it is used; files of old versions of torch are read whole
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if not isinstance(content, dict):
        raise TypeError(f"expected a dictionary of tensors, found {type(content).__name__}")
    return content


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
