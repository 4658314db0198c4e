"""What users do without navia: timm's model as it is, and ToMe by plain operators with plain autograd.

This is the comparison for speed. The merge is written as the ToMe paper states it (arXiv 2210.09461, section 3): eager
attention that returns its keys, a bipartite matching, scatter_reduce. bfloat16 is torch.autocast, int8 torch's dynamic
quantisation.
"""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from navia.errors import SpecError
from navia.methods.features import entropy
from navia.methods.parameters import norm_parameters, private_copy
from navia.models.base import ViT
from navia.reduction import parse

if TYPE_CHECKING:
    from cases import Case


def library_forward(vit: ViT, case: "Case") -> Callable[[Tensor], object]:
    """Logits without gradient."""
    model: Any = _quantised(vit.model) if case.precision == "int8" else vit.model

    @torch.no_grad()
    def call(images: Tensor) -> object:
        with _autocast(case.precision):
            return _logits(model, images, case.reduce)

    return call


def library_step(vit: ViT, case: "Case") -> Callable[[Tensor], object]:
    """Entropy, and gradients of the norms by plain autograd."""
    if case.precision == "int8":
        raise SpecError("torch's dynamically quantised layers have no gradient")
    model: Any = private_copy(vit, norm_parameters(vit)).model

    def call(images: Tensor) -> object:
        with _autocast(case.precision):
            logits = _logits(model, images, case.reduce)
        entropy(logits.float()).mean().backward()
        model.zero_grad(set_to_none=True)
        return logits

    return call


def _autocast(precision: str) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _quantised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still what most tutorials name
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def _logits(model: Any, images: Tensor, reduce: str) -> Tensor:
    if reduce == "none":
        return model(images)
    x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    size = torch.ones(*x.shape[:2], 1)
    for block, r in zip(model.blocks, parse(reduce).tokens_per_block(len(model.blocks)), strict=True):
        attended, keys = _attention(block.attn, block.norm1(x), size)
        x = x + block.ls1(attended)
        x, size = _merge(x, size, keys, min(r, (x.shape[1] - 1) // 2))
        x = x + block.ls2(block.mlp(block.norm2(x)))
    return model.forward_head(model.norm(x))


def _attention(attention: Any, x: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Proportional attention [B, N, D], and the keys averaged over the heads [B, N, d]."""
    batch, count, dim = x.shape
    q, k, v = attention.qkv(x).reshape(batch, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1) + size.log()[:, None, None, :, 0]
    out = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, count, dim)
    return attention.proj(out), k.mean(dim=1)


def _merge(x: Tensor, size: Tensor, keys: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Size-weighted means of the r most similar pairs; even tokens (CLS first, never merged) choose among odd ones."""
    with torch.no_grad():
        metric = keys / keys.norm(dim=-1, keepdim=True)
        similarity = metric[:, ::2] @ metric[:, 1::2].transpose(1, 2)
        similarity[:, 0] = -math.inf
        best, partner = similarity.max(dim=-1)
        order = best.argsort(dim=-1, descending=True)
        merged, kept = order[:, :r, None], order[:, r:].sort(dim=1).values[..., None]
        into = partner[..., None].gather(1, merged)

    def join(values: Tensor) -> Tensor:
        even, odd = values[:, ::2], values[:, 1::2]
        width = values.shape[-1]
        stay = even.gather(1, kept.expand(-1, -1, width))
        move = even.gather(1, merged.expand(-1, -1, width))
        return torch.cat([stay, odd.scatter_reduce(1, into.expand(-1, -1, width), move, reduce="sum")], dim=1)

    total = join(size)
    return join(x * size) / total, total
