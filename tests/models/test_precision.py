"""bfloat16, float16 and int8: products and attention against their definitions, every family near float32."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import navia
from navia.methods.features import entropy
from navia.models import precision
from navia.models.forward import forward
from navia.models.ops import attention
from navia.models.precision import FrozenLinear, Int8Linear, round_tokens
from navia.reduction import parse
from tests.families import MODELS, THREE, build, images_for, relative


def layer(rows: int = 20, inputs: int = 48, outputs: int = 32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    return x * torch.rand(rows, 1, generator=generator) * 5, w, b


# ---- products


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("inputs", [48, 45])
def test_tokens_are_rounded_to_the_nearest_of_their_own_levels(dtype: torch.dtype, inputs: int) -> None:
    x = layer(rows=500, inputs=inputs)[0].to(dtype)
    x[3], x[4, 0] = 0, 1e30  # a row of zeros, and one with an outlier
    q, scale = round_tokens(x)
    assert q.dtype == torch.uint8
    levels = q.double() - 128
    assert levels.abs().max() <= 126
    assert (levels[3] == 0).all()
    rows = torch.arange(len(x)) != 3
    assert (levels.abs().amax(dim=1)[rows] >= 125).all()  # each token uses its whole range
    off = (x.double() - levels * scale.double()).abs() / scale.double()
    rounding = 0.25 if dtype == torch.bfloat16 else 1e-4  # of x / scale, which has steps of 0.5 in bfloat16
    assert off.max() <= 0.5 + rounding


def int8_by_definition(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """s_x s_w (q_x q_w^T) + b in float64, from the rounded tokens."""
    q, scale = round_tokens(x)
    step = w.abs().amax(dim=1, keepdim=True) / 127
    return scale.double() * ((q.double() - 128) @ (w / step).round().double().t()) * step.t().double() + b


@pytest.mark.parametrize("vnni", [True, False])
def test_an_int8_layer_computes_its_definition(vnni: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if vnni and not precision._has_vnni():
        pytest.skip("this processor has no VNNI instructions")
    monkeypatch.setattr(precision, "_has_vnni", lambda: vnni)
    x, w, b = layer(inputs=96)
    made, expected = Int8Linear(w, b)(x), int8_by_definition(x, w, b)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.double(), expected, rtol=2**-7, atol=2**-7 * expected.abs().max().item())
    assert relative(made.float(), F.linear(x, w, b)) < 0.03


@pytest.mark.parametrize(("kind", "told"), [("int8", "no VNNI"), ("bfloat16", "no bfloat16 instructions")])
def test_a_processor_without_the_instructions_is_told_of(
    kind: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "_has_vnni", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    precision._tell_of_missing_instructions.cache_clear()
    low = navia.load(build("timm plain"), precision=kind)
    for _ in range(2):
        navia.adapt(low, "tent")
    precision._tell_of_missing_instructions.cache_clear()
    assert [told in message for message in caplog.messages] == [True]


def test_small_gradients_survive_float16() -> None:
    """Those of single tokens would be rounded to zero: the loss is scaled for the backward pass."""
    vit, found = build("timm plain"), {}
    for kind in ("float32", "float16"):
        method = navia.adapt(navia.load(vit, precision=kind), "tent").method
        prediction = method.forward_step(images_for(vit, 8))
        method.backward(1e-5 * entropy(prediction.output.logits).mean())
        found[kind] = torch.cat([p.grad.flatten() for p in method.parameters.values() if p.grad is not None])
    assert torch.cosine_similarity(found["float32"], found["float16"], dim=0) > 0.99
    assert found["float16"].norm() == pytest.approx(found["float32"].norm().item(), rel=0.05)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_a_token_does_not_depend_on_the_others(kind: str) -> None:
    x, w, b = layer(rows=64)
    made = precision._convert(w, b, kind)
    alone = made(x[:5])
    if kind == "int8":  # whole numbers: the order of the sums changes nothing
        assert torch.equal(made(x)[:5], alone)
    torch.testing.assert_close(made(x)[:5], alone, rtol=0.02, atol=0.02 * alone.abs().max().item())


@pytest.mark.parametrize("shape", [(20, 48, 32), (7, 400, 420)])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_the_gradient_of_a_frozen_layer_is_that_of_the_float_one(kind: str, shape: tuple[int, int, int]) -> None:
    x, w, b = layer(*shape)
    x.requires_grad_()
    made = precision._convert(w, b, kind)
    y = made(x.view(1, *x.shape))
    assert y.shape == (1, shape[0], shape[2])
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (ours,) = torch.autograd.grad(y, x, grad.to(y.dtype))
    theirs = grad[0] @ w
    assert relative(ours, theirs) < (0.03 if kind == "int8" else 0.01)


def test_values_that_are_not_finite_stay_visible() -> None:
    x, w, b = layer()
    x[2, 5], x[4, 1] = float("nan"), float("inf")
    for made in (Int8Linear(w, b), FrozenLinear(w, b, torch.bfloat16)):
        finite = made(x).isfinite().all(dim=1)
        assert not finite[2]
        assert not finite[4]
        assert finite[[0, 1, 3, 5]].all()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8"])
def test_a_frozen_layer_survives_pickling(kind: str) -> None:
    x, w, b = layer()
    made = precision._convert(w, b, kind)
    thawed = pickle.loads(pickle.dumps(made))
    grad = torch.ones(20, 32, dtype=made.dtype)
    assert torch.equal(made(x), thawed(x))
    assert torch.equal(made.gradient(grad), thawed.gradient(grad))


# ---- attention


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("sized", [True, False])
def test_attention_in_bfloat16_is_that_of_torch_in_float32(sized: bool, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 50, 4, 16, generator=generator).transpose(1, 2) for _ in range(3))
    sizes = torch.randint(1, 9, (3, 50), generator=generator).float() if sized else None
    inputs = [x.bfloat16().requires_grad_() for x in (q[:, :, :rows], k, v)]
    exact = [x.detach().float().requires_grad_() for x in inputs]
    ours = attention(*inputs, sizes)
    bias = None if sizes is None else sizes.log()[:, None, None]
    theirs = F.scaled_dot_product_attention(*exact, attn_mask=bias).transpose(1, 2).flatten(2)
    assert ours.dtype == torch.bfloat16
    assert relative(ours.float(), theirs) < 0.02
    grad = torch.randn(theirs.shape, generator=generator)
    found = torch.autograd.grad(ours, inputs, grad.bfloat16())
    wanted = torch.autograd.grad(theirs, exact, grad)
    assert all(relative(a.float(), b) < 0.03 for a, b in zip(found, wanted, strict=True))
    with torch.no_grad():
        assert torch.equal(attention(*inputs, sizes), ours)


# ---- models


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_near_its_float32_logits(name: str, kind: str) -> None:
    vit = build(name)
    before = copy.deepcopy(vit.model.state_dict())
    modules = [type(module) for module in vit.model.modules()]
    images = images_for(vit, 4)
    low = navia.load(vit, precision=kind)
    with torch.no_grad():
        exact, logits = vit(images), low(images)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, exact)
    assert relative(logits, exact) < (0.03 if kind == "bfloat16" else 0.08)
    assert [type(module) for module in vit.model.modules()] == modules
    assert all(torch.equal(value, before[key]) for key, value in vit.model.state_dict().items())


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", THREE)
def test_the_gradient_of_the_norms_points_where_that_of_float32_does(name: str, kind: str) -> None:
    vit = build(name)
    images, found = images_for(vit, 16), {}
    for each in ("float32", kind):
        adapter = navia.adapt(navia.load(vit, precision=each), "tent", momentum=0.0)
        adapter(images)
        moved = adapter.method.parameters
        found[each] = torch.cat([(p.detach() - vit.model.get_parameter(key)).flatten() for key, p in moved.items()])
    assert torch.cosine_similarity(found["float32"], found[kind], dim=0) > 0.97


def test_a_change_of_the_weights_is_seen() -> None:
    vit = build("timm plain")
    low, images = navia.load(vit, precision="int8"), images_for(vit)
    with torch.no_grad():
        first = low(images)
        assert torch.equal(low(images), first)
        vit.model.blocks[0].mlp.fc1.weight.mul_(1.5)
        assert not torch.equal(low(images), first)


def test_adapters_of_one_model_share_its_converted_layers() -> None:
    low = navia.load(build("timm plain"), precision="int8")
    one, two = (navia.adapt(low, "tent").vit.model.blocks[0].mlp.fc1 for _ in range(2))
    assert isinstance(one, Int8Linear)
    assert one is two


def test_what_cannot_be_int8_is_refused_by_name(tmp_path: Path) -> None:
    vit = build("timm plain")
    low = navia.load(vit, precision="int8")
    with pytest.raises(navia.NaviaError, match=r"int8 is not possible.*the method tunes blocks"):
        navia.adapt(low, "cotta")
    images = images_for(vit, 8)
    measured = navia.SourceStatistics.measure(vit, images)
    with pytest.raises(navia.NaviaError, match="measured in float32, not int8: measure them again"):
        navia.adapt(low, "align", source=measured)
    with pytest.raises(navia.NaviaError, match="computes in int8, and exported models in float32"):
        navia.adapt(low, "tent").export(tmp_path / "model.onnx")
    with pytest.raises(navia.NaviaError, match="no precision 'int4'; there is float32, bfloat16, float16, int8"):
        navia.load(vit, precision="int4")
    vit.model.blocks[1].mlp.fc2.register_forward_hook(lambda *_: None)
    with pytest.raises(navia.NaviaError, match=r"blocks\.1\.mlp\.fc2 has hooks"):
        navia.adapt(low, "tent")


def test_half_precision_of_layers_that_cannot_be_frozen_is_autocast() -> None:
    vit = build("timm plain")
    seen: list[torch.dtype] = []
    vit.model.blocks[1].mlp.fc2.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    low, images = navia.load(vit, precision="bfloat16"), images_for(vit, 8)
    for method in ("cotta", "tent"):  # CoTTA tunes the layers
        assert relative(navia.adapt(low, method)(images), vit(images)) < 0.1
    assert torch.bfloat16 in seen
    low(images).sum().backward()  # a direct call with gradients reaches the weights
    assert isinstance(vit.model.blocks[0].mlp.fc1, nn.Linear)
    assert vit.model.blocks[0].mlp.fc1.weight.grad is not None


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3", "tofu:3"])
def test_features_and_tokens_are_float32(spec: str) -> None:
    low = navia.load(build("timm plain"), precision="int8")
    with torch.no_grad():
        output = forward(low, images_for(low), parse(spec), features=True)
    assert output.features is not None
    assert output.features.dtype == output.tokens.values.dtype == output.logits.dtype == torch.float32


def test_a_stream_in_int8_resumes_from_a_pickle() -> None:
    low = navia.load(build("timm plain"), precision="int8")
    adapter = navia.adapt(low, "tent", "tome:2")
    adapter(images_for(low, 8))
    twin = pickle.loads(pickle.dumps(adapter))
    assert torch.equal(adapter(images_for(low, 8, seed=2)), twin(images_for(low, 8, seed=2)))
