"""What a model's classes are called. Names are used only where somebody says them; a class is a number otherwise.

Known are names given to `navia.load(labels=...)`, ImageNet's for weights that timm or torchvision publish, those in the
configuration of a transformers model, and the sample's. A local checkpoint or a module with 1,000 classes may be anything.
"""

from collections.abc import Sequence
from pathlib import Path

from navia.data import imagenet, sample
from navia.errors import InputError
from navia.models.base import ViT


def class_names(vit: ViT) -> tuple[str, ...] | None:
    """Names in class order; None: unknown."""
    if vit.labels is not None and len(vit.labels) == vit.num_classes:
        return vit.labels
    own = getattr(getattr(vit.model, "config", None), "id2label", None)
    if own and len(own) == vit.num_classes and not all(str(name).startswith("LABEL_") for name in own.values()):
        return tuple(str(own[i]) for i in sorted(own))
    return sample.CLASSES if vit.name == "embedded" else None


def read_labels(vit: ViT, labels: str | Path | Sequence[str]) -> tuple[str, ...]:
    """The names that a user gave: "imagenet", a file with one name per line, or a list; one for each class."""
    if isinstance(labels, str | Path):
        names = imagenet.names() if str(labels) == "imagenet" else _lines(Path(labels))
    else:
        names = tuple(str(name) for name in labels)
    if len(names) != vit.num_classes:
        raise InputError(f"{len(names)} names for a model of {vit.num_classes} classes")
    return names


def pretrained_labels(vit: ViT) -> tuple[str, ...] | None:
    """Names for the weights that a library publishes for `vit`."""
    cfg = getattr(vit.model, "pretrained_cfg", None) or {}
    published = 1000 if vit.library == "torchvision" else cfg.get("num_classes")
    return imagenet.names() if vit.num_classes == published == 1000 else None


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise InputError(
            f"labels are 'imagenet', a list of names or a file with one name per line, not {str(path)!r} ({error})"
        ) from error
