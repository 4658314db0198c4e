"""`navia.load`: a name, a checkpoint or a module -> a ViT."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from navia.data.preprocessing import Preprocessing
from navia.errors import ModelError
from navia.models.base import ViT
from navia.models.checkpoint import load_checkpoint, num_classes_in
from navia.models.labels import pretrained_labels, read_labels
from navia.models.precision import check_precision

SUPPORTED = (
    "timm VisionTransformer with a [CLS] token (plain, DeiT, distilled DeiT, DeiT-III, CLIP towers, DINOv2 with or without"
    " registers), transformers ViT / DeiT / DINOv2 / DINOv2-with-registers ForImageClassification, torchvision vit_*"
)

# Why well-known relatives are refused; anything else is refused as "not one of the supported classes".
_REASONS = {
    "Eva": "rotary or relative position embeddings in its own attention",
    "DINOv3ViT": "rotary position embeddings",
    "Beit": "relative position biases in its attention",
    "Data2VecVision": "relative position biases in its attention",
    "RelPos": "relative position biases in its attention",
    "Swin": "windowed attention without a [CLS] token",
    "Siglip": "no [CLS] token",
    "ResNet": "a convolutional network, without tokens",
    "ConvNe": "a convolutional network, without tokens",
    "EfficientNet": "a convolutional network, without tokens",
    "Dinov2Model": "no classifier; use Dinov2ForImageClassification",
    "ViTModel": "no classifier; use ViTForImageClassification",
    "CLIP": "no classifier; wrap the visual tower in timm's vit_*_clip_* with num_classes",
}


_INNER = {  # wrapper class -> attribute of the wrapped module, which has the same weights
    "torch.DataParallel": "module",
    "torch.DistributedDataParallel": "module",
    "torch.OptimizedModule": "_orig_mod",  # torch.compile
}


def load(
    model: str | nn.Module,
    *,
    checkpoint: str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    pretrained: bool = True,
    grad_checkpointing: bool | None = None,
    precision: str | None = None,
    labels: str | Path | Sequence[str] | None = None,
    **options: Any,
) -> ViT:
    """Load a ViT for token reduction and adaptation.

    A ViT or module that is given is not changed, except that a module is put into evaluation mode. With `checkpoint` the
    weights go into a copy of it; with the other arguments a given ViT gets a second view that shares its weights.

    Args:
        model: "timm:NAME", "hf:ORG/NAME" or "hf:FOLDER", "torchvision:NAME", "embedded" (a small ViT that comes with
            navia), or a module of these libraries.
        checkpoint: Local .safetensors or .pth file with the weights; nothing is downloaded then. The number of classes is
            read from it unless num_classes is given.
        preprocessing: Replaces the preprocessing that comes with the model.
        pretrained: False leaves the weights random (for costs and tests).
        grad_checkpointing: Less memory for gradients, more time. None keeps what a given ViT has; otherwise off.
        precision: What the blocks compute in: "float32", "bfloat16", "int8" (CPU) or "float16" (GPU). Tuned parameters,
            statistics and losses are float32 in any case. None keeps what a given ViT has.
        labels: Names of the classes: "imagenet", a file with one name per line, or a list. By default they are known for
            weights that a library publishes and for transformers models whose configuration has them.
        **options: Passed to the library's constructor (num_classes, img_size, ...).

    Returns:
        The ViT, in evaluation mode. `vit.preprocessing` says how images become its inputs.

    Raises:
        ModelError: The model is unknown or not supported; the message says why.
        CheckpointError: The weights do not fit.

    Example:
        >>> navia.load("timm:deit_tiny_patch16_224", pretrained=False).num_classes
        1000
    """
    if isinstance(model, nn.Module):
        if options:
            raise ModelError(f"options {', '.join(options)} are for models that are loaded by name, not for a module")
        model = unwrap_module(model)
        module, given, name = copy.deepcopy(model) if checkpoint is not None else model, preprocessing, None
    else:
        if checkpoint is not None and not {"num_classes", "num_labels"} & options.keys():
            found = num_classes_in(checkpoint, model.partition(":")[0])
            options |= {} if found is None else {"num_classes": found}
        module, given = _create(model, pretrained and checkpoint is None, preprocessing, options)
        name = model
    if checkpoint is not None:
        load_checkpoint(module.model if isinstance(module, ViT) else module, checkpoint)
    vit = wrap(module, given, name)
    if not isinstance(model, ViT):
        vit.eval()
    elif vit is model:
        if grad_checkpointing is None and precision is None and labels is None:
            return vit
        vit = vit.view()
    if grad_checkpointing is not None:
        vit.grad_checkpointing = grad_checkpointing
    if precision is not None:
        vit.precision = check_precision(precision)
    if labels is not None:
        vit.labels = read_labels(vit, labels)
    elif checkpoint is not None:
        vit.labels = None
    elif name is not None and pretrained:
        vit.labels = pretrained_labels(vit)
    return vit


def wrap(model: nn.Module, preprocessing: Preprocessing | None = None, name: str | None = None) -> ViT:
    """The ViT view of a module, by the library that its class comes from."""
    if isinstance(model, ViT):
        if preprocessing is None:
            return model
        view = model.view()
        view.preprocessing = preprocessing
        return view
    libraries = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    try:
        if "timm" in libraries:
            from navia.models.timm import TimmViT

            return TimmViT(model, preprocessing, name)
        if "transformers" in libraries:
            from navia.models import transformers

            return transformers.wrap(model, preprocessing, name)
        if "torchvision" in libraries:
            from navia.models.torchvision import TorchvisionViT

            return TorchvisionViT(model, preprocessing, name)
    except ModelError as error:
        raise _refusal(model, str(error)) from error
    raise _refusal(model, "it is not one of the supported classes")


def _refusal(model: nn.Module, why: str) -> ModelError:
    kind = type(model)
    known = next((reason for part, reason in _REASONS.items() if part in kind.__name__), None)
    reason = f"{why}: {known}" if known else why
    return ModelError(f"{kind.__module__}.{kind.__name__} is not supported: {reason}. Supported: {SUPPORTED}")


def _create(
    name: str, pretrained: bool, preprocessing: Preprocessing | None, options: dict[str, Any]
) -> tuple[nn.Module, Preprocessing | None]:
    """The model of a name, and `preprocessing` or what comes with the name."""
    source, _, rest = name.partition(":")
    if name == "embedded":
        from navia.models import timm

        embedded, pixels = timm.create_embedded(pretrained, **options)
        return embedded, preprocessing or pixels
    if source == "timm" and rest:
        from navia.models import timm

        return timm.create(rest, pretrained, **options), preprocessing
    if source == "hf" and rest:
        from navia.models import transformers

        if "num_classes" in options:  # as the other libraries call it
            options["num_labels"] = options.pop("num_classes")
        model = transformers.create(rest, pretrained, **options)
        return model, preprocessing or transformers.processing(rest)
    if source == "torchvision" and rest:
        from navia.models import torchvision

        model, own = torchvision.create(rest, pretrained, **options)
        return model, preprocessing or own
    raise ModelError(f"unknown model {name!r}; write timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded")


def unwrap_module(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers, with the same weights.

    A `PeftModel` is copied and its adapters are merged into the copy, so that the given model does not change.

    Args:
        model: A module, wrapped or not. Wrappers may be nested.

    Raises:
        ModelError: The weights are sharded (FSDP), or PEFT layers cannot be merged.

    Example:
        >>> unwrap_module(torch.nn.DataParallel(model)) is model
        True
    """
    while True:  # classes by name: importing torch._dynamo or peft only for the check would take seconds
        names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(model).__mro__}
        attribute = next((_INNER[name] for name in names if name in _INNER), None)
        if attribute is not None:
            model = getattr(model, attribute)
        elif "peft.PeftModel" in names:
            model = _merge_peft(model)
        elif "torch.FullyShardedDataParallel" in names:
            raise ModelError(
                "FullyShardedDataParallel holds a part of the weights only: gather them with "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict, and load them into the plain model"
            )
        else:
            break
    if any(type(module).__module__.startswith("peft.") for module in model.modules()):
        raise ModelError(
            f"{type(model).__name__} has layers of PEFT that are not merged: give the PeftModel that made them, or the "
            "result of its merge_and_unload()"
        )
    return model


def _merge_peft(model: nn.Module) -> nn.Module:
    try:
        merged: nn.Module = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    except Exception as error:  # prompt tuning and some adapters cannot be merged
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"cannot merge {type(model).__name__} (model.merge_and_unload()): {reason}") from error
    return merged
