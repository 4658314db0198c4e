"""Lets `import torchvision` (and with it timm) succeed where its compiled_forward operators do not load.

A CPU build of torch beside a torchvision built for CUDA leaves `torchvision::nms` and `torchvision::qnms` unregistered,
and torchvision then fails at import while it attaches shape rules to them. No ViT needs these operators: declaring their
schemas is enough. Where torchvision works, nothing is declared.

`import navia` adds a finder to `sys.meta_path`. It imports nothing by itself and acts only when torchvision is
imported.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FAILING = "torchvision._meta_registrations"  # imported by torchvision after it has tried to load its operators
_SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}
_declared: list[Any] = []  # declarations live as long as the library object


class _Finder:
    """Finds no module itself; declares missing operators just before torchvision asks for them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _FAILING:
            _declare_missing()
        return None


def install() -> None:
    """Add the finder, unless it is there or torchvision has been imported without it."""
    if "torchvision" not in sys.modules and _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _declare_missing() -> None:
    import torch

    missing = [schema for name, schema in _SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in missing:
            library.define(schema)
        _declared.append(library)
