"""What goes into the forward as `TokenEdits` and comes out in `ForwardOutput`, against values computed by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import navia
from navia.errors import InputError, SpecError
from navia.models.forward import TokenEdits, forward, head
from navia.reduction import AttentionInfo, EViT, NoReduction, Reducer, ToFu, Tokens, ToMe, parse
from navia.reduction.matching import gather_rows, match, merge_rows
from navia.reduction.tofu import largest_norms, rescale
from navia.reduction.tome import merge
from tests.families import MODELS, THREE, build, images_for, own_forward, relative

every_model = pytest.mark.parametrize("name", MODELS)


def captured(vit: navia.ViT, modules: list[nn.Module], images: Tensor) -> list[Tensor]:
    """What `modules` put out during the library's own forward."""
    outputs: dict[int, Tensor] = {}

    def keep(module: nn.Module, _: Any, output: Tensor) -> None:
        outputs[id(module)] = output.detach().clone()

    hooks = [module.register_forward_hook(keep) for module in modules]
    with torch.no_grad():
        own_forward(vit, images)
    for hook in hooks:
        hook.remove()
    return [outputs[id(module)] for module in modules]


def cls_row(tokens: Tensor) -> Tensor:
    return tokens if tokens.dim() == 2 else tokens[:, 0]


def by_hand(
    vit: navia.ViT,
    images: Tensor,
    reducer: Reducer | None = None,
    bias: tuple[int, Tensor] | None = None,
    place: str = "after the merge",
    prompts: Tensor | None = None,
) -> Tensor:
    """Logits of the plain timm ViT written out, with explicit attention maps."""
    model: Any = vit.model
    reducer = reducer or NoReduction()
    x = model.patch_embed(images)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], dim=1) + model.pos_embed
    if prompts is not None:
        x = torch.cat([x[:, :1], prompts.expand(len(x), -1, -1), x[:, 1:]], dim=1)
    tokens = Tokens(x, 1 if prompts is None else 1 + len(prompts))

    def biased(tokens: Tokens, here: str, layer: int) -> Tokens:
        if bias is None or here != place or layer != bias[0]:
            return tokens
        values = tokens.values.clone()
        values[:, 0] += bias[1]
        return tokens._replace(values=values)

    for layer, r in enumerate(reducer.tokens_per_block(len(model.blocks))):
        block = model.blocks[layer]
        tokens = biased(tokens, "block input", layer)
        batch, count, dim = tokens.values.shape
        heads = block.attn.num_heads
        q, k, v = block.attn.qkv(block.norm1(tokens.values)).view(batch, count, 3, heads, dim // heads).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (dim // heads) ** -0.5
        if tokens.sizes is not None and reducer != ToMe(reducer.r, proportional=False):
            scores = scores + tokens.sizes.log()[:, None, None, :]
        attended = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(batch, count, dim)
        tokens = tokens._replace(values=tokens.values + block.attn.proj(attended))
        tokens = biased(tokens, "before the merge", layer)
        if r:
            tokens = reducer.apply(
                tokens, r, AttentionInfo(k.mean(2), scores.softmax(-1).mean(1)[:, 0]), layer, len(model.blocks)
            )
        tokens = biased(tokens, "after the merge", layer)
        tokens = tokens._replace(values=tokens.values + block.mlp(block.norm2(tokens.values)))
    return model.head(model.norm(tokens.values)[:, 0])


# ---- what comes out


@every_model
def test_features_are_the_cls_rows_as_the_next_norm_reads_them(name: str) -> None:
    vit = build(name)
    images = images_for(vit)
    norms = list(vit.layer_norms().values())[2::2]  # norm1 of every block but the first, then the final norm
    assert len(norms) == vit.depth
    theirs = torch.stack([cls_row(out) for out in captured(vit, norms, images)], dim=1)
    with torch.no_grad():
        ours = forward(vit, images, features=True).features
    assert ours is not None
    assert ours.shape == (3, vit.depth, vit.embed_dim)
    assert relative(ours, theirs) <= 1e-5


@pytest.mark.parametrize("spec", ["tome:2", "evit:2", "tofu:2"])
def test_last_feature_is_what_the_classifier_reads(spec: str) -> None:
    vit = build("timm plain")
    output = forward(vit, images_for(vit), parse(spec), features=True)
    assert output.features is not None
    assert torch.equal(output.features[:, -1], output.pooled[:, 0])
    assert torch.equal(vit.classify(output.pooled), output.logits)
    assert torch.equal(head(vit, output.pooled), output.logits)


@every_model
def test_keys_and_cls_attention_of_every_block(name: str) -> None:
    vit = build(name)
    images = images_for(vit)
    norms = list(vit.layer_norms().values())[: 2 * vit.depth : 2]
    normed = captured(vit, norms, images)
    with torch.no_grad():
        output = forward(vit, images, keys=True, attention=True)
        assert output.keys is not None
        assert output.attention is not None
        assert len(output.keys) == len(output.attention) == vit.depth
        for layer in range(vit.depth):
            q, k, _ = vit.qkv(layer, normed[layer])
            weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
            assert relative(output.keys[layer], k.mean(dim=1)) <= 1e-5
            assert relative(output.attention[layer], weights[:, :, 0].mean(dim=1)) <= 1e-5
            assert torch.allclose(output.attention[layer].sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("spec", ["none", "tome:2", "evit:2", "tofu:2"])
def test_features_keys_attention_and_sources_only_when_asked_for(spec: str) -> None:
    vit = build("timm plain")
    images = images_for(vit)
    plain = forward(vit, images, parse(spec))
    assert plain.features is None
    assert plain.keys is None
    assert plain.attention is None
    assert plain.tokens.sources is None
    full = forward(vit, images, parse(spec), features=True, keys=True, attention=True, trace=True)
    assert full.features is not None
    assert full.tokens.sources is not None
    assert full.keys is not None
    assert full.attention is not None
    assert [k.shape[1] for k in full.keys] == [a.shape[1] for a in full.attention] == list(full.counts[:-1])
    assert relative(full.logits, plain.logits) <= 1e-6  # looking changes nothing
    assert full.counts == plain.counts
    assert full.tokens.length == full.counts[-1]
    assert plain.tokens.length == vit.num_pooled_tokens  # rows that nobody reads are not computed


@pytest.mark.parametrize("spec", ["none", "tome:3", "tome:3,proportional=false", "evit:3", "tofu:3,split=2"])
def test_logits_equal_the_forward_written_out_by_hand(spec: str) -> None:
    """With explicit attention maps, the size bias written out and the reducer put between attention and MLP."""
    vit = build("timm plain")
    images = images_for(vit)
    with torch.no_grad():
        assert relative(vit(images, reduce=spec), by_hand(vit, images, parse(spec))) <= 1e-5


# ---- what goes in


@every_model
def test_cls_shift_is_a_change_of_the_cls_token_itself(name: str) -> None:
    """Also where a norm stands between the embedding and the first block (CLIP)."""
    vit = build(name)
    images = images_for(vit)
    shift = torch.randn(vit.embed_dim)
    with torch.no_grad():
        before = vit(images)
        ours = forward(vit, images, edits=TokenEdits(cls_shift=shift)).logits
        vit.cls_token.add_(shift)
        theirs = own_forward(vit, images)
    assert relative(ours, theirs) <= 1e-5
    assert relative(theirs, before) > 1e-3


@every_model
def test_cls_bias_stands_between_merge_and_mlp(name: str) -> None:
    """In the last block, where what follows can be written down with the model's own parts."""
    vit = build(name)
    images = images_for(vit)
    last, bias = vit.depth - 1, torch.randn(vit.embed_dim)
    inputs: list[Tensor] = []
    norm2 = list(vit.layer_norms().values())[2 * last + 1]
    hook = norm2.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
    with torch.no_grad():
        own_forward(vit, images)
        hook.remove()
        middle = inputs[0]
        middle[:, 0] += bias
        left = Tokens(middle + vit.mlp(last, middle), vit.num_prefix_tokens)
        expected = vit.classify(vit.pool(left))
        ours = forward(vit, images, edits=TokenEdits(cls_bias={last: bias})).logits
        assert relative(ours, expected) <= 1e-5
        assert relative(ours, vit(images)) > 1e-3


@pytest.mark.parametrize("spec", ["none", "tome:3", "tofu:3", "evit:3"])
@pytest.mark.parametrize("layer", [0, 2])
def test_cls_bias_before_the_merge_is_the_same_and_at_the_block_input_is_not(spec: str, layer: int) -> None:
    vit = build("timm plain")
    images, bias, reducer = images_for(vit), torch.randn(vit.embed_dim), parse(spec)
    with torch.no_grad():
        ours = forward(vit, images, reducer, edits=TokenEdits(cls_bias={layer: bias})).logits
        early = forward(vit, images, reducer, edits=TokenEdits(cls_bias={layer: bias}, bias_position="block_input")).logits
        after = by_hand(vit, images, reducer, (layer, bias), "after the merge")
        before = by_hand(vit, images, reducer, (layer, bias), "before the merge")
        block_input = by_hand(vit, images, reducer, (layer, bias), "block input")
    assert relative(ours, after) <= 1e-5
    assert relative(ours, before) <= 1e-5
    assert relative(early, block_input) <= 1e-5
    assert relative(early, ours) > 1e-3


def test_cls_bias_at_the_first_block_input_is_a_cls_shift() -> None:
    vit = build("torchvision")
    images, bias = images_for(vit), torch.randn(vit.embed_dim)
    shifted = forward(vit, images, edits=TokenEdits(cls_shift=bias)).logits
    biased = forward(vit, images, edits=TokenEdits(cls_bias={0: bias}, bias_position="block_input")).logits
    assert relative(biased, shifted) <= 1e-6


def test_prompts_enter_behind_the_cls_token_without_position() -> None:
    vit = build("timm plain")
    images, prompts = images_for(vit), torch.randn(3, vit.embed_dim)
    with torch.no_grad():
        for spec in ("none", "tome:2", "evit:2", "tofu:2"):
            output = forward(vit, images, parse(spec), edits=TokenEdits(prompts=prompts))
            assert relative(output.logits, by_hand(vit, images, parse(spec), prompts=prompts)) <= 1e-5, spec
            assert output.counts[0] == 1 + 3 + 16
            assert (
                forward(vit, images, parse(spec), edits=TokenEdits(prompts=prompts), trace=True).tokens.num_prefix_tokens
                == 4
            )


@every_model
@pytest.mark.parametrize("spec", ["tome:1000", "evit:1000", "tofu:1000"])
def test_prompts_are_never_merged_or_dropped(name: str, spec: str) -> None:
    vit = build(name)
    prompts = torch.randn(3, vit.embed_dim)
    with torch.no_grad():
        output = forward(vit, images_for(vit), parse(spec), edits=TokenEdits(prompts=prompts), trace=True)
    assert output.logits.isfinite().all()
    protected = vit.num_prefix_tokens + 3
    assert output.tokens.num_prefix_tokens == protected
    assert output.tokens.sources is not None
    assert torch.equal(output.tokens.sources[:, :protected], torch.arange(protected).expand(3, -1))
    assert (output.tokens.sources[:, protected:] >= protected).logical_or(output.tokens.sources[:, protected:] < 0).all()
    if output.tokens.sizes is not None:
        assert (output.tokens.sizes[:, :protected] == 1).all()


def test_head_shift_moves_the_cls_feature_only() -> None:
    vit: Any = build("timm plain")
    images, shift = images_for(vit), torch.randn(vit.embed_dim)
    plain, shifted = forward(vit, images), forward(vit, images, edits=TokenEdits(head_shift=shift))
    assert relative(shifted.logits, plain.logits + vit.model.head.weight @ shift) <= 1e-5
    assert torch.equal(shifted.pooled, plain.pooled)  # before the shift
    assert torch.equal(head(vit, plain.pooled, shift), shifted.logits)


def test_head_shift_of_a_distilled_model_leaves_the_distillation_feature() -> None:
    vit: Any = build("timm deit distilled")
    images, shift = images_for(vit), torch.randn(vit.embed_dim)
    ours = forward(vit, images, edits=TokenEdits(head_shift=shift)).logits
    assert relative(ours, vit(images) + vit.model.head.weight @ shift / 2) <= 1e-5


@pytest.mark.parametrize("name", THREE)
def test_class_mask_picks_columns_in_the_order_given(name: str) -> None:
    vit = build(name)
    images = images_for(vit)
    full = vit(images, reduce="tome:2")
    assert torch.equal(vit(images, reduce="tome:2", classes=[7, 0, 3]), full[:, [7, 0, 3]])
    assert torch.equal(vit(images, reduce="tome:2", classes=torch.tensor([10])), full[:, 10:])


@pytest.mark.parametrize(
    ("touch", "complaint"),
    [
        (TokenEdits(cls_shift=torch.zeros(47)), r"cls_shift must have shape \(48,\), got \(47,\)"),
        (TokenEdits(cls_shift=torch.zeros(1, 48)), r"cls_shift .* got \(1, 48\)"),
        (TokenEdits(head_shift=torch.zeros(3, 48)), "head_shift"),
        (TokenEdits(cls_bias={2: torch.zeros(5)}), "cls_bias of block 2"),
        (TokenEdits(cls_bias={4: torch.zeros(48)}), r"blocks \[4\], but the model has blocks 0..3"),
        (TokenEdits(cls_bias={-1: torch.zeros(48)}), "blocks 0..3"),
        (TokenEdits(prompts=torch.zeros(48)), r"prompts must have shape \(P, 48\)"),
        (TokenEdits(prompts=torch.zeros(2, 40)), "prompts"),
    ],
)
def test_touch_of_the_wrong_shape_is_refused(touch: TokenEdits, complaint: str) -> None:
    vit = build("timm plain")
    with pytest.raises(InputError, match=complaint):
        forward(vit, images_for(vit), edits=touch)


def test_unknown_bias_position_is_refused() -> None:
    """Rather than leaving the bias out without a word."""
    vit = build("timm plain")
    touch = TokenEdits(cls_bias={0: torch.zeros(48)}, bias_position="after_merge")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"bias_position .*post_merge.*block_input"):
        forward(vit, images_for(vit), edits=touch)


# ---- gradients


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3", "tofu:3"])
@pytest.mark.parametrize("name", THREE)
def test_gradients_reach_the_touch_alone_when_the_model_is_frozen(name: str, spec: str) -> None:
    vit = build(name).requires_grad_(False)
    shift, bias, prompts, last = (torch.zeros(*size, 48).requires_grad_() for size in ((), (), (2,), ()))
    touch = TokenEdits(cls_shift=shift, cls_bias={1: bias}, prompts=prompts, head_shift=last)
    logits = forward(vit, images_for(vit), parse(spec), edits=touch).logits
    logits.logsumexp(dim=1).sum().backward()
    for leaf in (shift, bias, prompts, last):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert leaf.grad.abs().max() > 1e-4
    assert all(parameter.grad is None for parameter in vit.parameters())


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3"])
def test_gradient_of_a_cls_bias_is_the_slope_of_the_logits(spec: str) -> None:
    """Central differences in double precision through the whole reduced forward."""
    vit = build("timm plain").double()
    images, reducer = images_for(vit).double(), parse(spec)
    direction = torch.randn(48, dtype=torch.float64)

    def height(step: Tensor) -> Tensor:
        return forward(vit, images, reducer, edits=TokenEdits(cls_bias={1: step * direction})).logits.logsumexp(dim=1).sum()

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    height(step).backward()
    assert step.grad is not None
    with torch.no_grad():
        slope = (height(torch.tensor(1e-5)) - height(torch.tensor(-1e-5))) / 2e-5
    # the keys are compared in single precision, the CLS attention is not
    assert step.grad.item() == pytest.approx(slope.item(), rel=1e-5)


def _double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_take() -> None:
    index = torch.tensor([[4, 0, 2], [1, 3, 0]])
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, index), _double(2, 5, 3))


def test_gradcheck_merge_rows_with_a_shared_target() -> None:
    """Rows 1 and 3 of both samples join one output row, row 4 of the second another."""
    kept = torch.tensor([[0, 2, 5], [5, 0, 2]])
    removed = torch.tensor([[1, 3, 4], [4, 1, 3]])
    into = torch.tensor([[1, 1, 2], [0, 2, 2]])
    share = torch.tensor([[0.2, 0.3, 0.6], [0.5, 0.1, 0.2]], dtype=torch.float64)
    rest = torch.tensor([[0.5, 0.5, 0.4], [0.5, 0.7, 0.7]], dtype=torch.float64)
    x = _double(2, 6, 3)
    assert torch.autograd.gradcheck(lambda x: merge_rows(x, kept, removed, into, share, rest), x)
    merged = merge_rows(x, kept, removed, into, share, rest)
    assert torch.allclose(merged[0, 1], 0.5 * x[0, 2] + 0.2 * x[0, 1] + 0.3 * x[0, 3])
    assert torch.equal(merged[0, 0], x[0, 0])


@pytest.mark.parametrize("reducer", [ToMe(3), ToFu(3, split=1)])
@pytest.mark.parametrize("sized", [False, True])
def test_gradcheck_merging_and_pruning_steps(reducer: Reducer, sized: bool) -> None:
    """ToFu in a pruning block."""
    keys, sizes = torch.randn(2, 9, 4), torch.randint(1, 4, (2, 9)).double() if sized else None

    def step(values: Tensor) -> Tensor:
        return reducer.apply(Tokens(values, 1, sizes), 3, AttentionInfo(keys), layer=0, depth=4).values

    assert torch.autograd.gradcheck(step, _double(2, 9, 3))


@pytest.mark.parametrize("fuse", [True, False])
def test_gradcheck_evit_step_through_the_attention_too(fuse: bool) -> None:
    attention = torch.rand(2, 9, dtype=torch.float64, requires_grad=True)

    def step(values: Tensor, weights: Tensor) -> Tensor:
        return EViT(3, fuse=fuse).apply(Tokens(values, 1), 3, AttentionInfo(None, weights), layer=0, depth=4).values

    assert torch.autograd.gradcheck(step, (_double(2, 9, 3), attention))


@pytest.mark.parametrize("compat", [True, False])
def test_gradcheck_tofu_merge_with_the_norms_held_fixed(compat: bool) -> None:
    """The largest member norm carries no gradient: the step's gradient is that of its pieces with the norm constant."""
    keys, x = torch.randn(2, 9, 4), _double(2, 9, 3)
    matching = match(keys, 3, 1)
    norms = largest_norms(x, matching)
    merged_into = torch.zeros_like(norms, dtype=torch.bool).scatter_(1, matching.into, True)
    rows = None if compat else merged_into

    def pieces(values: Tensor) -> Tensor:
        return rescale(merge(Tokens(values, 1), matching).values, norms, rows)

    assert torch.autograd.gradcheck(pieces, x)
    weights = torch.randn(2, 6, 3, dtype=torch.float64)
    step = ToFu(3, split=0, compat=compat).apply(Tokens(x, 1), 3, AttentionInfo(keys), layer=0, depth=4).values
    (ours,) = torch.autograd.grad((step * weights).sum(), x)
    (expected,) = torch.autograd.grad((pieces(x) * weights).sum(), x)
    assert torch.allclose(ours, expected)


# ---- nothing is left behind


def _state(model: nn.Module) -> dict[str, Any]:
    """Identity of everything that hangs on any sub-module."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[f"{name} class"] = type(module)
        for key, value in vars(module).items():
            state[f"{name}.{key}"] = id(value)
            if isinstance(value, dict):  # parameters, buffers, sub-modules, hooks
                state |= {f"{name}.{key}[{inner}]": id(thing) for inner, thing in value.items()}
    return state


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3", "tofu:3"])
@every_model
def test_nothing_is_stored_on_the_modules(name: str, spec: str) -> None:
    vit = build(name)
    before, weights = _state(vit), {key: value.clone() for key, value in vit.state_dict().items()}
    own_forward: Callable[..., Any] = type(vit.model).forward
    touch = TokenEdits(
        cls_shift=torch.ones(vit.embed_dim), cls_bias={0: torch.ones(vit.embed_dim)}, prompts=torch.ones(1, vit.embed_dim)
    )
    forward(vit, images_for(vit), parse(spec), edits=touch, features=True, keys=True, attention=True, trace=True)
    assert _state(vit) == before
    assert type(vit.model).forward is own_forward
    after = vit.state_dict()
    assert list(after) == list(weights)
    assert all(torch.equal(after[key], value) for key, value in weights.items())


def test_images_and_touch_are_not_written_to() -> None:
    vit = build("timm plain")
    images, shift, prompts = images_for(vit), torch.randn(48), torch.randn(2, 48)
    kept = [tensor.clone() for tensor in (images, shift, prompts)]
    forward(vit, images, ToMe(3), edits=TokenEdits(cls_shift=shift, cls_bias={0: shift}, prompts=prompts, head_shift=shift))
    assert all(torch.equal(a, b) for a, b in zip(kept, (images, shift, prompts), strict=True))
