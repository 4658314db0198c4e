"""Lets `import torchvision` (and with it timm) succeed where its compiled operators do not load.

A CPU build of torch beside a torchvision built for CUDA leaves `torchvision::nms` and `torchvision::qnms` unregistered,
and torchvision then fails at import while it attaches shape rules to them. No ViT needs these operators: declaring their
schemas is enough. Where torchvision works, nothing is declared.
"""

import torch

_SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}
_declared: list[torch.library.Library] = []  # declarations live as long as the library object


def ensure_torchvision_imports() -> bool:
    """Import torchvision, declaring missing operators first if need be. True if something had to be declared."""
    try:
        import torchvision
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        _declare_missing()
        import torchvision  # noqa: F401
    return bool(_declared)


def _declare_missing() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)
    _declared.append(library)
