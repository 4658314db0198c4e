"""The one forward: embed -> (attention, reduction, CLS bias, MLP) x L -> norm -> head.

Every method and every reducer runs through `forward`. What a method injects goes in as `TokenEdits`; what it wants to see
comes back in `ForwardOutput`. Nothing is stored on modules.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from navia.errors import InputError, SpecError
from navia.models.base import ViT
from navia.models.ops import add_to_cls, add_to_cls_, attention, cls_attention, mean_keys, read_cls
from navia.models.precision import compute_dtype, inference_copy
from navia.reduction import AttentionInfo, NoReduction, Reducer, Tokens


@dataclass(frozen=True)
class TokenEdits:
    """What a method adds to the tokens during the forward.

    Attributes:
        cls_shift: Added to the CLS embedding [D] (NAVIA's delta; tuning the embedding itself is the same).
        cls_bias: Added to the CLS token of a block, {layer: [D]} (NAVIA's delta_l).
        bias_position: Where `cls_bias` is added: `post_merge` (after the merge, before the MLP) or `block_input`.
        prompts: Extra tokens after the model's own prefix, without position [P, D]. They are never merged.
        head_shift: Added to the CLS feature that the classifier reads [D] (FOA's activation shift).

    Example:
        >>> from navia.models.forward import TokenEdits, forward
        >>> vit, images = navia.load("embedded"), torch.zeros(2, 1, 28, 28)
        >>> zero = TokenEdits(cls_shift=torch.zeros(vit.embed_dim))
        >>> torch.equal(forward(vit, images, edits=zero).logits, forward(vit, images).logits)
        True
    """

    cls_shift: Tensor | None = None
    cls_bias: Mapping[int, Tensor] = field(default_factory=dict)
    bias_position: Literal["post_merge", "block_input"] = "post_merge"
    prompts: Tensor | None = None
    head_shift: Tensor | None = None


@dataclass(frozen=True)
class ForwardOutput:
    """Result of a forward; what was not requested is None.

    Attributes:
        logits: Logits [B, classes].
        pooled: What the classifier reads, before `head_shift`, CLS first [B, K, D].
        tokens: Tokens after the last block; only the rows that the classifier reads, unless all were requested.
        counts: Number of tokens before each block, and after the last.
        features: CLS token after each block, through the norm that reads it next: norm1 of the next block, the final norm
            after the last [B, L, D].
        keys: Keys of each block averaged over the heads, a list of [B, N_l, d].
        attention: CLS attention of each block averaged over the heads, a list of [B, N_l].
        patch_variance: Variance of each image's embedded patches over the patches, before the first block [B, D].

    Example:
        >>> from navia.models.forward import forward
        >>> output = forward(navia.load("embedded"), torch.zeros(2, 1, 28, 28), features=True)
        >>> output.logits.shape, output.features.shape
        (torch.Size([2, 10]), torch.Size([2, 12, 64]))
    """

    logits: Tensor
    pooled: Tensor
    tokens: Tokens
    counts: tuple[int, ...]
    features: Tensor | None = None
    keys: list[Tensor] | None = None
    attention: list[Tensor] | None = None
    patch_variance: Tensor | None = None


@dataclass(frozen=True)
class _Capture:
    """What every block records and may skip.

    rows: rows of the last block that are read afterwards; None: all. in_place: sums may overwrite the outputs of modules.
    hooked: hooks may keep gradients, which must then not be changed in place.
    """

    features: bool
    keys: bool
    attention: bool
    rows: int | None
    in_place: bool
    hooked: bool
    on_block: Callable[[], None] | None


class _BlockOutput(NamedTuple):
    """num_tokens: tokens that leave the block, computed or not."""

    tokens: Tokens
    num_tokens: int
    cls_row: Tensor | None
    info: AttentionInfo


def forward(
    vit: ViT,
    images: Tensor,
    reduce: Reducer | None = None,
    *,
    edits: TokenEdits | None = None,
    classes: Tensor | None = None,
    features: bool = False,
    keys: bool = False,
    attention: bool = False,
    patch_variance: bool = False,
    trace: bool = False,
    on_block: Callable[[], None] | None = None,
) -> ForwardOutput:
    """Run the model on a batch that has been checked (`ViT.check_images`, `ViT.class_indices`).

    Args:
        vit: The model.
        images: Normalised images [B, C, H, W].
        reduce: Token reducer; None for no reduction.
        edits: What a method adds to the tokens.
        classes: Columns of the logits to return [K]; None for all.
        features: Return the CLS features of all layers.
        keys: Return the keys of all blocks.
        attention: Return the CLS attention of all blocks.
        patch_variance: Return the variance of each image's embedded patches.
        trace: Follow which token every patch is merged into (`output.tokens.sources`).
        on_block: Called twice in every block, and again when the gradient passes it: long work can pause there.

    Returns:
        Logits and what was requested.

    Example:
        >>> from navia.models.forward import forward
        >>> output = forward(navia.load("embedded"), torch.zeros(2, 1, 28, 28), navia.ToMe(8))
        >>> output.counts[:3]
        (197, 189, 181)
    """
    reduce = reduce or NoReduction()
    edits = edits or TokenEdits()
    _check_edits(vit, edits)
    reduce.check(vit.depth)
    if vit.frozen is None and vit.precision != "float32" and (vit.precision == "int8" or not torch.is_grad_enabled()):
        vit = inference_copy(vit)
    with _autocast(vit):
        embedded = _embed(vit, images)
        variance = _patch_variance(vit, embedded) if patch_variance else None
        tokens = _edit(vit, embedded, edits)
        if trace:
            tokens = tokens.with_sources()
        hooked = _has_hooks(vit)
        keep_grads = hooked or (_has_any_global_hook() and not torch.compiler.is_compiling())
        all_rows = trace or keys or attention or hooked or vit.whole_last_block or reduce.modifies_all_tokens
        in_place = not (keep_grads or torch.is_grad_enabled() or torch.compiler.is_compiling())
        rows = None if all_rows else vit.num_pooled_tokens
        capture = _Capture(features, keys, attention, rows, in_place, keep_grads, on_block)
        counts, cls_rows, infos = [tokens.length], [], []
        for layer, r in enumerate(reduce.tokens_per_block(vit.depth)):
            if vit.grad_checkpointing and torch.is_grad_enabled():
                block = checkpoint(_block, vit, reduce, edits, capture, layer, r, tokens, use_reentrant=False)
            else:
                block = _block(vit, reduce, edits, capture, layer, r, tokens)
            tokens = block.tokens
            counts.append(block.num_tokens)
            cls_rows.append(block.cls_row)
            if keys or attention:
                infos.append(block.info)
        pooled = vit.pool(tokens._replace(values=tokens.values.float()) if vit.frozen else tokens)
        logits = head(vit, pooled, edits.head_shift, classes)

    stacked = torch.stack([*cls_rows[1:], pooled[:, 0]], dim=1) if features else None
    return ForwardOutput(
        logits=logits,
        pooled=pooled,
        tokens=tokens,
        counts=tuple(counts),
        features=stacked if stacked is None or vit.precision == "float32" else stacked.float(),
        keys=[info.keys for info in infos] if keys else None,
        attention=[info.cls_attention for info in infos] if attention else None,
        patch_variance=variance,
    )


@functools.cache
def compiled_forward(backend: str) -> Callable[..., ForwardOutput]:
    """`forward` through torch.compile."""
    return torch.compile(forward, backend=backend, dynamic=False)


def head(vit: ViT, pooled: Tensor, shift: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
    """Logits [B, classes] of pooled features [B, K, D], with `shift` [D] added to the CLS feature."""
    if shift is not None:
        pooled = add_to_cls(pooled, shift)
    with _autocast(vit):
        logits = vit.classify(pooled)
    logits = logits if vit.precision == "float32" else logits.float()
    return logits if classes is None else logits[:, classes]


@torch.no_grad()
def patch_variance(vit: ViT, images: Tensor) -> Tensor:
    """`ForwardOutput.patch_variance` [B, D] of checked images alone, without the blocks."""
    with _autocast(vit):
        return _patch_variance(vit, _embed(vit, images))


def _patch_variance(vit: ViT, embedded: Tensor) -> Tensor:
    """Variance over the patches of each image [B, N, D] -> [B, D], in float32 and without gradient."""
    return embedded.detach()[:, vit.num_prefix_tokens :].float().var(dim=1, unbiased=False)


def _embed(vit: ViT, images: Tensor) -> Tensor:
    return vit.embed(images.to(vit.patch_projection.weight.dtype))


def _edit(vit: ViT, values: Tensor, edits: TokenEdits) -> Tokens:
    """The embedded tokens [B, N, D] with the method's shift and prompts."""
    count = vit.num_prefix_tokens
    if edits.cls_shift is not None:
        values = add_to_cls(values, edits.cls_shift)
    values = vit.norm_pre(values)
    if edits.prompts is not None:
        prompts = edits.prompts.to(values.dtype).expand(values.shape[0], -1, -1)
        values = torch.cat([values[:, :count], prompts, values[:, count:]], dim=1)
        count += prompts.shape[1]
    return Tokens(values, count)


def _block(
    vit: ViT, reduce: Reducer, edits: TokenEdits, capture: _Capture, layer: int, r: int, tokens: Tokens
) -> _BlockOutput:
    bias = edits.cls_bias.get(layer)
    if bias is not None and edits.bias_position == "block_input":
        tokens = tokens._replace(values=add_to_cls(tokens.values, bias))
    normed = vit.norm1(layer, tokens.values)
    cls_row = None
    if capture.features:
        normed, cls_row = (normed, normed[:, 0]) if capture.hooked else read_cls(normed)
    q, k, v = vit.qkv(layer, normed)
    sizes = tokens.sizes if reduce.proportional_attention else None
    count = tokens.num_prefix_tokens + reduce.num_remaining(tokens.num_image_tokens, r) if r else tokens.length
    rows = capture.rows if layer == vit.depth - 1 else None
    if rows is not None:  # nothing reads the other rows of the last block: neither compute nor merge them
        tokens = Tokens(tokens.values[:, :rows], min(tokens.num_prefix_tokens, rows))
        q, normed, r = q[:, :, :rows], normed[:, :rows], 0
    attended = attention(q, k, v, sizes, vit.attention_dropout(layer))
    info = AttentionInfo(
        mean_keys(k) if capture.keys or (r and reduce.needs_keys) else None,
        cls_attention(q, k) if capture.attention or (r and reduce.needs_cls_attention) else None,
    )
    tokens = _residual(tokens, vit.project(layer, attended, normed), capture)
    if r:
        tokens = reduce.apply(tokens, r, info, layer, vit.depth)
    if bias is not None and edits.bias_position == "post_merge":
        tokens = tokens._replace(values=add_to_cls_(tokens.values, bias))
    tokens = _residual(tokens, vit.mlp(layer, tokens.values), capture)
    return _BlockOutput(tokens, count, cls_row, info)


def _residual(tokens: Tokens, update: Tensor, capture: _Capture) -> Tokens:
    """tokens + update; in place it is written into `update`, which saves an allocation per half block."""
    values = tokens.values
    update = update.to(values.dtype)  # a layer scale in float32 promotes updates in half precision
    values = update.add_(values) if capture.in_place else values + update
    if capture.on_block is not None:
        if torch.is_grad_enabled():
            values = _OnBlock.apply(values, capture.on_block)
        else:
            capture.on_block()
    return tokens._replace(values=values)


class _OnBlock(torch.autograd.Function):
    """The identity; calls `on_block` in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, on_block: Callable[[], None]) -> Tensor:
        ctx.on_block = on_block
        on_block()
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.on_block()
        return gradient, None


def _autocast(vit: ViT) -> AbstractContextManager[Any]:
    """Half precision where the layers are not converted. On a GPU also where they are: its norms take no mixed types."""
    dtype, device = compute_dtype(vit.precision), vit.device.type
    return nullcontext() if dtype is None or (vit.frozen and device == "cpu") else torch.autocast(device, dtype)


def _has_hooks(vit: ViT) -> bool:
    """Whether modules of the model have hooks. Global hooks do not count: flop counters and profilers set them, and should
    see the same call as without them."""
    if torch.compiler.is_compiling():
        return False
    return any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in vit.modules()
    )


def _check_edits(vit: ViT, edits: TokenEdits) -> None:
    if edits.bias_position not in ("post_merge", "block_input"):
        raise SpecError(f"bias_position is post_merge or block_input, got {edits.bias_position!r}")
    for name, vector in (("cls_shift", edits.cls_shift), ("head_shift", edits.head_shift), *edits.cls_bias.items()):
        if vector is not None and vector.shape != (vit.embed_dim,):
            where = name if isinstance(name, str) else f"cls_bias of block {name}"
            raise InputError(f"{where} must have shape ({vit.embed_dim},), got {tuple(vector.shape)}")
    if edits.prompts is not None and (edits.prompts.dim() != 2 or edits.prompts.shape[1] != vit.embed_dim):
        raise InputError(f"prompts must have shape (P, {vit.embed_dim}), got {tuple(edits.prompts.shape)}")
    if any(not 0 <= layer < vit.depth for layer in edits.cls_bias):
        raise InputError(f"cls_bias names blocks {sorted(edits.cls_bias)}, but the model has blocks 0..{vit.depth - 1}")
