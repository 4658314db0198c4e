"""navia: efficient test-time adaptation of Vision Transformers.

Names are imported when they are first used, so that `import navia` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from navia.vit import torchvision_ops

__version__ = "0.1.0"

torchvision_ops.install()  # so that `import timm` works afterwards, also beside a torchvision whose operators do not load

if TYPE_CHECKING:
    from navia.adapt.adapter import Adapter as Adapter
    from navia.adapt.adapter import adapt as adapt
    from navia.adapt.choose import choose as choose
    from navia.adapt.guard import GuardOptions as GuardOptions
    from navia.adapt.statistics import SourceStatistics as SourceStatistics
    from navia.callbacks import Callback as Callback
    from navia.errors import NaviaError as NaviaError
    from navia.huggingface import pipeline as pipeline
    from navia.images.preprocessing import Preprocessing as Preprocessing
    from navia.measure.cost import cost as cost
    from navia.reduce import EViT as EViT
    from navia.reduce import NoReduction as NoReduction
    from navia.reduce import ToFu as ToFu
    from navia.reduce import ToMe as ToMe
    from navia.serve.client import Client as Client
    from navia.vit.load import load as load
    from navia.vit.vit import ViT as ViT

_HOMES = {
    "Adapter": "navia.adapt.adapter",
    "adapt": "navia.adapt.adapter",
    "choose": "navia.adapt.choose",
    "GuardOptions": "navia.adapt.guard",
    "SourceStatistics": "navia.adapt.statistics",
    "Callback": "navia.callbacks",
    "NaviaError": "navia.errors",
    "pipeline": "navia.huggingface",
    "Preprocessing": "navia.images.preprocessing",
    "cost": "navia.measure.cost",
    "EViT": "navia.reduce",
    "NoReduction": "navia.reduce",
    "ToFu": "navia.reduce",
    "ToMe": "navia.reduce",
    "Client": "navia.serve.client",
    "load": "navia.vit.load",
    "ViT": "navia.vit.vit",
}

__all__ = ["__version__", "methods", "reducers", *_HOMES]


def methods() -> list[str]:
    """Names of the adaptation methods."""
    from navia.adapt.method import METHODS

    return METHODS.names()


def reducers() -> list[str]:
    """Names of the token reducers."""
    from navia.reduce import REDUCERS

    return REDUCERS.names()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'navia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
