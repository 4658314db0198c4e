"""What an adapter answers right now, as a plain module of tensors: images -> logits, and nothing that moves any more."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from navia.adaptation.adapter import Adapter
from navia.errors import NaviaError
from navia.methods.base import Method
from navia.methods.features import ActivationShift
from navia.methods.parameters import is_half, private_copy
from navia.models.base import ViT
from navia.models.forward import TokenEdits, forward
from navia.reduction import Reducer


class ExportError(NaviaError):
    """Something that cannot be exported, or an exported file that does not answer as the adapter does."""


class Frozen(nn.Module):
    """The one forward with the method's additions and the class mask as buffers, on the CPU."""

    cls_shift: Tensor | None
    prompts: Tensor | None
    head_shift: Tensor | None
    classes: Tensor | None

    def __init__(self, vit: ViT, reduce: Reducer, touch: TokenEdits, classes: Tensor | None) -> None:
        super().__init__()
        self.vit = private_copy(vit, [])
        self.reduce = reduce
        self.bias_position = touch.bias_position
        self.biased = tuple(sorted(touch.cls_bias))
        self._keep("cls_shift", touch.cls_shift)
        self._keep("prompts", touch.prompts)
        self._keep("head_shift", touch.head_shift)
        self._keep("classes", classes)
        for layer in self.biased:
            self._keep(f"cls_bias_{layer}", touch.cls_bias[layer])
        self.cpu().eval()

    @property
    def cls_bias(self) -> Mapping[int, Tensor]:
        return {layer: cast(Tensor, getattr(self, f"cls_bias_{layer}")) for layer in self.biased}

    @property
    def touch(self) -> TokenEdits:
        return TokenEdits(self.cls_shift, self.cls_bias, self.bias_position, self.prompts, self.head_shift)

    def forward(self, images: Tensor) -> Tensor:
        return forward(self.vit, images, self.reduce, edits=self.touch, classes=self.classes).logits

    def _keep(self, name: str, value: Tensor | None) -> None:
        if value is None:
            setattr(self, name, None)  # no buffer: torch.export miscounts those that are None
        else:
            self.register_buffer(name, value.detach().clone())

    @torch.no_grad()
    def groups(self, images: Tensor) -> Tensor:
        """For every token that enters [B, N] the first one that it ended up together with (merged or dropped)."""
        sources = forward(self.vit, images, self.reduce, edits=self.touch, trace=True).tokens.sources
        assert sources is not None
        return (sources.unsqueeze(2) == sources.unsqueeze(1)).int().argmax(dim=2)


def freeze(adapter: Adapter) -> Frozen:
    """The function that `adapter.predict` is in the present state, or an ExportError that says why there is none."""
    method = adapter.method
    if not method.per_image:
        raise ExportError(
            f"method {method.name!r} corrects the answers of a batch by one another, and so is no function of a picture: "
            "export method 'none' and correct what it answers"
        )
    if is_half(method.vit):
        kind = str(method.vit.dtype).removeprefix("torch.")
        raise ExportError(f"the model's weights are {kind}: only models in float32 are exported; adapt the model in float32")
    touch = method.token_edits()
    shift = _head_shift(method)
    return Frozen(
        method.prediction_vit, method.reduce, touch if shift is None else replace(touch, head_shift=shift), method.classes
    )


def _head_shift(method: Method) -> Tensor | None:
    """The activation shift of the methods that have the option; None while it is off or has seen nothing."""
    if not getattr(method.options, "shift", False) or method.source is None:
        return None
    return ActivationShift(method.source, method.memory).vector()
