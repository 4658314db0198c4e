"""What the Tab key offers for options that take a name.

A key press must not wait for torch, so names are read from the files that bear them; a test compares them with the
registries.
"""

from collections.abc import Iterable
from pathlib import Path

import navia

_PACKAGE = Path(navia.__file__).parent


def methods(incomplete: str) -> list[str]:
    shared = {
        "augment",
        "base",
        "features",
        "losses",
        "moments",
        "parameters",
        "recent",
        "shift",
    }  # files that are no methods
    return _fitting([name for name in _stems("methods", ".py") if name not in shared], incomplete)


def reducers(incomplete: str) -> list[str]:
    """With the amount that most examples take; another number is quickly typed over."""
    return _fitting(["none", "tome:8", "evit:8", "tofu:8"], incomplete)


def presets(incomplete: str) -> list[str]:
    return _fitting([*_stems("bench/presets", ".yaml"), "presets"], incomplete)


def corruptions(incomplete: str) -> list[str]:
    from navia.data.corruptions import names

    return _fitting(names(extra=True), incomplete)


def models(incomplete: str) -> list[str]:
    return _fitting(["embedded", "timm:", "hf:", "torchvision:"], incomplete)


def streams(incomplete: str) -> list[str]:
    return _fitting(["reset", "continual", "mixed"], incomplete)


def logs(incomplete: str) -> list[str]:
    return _fitting(["tensorboard:", "wandb:", "mlflow:"], incomplete)


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _stems(folder: str, suffix: str) -> list[str]:
    found = (_PACKAGE / folder).glob(f"*{suffix}")
    return sorted(path.stem for path in found if not path.stem.startswith("_"))
