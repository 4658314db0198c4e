"""What the forward saves, in work or in memory, changes neither answers nor gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_full_backward_hook,
)

import navia
from navia.models.forward import ForwardOutput, TokenEdits, forward
from navia.models.ops import add_to_cls, add_to_cls_, read_cls, split_heads
from navia.reduction import parse
from tests.families import MODELS, build, images_for, relative

SPECS = ("none", "tome:3", "evit:3", "tofu:3", "tofu:3,compat=true")

every_model = pytest.mark.parametrize("name", MODELS)
every_spec = pytest.mark.parametrize("spec", SPECS)
both_places = pytest.mark.parametrize("place", ["post_merge", "block_input"])


def _touch(vit: navia.ViT, place: Any) -> TokenEdits:
    generator = torch.Generator().manual_seed(5)

    def vector() -> Tensor:
        return (torch.randn(vit.embed_dim, generator=generator) * 0.1).requires_grad_()

    return TokenEdits(vector(), {layer: vector() for layer in range(vit.depth)}, place, vector().detach()[None], vector())


def _walked(
    vit: navia.ViT, spec: str, place: str = "post_merge", grad_checkpointing: bool = False
) -> tuple[ForwardOutput, list[Tensor | None]]:
    """The output, and the gradients of everything that a method could tune."""
    touch = _touch(vit, place)
    vit.grad_checkpointing = grad_checkpointing
    output = forward(vit, images_for(vit), parse(spec), edits=touch, features=True)
    assert output.features is not None
    loss = output.logits.logsumexp(dim=1).sum() + output.features.square().mean()
    tuned = [*vit.parameters(), touch.cls_shift, touch.head_shift, *touch.cls_bias.values()]
    return output, list(torch.autograd.grad(loss, tuned, allow_unused=True))


def _equal(
    ours: tuple[ForwardOutput, list[Tensor | None]], theirs: tuple[ForwardOutput, list[Tensor | None]], within: float
) -> None:
    assert relative(ours[0].logits, theirs[0].logits) <= within
    assert relative(ours[0].features, theirs[0].features) <= within
    assert ours[0].counts == theirs[0].counts
    assert sum(grad is not None for grad in ours[1]) > 40
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert (a - b).abs().max() <= 10 * within * b.abs().max() + 1e-6


@every_model
@every_spec
def test_rows_of_the_last_block_that_nobody_reads_are_not_missed(name: str, spec: str) -> None:
    vit = build(name)
    short = _walked(vit, spec)
    vit.whole_last_block = True
    whole = _walked(vit, spec)
    _equal(short, whole, 1e-5)
    assert whole[0].tokens.length == whole[0].counts[-1]
    skipped = vit.num_pooled_tokens is not None and not parse(spec).modifies_all_tokens
    assert short[0].tokens.length == (vit.num_pooled_tokens if skipped else short[0].counts[-1])


@every_model
@every_spec
def test_walking_blocks_twice_gives_the_same_gradients(name: str, spec: str) -> None:
    vit = build(name)
    _equal(_walked(vit, spec, grad_checkpointing=True), _walked(vit, spec), 1e-6)


@both_places
@every_spec
def test_lean_with_biases_in_both_places(spec: str, place: str) -> None:
    vit = build("timm plain")
    _equal(_walked(vit, spec, place, grad_checkpointing=True), _walked(vit, spec, place), 1e-6)


def test_lean_keeps_less_for_the_backward_pass() -> None:
    vit = build("timm plain")

    def kept(grad_checkpointing: bool) -> int:
        held: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, torch.nn.Parameter):
                held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            vit.grad_checkpointing = grad_checkpointing
            output = forward(vit, images_for(vit), parse("tome:3"))
        output.logits.sum().backward()
        return sum(held.values())

    full = kept(grad_checkpointing=False)
    assert full > 0
    assert kept(grad_checkpointing=True) < full / 3


def test_the_first_row_is_shifted_in_place_and_only_there() -> None:
    before = torch.randn(2, 5, 3, dtype=torch.double)
    shift = torch.randn(3, dtype=torch.double)
    ours = before.clone()
    assert add_to_cls_(ours, shift) is ours
    assert torch.equal(ours, add_to_cls(before, shift))
    assert torch.equal(ours[:, 1:], before[:, 1:])


def test_a_tensor_that_somebody_else_reads_is_refused_by_autograd() -> None:
    """Squaring keeps its input for the backward pass: writing over it must not pass in silence."""
    x = torch.randn(2, 5, 3, requires_grad=True) * 1.0
    kept = x.square()
    add_to_cls_(x, torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_first_row_and_heads_have_the_gradients_of_the_plain_forms() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12, dtype=torch.double, requires_grad=True)
    shift = torch.randn(12, dtype=torch.double, requires_grad=True)

    def loss(fast: bool) -> Tensor:
        if fast:
            normed, row = read_cls(add_to_cls_(x * 2, shift).sin())
            q, k, v = split_heads(normed @ torch.eye(12, dtype=torch.double), 2)
        else:
            normed = add_to_cls(x * 2, shift).sin()
            row = normed[:, 0]
            q, k, v = normed.reshape(2, 4, 3, 2, 2).permute(2, 0, 3, 1, 4)
        return (q * k.exp() * v.cos()).sum() + row.square().sum()

    for ours, theirs in zip(
        torch.autograd.grad(loss(True), [x, shift]), torch.autograd.grad(loss(False), [x, shift]), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)


HOOKS: dict[str, Callable[[nn.Module, Callable[[Tensor], None]], Any]] = {
    "forward": lambda m, see: m.register_forward_hook(lambda _, __, output: see(output)),
    "forward pre": lambda m, see: m.register_forward_pre_hook(lambda _, inputs: see(inputs[0])),
    "full backward": lambda m, see: m.register_full_backward_hook(lambda _, __, grads: see(grads[0])),
    "full backward pre": lambda m, see: m.register_full_backward_pre_hook(lambda _, grads: see(grads[0])),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_sees_every_row_of_the_last_block(kind: str) -> None:
    vit = build("timm plain")
    seen: list[int] = []
    handle = HOOKS[kind](vit.model.blocks[-1].mlp, lambda x: seen.append(x.shape[1]))
    try:
        vit(images_for(vit)).sum().backward()
    finally:
        handle.remove()
    assert seen == [vit.num_prefix_tokens + vit.grid[0] * vit.grid[1]]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # the images themselves need no gradient
def test_a_gradient_that_a_global_hook_keeps_is_not_changed_afterwards() -> None:
    vit, kept = build("timm plain"), []
    handle = register_module_full_backward_hook(
        lambda _, ins, outs: kept.extend((g, g.clone()) for g in (*ins, *outs) if g is not None)
    )
    try:
        _walked(vit, "tome:3")
    finally:
        handle.remove()
    assert len(kept) > vit.depth
    assert all(torch.equal(now, then) for now, then in kept)


@pytest.mark.parametrize("spec", ["none", "tome:3"])
def test_a_gradient_that_a_hook_keeps_is_not_changed_afterwards(spec: str) -> None:
    vit = build("timm plain")
    kept: list[tuple[Tensor, Tensor]] = []
    for block in vit.model.blocks:
        for part in (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp):
            part.register_full_backward_hook(lambda _, ins, outs: kept.extend((g, g.clone()) for g in (*ins, *outs)))
    output = _walked(vit, spec)[0]
    assert output.features is not None
    assert len(kept) == 10 * vit.depth
    assert all(torch.equal(now, then) for now, then in kept)
