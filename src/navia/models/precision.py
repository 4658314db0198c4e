"""Frozen linear layers in bfloat16, float16 or int8, and the copy of a model that computes with them.

Adaptation tunes norms and small vectors; the large matrices never change. They are converted and packed once, and their
backward pass is one more product, dx = dy W, with nothing stored from the forward.

int8: y = s_x (q_x Q^T) s_w + b with q_x = round(x / s_x), one scale s_x for each token and one s_w for each output channel.
"""

import copy
import functools
import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from navia.errors import ModelError, SpecError

if TYPE_CHECKING:
    from navia.models.base import ViT

log = logging.getLogger("navia.models")

PRECISIONS = ("float32", "bfloat16", "float16", "int8")

_LEVELS = 126  # largest |q_x|; 127 could become 128, and so -128, by the rounding of x / s_x in bfloat16
_SMALLEST = 1e-20  # a token of zeros must not divide by zero
_HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in each of eight bytes
INT8_GRADIENT_WIDTH = 384  # from this width on, the int8 product of the gradient is faster than the bfloat16 one


def check_precision(name: str) -> str:
    """`name` if it is a precision; SpecError otherwise."""
    if name not in PRECISIONS:
        raise SpecError(f"no precision {name!r}; there is {', '.join(PRECISIONS)}")
    return name


def compute_dtype(precision: str) -> torch.dtype | None:
    """Type that linear layers and attention return; None: that of the weights."""
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.bfloat16}.get(precision)


class FrozenLinear(nn.Module):
    """A linear layer with fixed weights in half precision, for inputs of any floating type.

    Args:
        weight: The weights [N, K] in their own precision.
        bias: The bias [N], if there is one.
        dtype: bfloat16 or float16.

    Shape:
        [..., in_features] -> [..., out_features] in `dtype`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = dtype
        self.bias = None if bias is None else bias.detach().to(dtype)
        self._pack(weight.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenLinear":
        return self  # it never changes

    def forward(self, x: Tensor) -> Tensor:
        rows = self.prepare(x.reshape(-1, self.in_features))
        with_grad = torch.is_grad_enabled() and rows.requires_grad
        y = _FrozenProduct.apply(rows, self) if with_grad else self.product(rows)
        return y.view(*x.shape[:-1], self.out_features)

    def _pack(self, weight: Tensor) -> None:
        self.weight: Any = PackedHalf(weight.to(self.dtype))
        self.transposed: Any = PackedHalf(weight.t().to(self.dtype))

    def prepare(self, x: Tensor) -> Tensor:
        """x in a type that `product` takes."""
        return x.to(self.dtype)

    def product(self, x: Tensor) -> Tensor:
        """x W^T + b for x [M, K] -> [M, N]."""
        return self.weight.product(x, self.bias)

    def gradient(self, grad: Tensor) -> Tensor:
        """dx = dy W for dy [M, N] -> [M, K]."""
        return self.transposed.product(grad, None)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}"


class Int8Linear(FrozenLinear):
    """A linear layer with fixed int8 weights; inputs are rounded to int8 token by token.

    The gradient is rounded in the same way in wide layers; in narrow ones bfloat16 is as fast and more exact.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias, torch.bfloat16)

    def prepare(self, x: Tensor) -> Tensor:
        return x if x.dtype in (torch.float32, torch.bfloat16) else x.to(self.dtype)

    def _pack(self, weight: Tensor) -> None:
        self.weight: Any = PackedInt8.round(weight)
        wide = min(weight.shape) >= INT8_GRADIENT_WIDTH
        self.transposed: Any = PackedInt8.round(weight.t()) if wide else PackedHalf(weight.t().to(self.dtype))


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return linear.product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.gradient(grads[0].to(ctx.linear.dtype)), None


class PackedHalf:
    """A matrix [N, K] in half precision, in oneDNN's own layout where it has one: plain ones are laid out at every call."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _has_bfloat16()
        weight = weight.contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.packed else weight

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedHalf, (self.weight.to_dense() if self.packed else self.weight,)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, bias, "none", [], "")
        return F.linear(x, self.weight, bias)


class PackedInt8:
    """A matrix [N, K] in int8 with a scale for each row."""

    def __init__(self, rounded: Tensor, scale: Tensor) -> None:
        self.scale = scale
        self.zeros = torch.zeros(len(rounded), dtype=torch.int32, device=rounded.device)
        self.packed = _has_vnni()
        self.weight = torch.ops.onednn.qlinear_prepack(rounded.contiguous(), None) if self.packed else rounded

    @classmethod
    def round(cls, weight: Tensor) -> "PackedInt8":
        scale = weight.float().abs().amax(dim=1).clamp(min=1e-30) / 127
        return cls((weight / scale[:, None]).round().to(torch.int8), scale)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedInt8, (self.weight.to_dense().t() if self.packed else self.weight, self.scale)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rounded, scale = round_tokens(x)
        y = self.rounded_product(rounded, torch.bfloat16)
        return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale)

    def rounded_product(self, rounded: Tensor, dtype: torch.dtype) -> Tensor:
        """(q_x - 128) Q^T s_w for q_x [M, K] (uint8) -> [M, N] in `dtype`."""
        if self.packed:
            return torch.ops.onednn.qlinear_pointwise(
                rounded, 1.0, 128, self.weight, self.scale, self.zeros, None, 1.0, 0, dtype, "none", [], ""
            )
        return (F.linear(rounded.float() - 128, self.weight.float()) * self.scale).to(dtype)  # the same whole numbers


def round_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row of x [M, K] (bfloat16 or float32) to whole numbers q with x = scale * (q - 128).

    Returns:
        q [M, K] (uint8: oneDNN's fast products take no int8 here), scale [M, 1] (bfloat16).
    """
    if x.dtype == torch.bfloat16:  # |x| compares like its bits, which takes a quarter of the time
        largest = (x.view(torch.int16) & 0x7FFF).amax(dim=1, keepdim=True).view(torch.bfloat16)
    else:
        largest = x.abs().amax(dim=1, keepdim=True)
    scale = (largest.clamp_(min=_SMALLEST) / _LEVELS).bfloat16()
    q = (x / scale.to(x.dtype)).round_().to(torch.int8)
    words = q.view(torch.int64) if q.shape[1] % 8 == 0 else q  # q + 128 flips the highest bit of each byte
    words.bitwise_xor_(_HIGH_BITS if words.dtype == torch.int64 else -128)
    return q.view(torch.uint8), scale


@functools.cache  # once per process
def _tell_of_missing_instructions(precision: str, device: torch.device) -> None:
    if device.type == "cpu" and precision == "int8" and not _has_vnni():
        log.warning("this processor has no VNNI instructions: int8 is computed in float32, which is slow")
    if device.type == "cpu" and precision == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
        log.warning("this processor has no bfloat16 instructions: float32 is probably faster")


@functools.cache
def _has_vnni() -> bool:
    """Whether products of uint8 and int8 are exact: without these instructions pairs of them are summed in 16 bits."""
    return bool(torch.cpu._is_vnni_supported())


@functools.cache
def _has_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# ---- the copy of a model that computes with them

_converted = (
    WeakTensorKeyDictionary()
)  # weight -> {(precision, version of the weight): layer}; shared by all copies of a model


def freeze_linears(copied: "ViT", source: "ViT", tuned: Collection[str] = ()) -> None:
    """Replace the linear layers in the blocks of `copied`, a copy of `source`, by ones in its precision.

    Where that cannot be (a method tunes the layers, or hooks and compilers must see them), half precision works by autocast
    with the layers as they are, and int8 is refused.
    """
    if copied.precision == "float32" or copied.frozen:
        return
    reason = _why_not(copied, source, tuned)
    copied.frozen = reason is None
    if reason is None:
        _tell_of_missing_instructions(copied.precision, source.device)
        for name, _ in list(_linears(source)):
            _replace(copied, source, name)
    elif copied.precision == "int8":
        raise ModelError(f"int8 is not possible for {source.name}: {reason}; use bfloat16 or float32")


def inference_copy(vit: "ViT") -> "ViT":
    """A copy with frozen linear layers that shares all other weights, for calls without gradient."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*vit.parameters(), *vit.buffers())}
    copied = copy.deepcopy(vit, shared)
    freeze_linears(copied, vit)
    return copied


def _why_not(copied: "ViT", source: "ViT", tuned: Collection[str]) -> str | None:
    if copied.precision == "int8" and source.device.type != "cpu":
        return f"it is for CPUs, and the model is on {source.device}"
    if source.dtype in (torch.bfloat16, torch.float16):
        return "its weights are in half precision already"
    if copied.compile_backend is not None or torch.compiler.is_compiling():
        return "it does not work with torch.compile"
    for name, module in _linears(source):
        if type(module).forward is not nn.Linear.forward and not isinstance(module, nn.MultiheadAttention):
            return f"{name} is a {type(module).__name__} with a forward of its own"
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"{name} has hooks"
        if any(f"{name}.{part}" in tuned for part in ("weight", "in_proj_weight")):
            return f"the method tunes {name}"
    return None


def _linears(vit: "ViT") -> Iterator[tuple[str, nn.Module]]:
    """Linear layers in the blocks, by their names in `vit.model`. nn.MultiheadAttention keeps the weights of one itself."""
    inside = {id(part) for layer in range(vit.depth) for module in vit.block_modules(layer) for part in module.modules()}
    for name, module in vit.model.named_modules():
        if id(module) in inside and isinstance(module, nn.Linear | nn.MultiheadAttention):
            yield name, module


def _replace(copied: "ViT", source: "ViT", name: str) -> None:
    """Put a frozen layer in the place of the copy's layer `name`; of an nn.MultiheadAttention, as its `in_proj`."""
    module = source.model.get_submodule(name)
    if isinstance(module, nn.MultiheadAttention):
        attention: Any = copied.model.get_submodule(name)
        attention.in_proj = _convert(module.in_proj_weight, module.in_proj_bias, copied.precision)
        attention.in_proj_weight = attention.in_proj_bias = None
    else:
        assert isinstance(module, nn.Linear)
        copied.model.set_submodule(name, _convert(module.weight, module.bias, copied.precision))


def _convert(weight: Tensor, bias: Tensor | None, precision: str) -> FrozenLinear:
    """The layer in `precision`, converted once for all copies of a model as long as the weights do not change."""
    key = (precision, None if weight.is_inference() else weight._version)
    known = _converted.get(weight)
    if known is None or key not in known:
        dtype = compute_dtype(precision)
        assert dtype is not None
        layer = Int8Linear(weight, bias) if precision == "int8" else FrozenLinear(weight, bias, dtype)
        known = _converted[weight] = {key: layer}
    return known[key]
