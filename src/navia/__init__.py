"""navia: efficient test-time adaptation of Vision Transformers.

Names are imported when they are first used, so that `import navia` stays quick.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from navia.models import torchvision_ops

__version__ = "0.1.0"

torchvision_ops.install()  # so that `import timm` works afterwards, also beside a torchvision whose operators do not load

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter as Adapter
    from navia.adaptation.adapter import adapt as adapt
    from navia.adaptation.callbacks import Callback as Callback
    from navia.adaptation.guard import GuardOptions as GuardOptions
    from navia.adaptation.selection import choose as choose
    from navia.adaptation.statistics import SourceStatistics as SourceStatistics
    from navia.data.preprocessing import Preprocessing as Preprocessing
    from navia.errors import NaviaError as NaviaError
    from navia.evaluation.cost import cost as cost
    from navia.evaluation.evaluate import evaluate as evaluate
    from navia.integrations.huggingface import pipeline as pipeline
    from navia.models.base import ViT as ViT
    from navia.models.load import load as load
    from navia.reduction import EViT as EViT
    from navia.reduction import NoReduction as NoReduction
    from navia.reduction import ToFu as ToFu
    from navia.reduction import ToMe as ToMe
    from navia.serve.client import Client as Client

_HOMES = {
    "Adapter": "navia.adaptation.adapter",
    "adapt": "navia.adaptation.adapter",
    "choose": "navia.adaptation.selection",
    "GuardOptions": "navia.adaptation.guard",
    "SourceStatistics": "navia.adaptation.statistics",
    "Callback": "navia.adaptation.callbacks",
    "NaviaError": "navia.errors",
    "pipeline": "navia.integrations.huggingface",
    "Preprocessing": "navia.data.preprocessing",
    "cost": "navia.evaluation.cost",
    "evaluate": "navia.evaluation.evaluate",
    "EViT": "navia.reduction",
    "NoReduction": "navia.reduction",
    "ToFu": "navia.reduction",
    "ToMe": "navia.reduction",
    "Client": "navia.serve.client",
    "load": "navia.models.load",
    "ViT": "navia.models.base",
}

__all__ = ["__version__", "list_methods", "list_reducers", *_HOMES]


def list_methods() -> list[str]:
    """Names of the adaptation methods.

    Example:
        >>> "navia" in navia.list_methods()
        True
    """
    from navia.methods.base import METHODS

    return METHODS.names()


def list_reducers() -> list[str]:
    """Names of the token reducers.

    Example:
        >>> navia.list_reducers()
        ['evit', 'none', 'tofu', 'tome']
    """
    from navia.reduction import REDUCERS

    return REDUCERS.names()


def reducers() -> list[str]:
    """Deprecated: use `list_reducers`."""
    warnings.warn("navia.reducers() is now navia.list_reducers()", DeprecationWarning, stacklevel=2)
    return list_reducers()


def __getattr__(name: str) -> Any:
    if name == "methods":  # a folder, which may be called for one more release: see navia/methods/__init__.py
        return importlib.import_module("navia.methods")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'navia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
