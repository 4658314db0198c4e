"""The one forward: embed -> (attend, reduce, CLS bias, mlp) x L -> norm -> head.

Every method and every reducer runs through `run`. What a method puts in comes as `Touch`, what it wants to see goes out in
`Outcome`; nothing is kept on the modules between or during calls.
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
from navia.models.attention import attend, cls_attention, mean_keys
from navia.models.base import ViT
from navia.models.first_row import look_at_first_row, shift_first_row, shifted_first_row
from navia.reduction import NoReduction, Reducer, Seen, Tokens


@dataclass(frozen=True)
class Touch:
    """What a method adds on the way.

    cls_shift [D]: added to the CLS embedding (NAVIA's delta; tuning the embedding itself is the same).
    cls_bias {layer: [D]}: added to the CLS row of a block (NAVIA's delta_l), after the merge and before the MLP
    (`post_merge`) or at the block's input (`block_input`).
    prompts [P, D]: extra tokens after the model's own prefix, without position; never merged.
    head_shift [D]: added to the CLS feature that the classifier reads (FOA's activation shift).
    """

    cls_shift: Tensor | None = None
    cls_bias: Mapping[int, Tensor] = field(default_factory=dict)
    bias_position: Literal["post_merge", "block_input"] = "post_merge"
    prompts: Tensor | None = None
    head_shift: Tensor | None = None


@dataclass(frozen=True)
class Outcome:
    """logits [B, classes]; pooled [B, K, D]: what the classifier read, before head_shift, CLS first.
    features [B, L, D]: the CLS row after each block, through the norm that reads it next (norm1 of the next block, the
    final norm after the last). tokens: those that left the last block; unless traced, only the rows that the classifier
    reads. counts: tokens entering each block, then leaving the last. keys [B, N_l, d], attention [B, N_l] of each block.
    Those not asked for are None."""

    logits: Tensor
    pooled: Tensor
    tokens: Tokens
    counts: tuple[int, ...]
    features: Tensor | None = None
    keys: list[Tensor] | None = None
    attention: list[Tensor] | None = None


@dataclass(frozen=True)
class _Wish:
    """What is to be seen of every block. rows: how many rows of the last block anybody reads; None: all. reuse: whether
    sums may be written into what the parts put out. hooked: whether hooks may keep gradients, which stay unchanged then."""

    features: bool
    keys: bool
    attention: bool
    rows: int | None
    reuse: bool
    hooked: bool
    breathe: Callable[[], None] | None


class _Block(NamedTuple):
    """What comes out of a block. left: how many tokens leave it, computed or not."""

    tokens: Tokens
    left: int
    cls_row: Tensor | None
    seen: Seen


def run(
    vit: ViT,
    images: Tensor,
    reduce: Reducer | None = None,
    *,
    touch: Touch | None = None,
    classes: Tensor | None = None,
    features: bool = False,
    keys: bool = False,
    attention: bool = False,
    trace: bool = False,
    breathe: Callable[[], None] | None = None,
) -> Outcome:
    """Walk `images` [B, C, H, W] through the model. Inputs are taken as checked (`ViT.check_images`, `ViT.class_mask`).

    breathe: called twice in every block, and again where the gradient comes back through it, so that long work on many
    images can step aside for a moment.
    """
    reduce = reduce or NoReduction()
    touch = touch or Touch()
    _check_touch(vit, touch)
    reduce.check(vit.depth)
    with _products(vit):
        tokens = _enter(vit, images, touch)
        if trace:
            tokens = tokens.traced()
        hooked = _hooked(vit)
        kept = hooked or (_has_any_global_hook() and not torch.compiler.is_compiling())
        all_rows = trace or keys or attention or hooked or vit.whole_last_block or reduce.touches_all_rows
        reuse = not (kept or torch.is_grad_enabled() or torch.compiler.is_compiling())
        wish = _Wish(features, keys, attention, None if all_rows else vit.reads, reuse, kept, breathe)
        counts, cls_rows, seen = [tokens.length], [], []
        for layer, r in enumerate(reduce.amounts(vit.depth)):
            if vit.lean and torch.is_grad_enabled():
                block = checkpoint(_block, vit, reduce, touch, wish, layer, r, tokens, use_reentrant=False)
            else:
                block = _block(vit, reduce, touch, wish, layer, r, tokens)
            tokens = block.tokens
            counts.append(block.left)
            cls_rows.append(block.cls_row)
            if keys or attention:
                seen.append(block.seen)
        pooled = vit.pool(tokens)
        logits = head(vit, pooled, touch.head_shift, classes)

    seen_features = torch.stack([*cls_rows[1:], pooled[:, 0]], dim=1) if features else None
    return Outcome(
        logits=logits,
        pooled=pooled,
        tokens=tokens,
        counts=tuple(counts),
        features=seen_features if seen_features is None or vit.precision is None else seen_features.float(),
        keys=[block.keys for block in seen] if keys else None,
        attention=[block.cls_attention for block in seen] if attention else None,
    )


@functools.cache
def compiled(backend: str) -> Callable[..., Outcome]:
    """`run` through torch.compile."""
    return torch.compile(run, backend=backend, dynamic=False)


def _block(vit: ViT, reduce: Reducer, touch: Touch, wish: _Wish, layer: int, r: int, tokens: Tokens) -> _Block:
    bias = touch.cls_bias.get(layer)
    if bias is not None and touch.bias_position == "block_input":
        tokens = tokens._replace(values=shifted_first_row(tokens.values, bias))
    normed = vit.norm1(layer, tokens.values)
    cls_row = None
    if wish.features:
        normed, cls_row = (normed, normed[:, 0]) if wish.hooked else look_at_first_row(normed)
    q, k, v = vit.qkv(layer, normed)
    sizes = tokens.sizes if reduce.weighs_attention else None
    left = tokens.prefix + reduce.left(tokens.image_count, r) if r else tokens.length
    if layer == vit.depth - 1 and wish.rows is not None:  # nobody looks at the other rows any more, merged or not
        tokens, q, normed, r = _first_rows(tokens, wish.rows), q[:, :, : wish.rows], normed[:, : wish.rows], 0
    attended = attend(q, k, v, sizes, vit.attention_dropout(layer))
    seen = Seen(
        mean_keys(k) if wish.keys or (r and reduce.needs_keys) else None,
        cls_attention(q, k) if wish.attention or (r and reduce.needs_cls_attention) else None,
    )
    tokens = _breath(_add(tokens, vit.project(layer, attended, normed), wish.reuse), wish.breathe)
    if r:
        tokens = reduce.step(tokens, r, seen, layer, vit.depth)
    if bias is not None and touch.bias_position == "post_merge":
        tokens = tokens._replace(values=shift_first_row(tokens.values, bias))
    tokens = _breath(_add(tokens, vit.mlp(layer, tokens.values), wish.reuse), wish.breathe)
    return _Block(tokens, left, cls_row, seen)


def head(vit: ViT, pooled: Tensor, shift: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
    """Pooled rows [B, K, D] -> logits, with `shift` [D] on the CLS feature, restricted to the columns `classes`."""
    if shift is not None:
        pooled = shifted_first_row(pooled, shift)
    with _products(vit):
        logits = vit.classify(pooled)
    logits = logits if vit.precision is None else logits.float()
    return logits if classes is None else logits[:, classes]


def _products(vit: ViT) -> AbstractContextManager[Any]:
    """Matrix products in `vit.precision`, where it is set."""
    return torch.autocast(vit.cls_token.device.type, vit.precision) if vit.precision else nullcontext()


def _enter(vit: ViT, images: Tensor, touch: Touch) -> Tokens:
    values = vit.embed(images.to(vit.patch_projection.weight.dtype))
    prefix = vit.prefix
    if touch.cls_shift is not None:
        values = shifted_first_row(values, touch.cls_shift)
    values = vit.enter(values)
    if touch.prompts is not None:
        prompts = touch.prompts.to(values.dtype).expand(values.shape[0], -1, -1)
        values = torch.cat([values[:, :prefix], prompts, values[:, prefix:]], dim=1)
        prefix += prompts.shape[1]
    return Tokens(values, prefix)


def _add(tokens: Tokens, update: Tensor, reuse: bool) -> Tokens:
    """The residual sum; with `reuse` it is written into `update`, which saves an allocation per half block."""
    values = tokens.values
    return tokens._replace(values=update.add_(values) if reuse and update.dtype == values.dtype else values + update)


def _breath(tokens: Tokens, breathe: Callable[[], None] | None) -> Tokens:
    if breathe is None:
        return tokens
    if torch.is_grad_enabled():
        return tokens._replace(values=_Breath.apply(tokens.values, breathe))
    breathe()
    return tokens


class _Breath(torch.autograd.Function):
    """The identity, with a call on the way there and on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, breathe: Callable[[], None]) -> Tensor:
        ctx.breathe = breathe
        breathe()
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.breathe()
        return gradient, None


def _first_rows(tokens: Tokens, count: int) -> Tokens:
    return Tokens(tokens.values[:, :count], min(tokens.prefix, count))


def _hooked(vit: ViT) -> bool:
    """Whether hooks of the model's modules, of any kind, look at inputs, outputs or gradients. Global hooks do not count
    here: flop counters and profilers set them, and should see the call as it is without them."""
    if torch.compiler.is_compiling():
        return False
    return any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in vit.modules()
    )


def _check_touch(vit: ViT, touch: Touch) -> None:
    if touch.bias_position not in ("post_merge", "block_input"):
        raise SpecError(f"bias_position is post_merge or block_input, got {touch.bias_position!r}")
    for name, vector in (("cls_shift", touch.cls_shift), ("head_shift", touch.head_shift), *touch.cls_bias.items()):
        if vector is not None and vector.shape != (vit.dim,):
            where = name if isinstance(name, str) else f"cls_bias of block {name}"
            raise InputError(f"{where} must have shape ({vit.dim},), got {tuple(vector.shape)}")
    if touch.prompts is not None and (touch.prompts.dim() != 2 or touch.prompts.shape[1] != vit.dim):
        raise InputError(f"prompts must have shape (P, {vit.dim}), got {tuple(touch.prompts.shape)}")
    if any(not 0 <= layer < vit.depth for layer in touch.cls_bias):
        raise InputError(f"cls_bias names blocks {sorted(touch.cls_bias)}, but the model has blocks 0..{vit.depth - 1}")
