"""Compiled, autocast, other dtypes, copies, training mode, replaced parts: the one forward follows the model."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import navia
from navia.models.forward import TokenEdits, forward
from navia.reduction import parse
from tests.families import MODELS, SHALLOW, THREE, build, images_for, relative, shake

pytestmark = pytest.mark.slow

SPECS = ("none", "tome:3", "evit:3", "tofu:3")

three_libraries = pytest.mark.parametrize("name", THREE)
every_spec = pytest.mark.parametrize("spec", SPECS)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _gradients(logits: Tensor, vit: navia.ViT) -> list[Tensor]:
    used = [p for p in vit.parameters() if p.requires_grad]
    grads = torch.autograd.grad(logits.logsumexp(dim=1).sum(), used, allow_unused=True)
    return [grad for grad in grads if grad is not None]


@three_libraries
@every_spec
def test_compiled_forward_and_backward_equal_eager_ones_without_a_graph_break(name: str, spec: str) -> None:
    torch.compiler.reset()
    vit, reducer = navia.load(shake(SHALLOW[name]())), parse(spec)
    images = images_for(vit)

    def logits(images: Tensor) -> Tensor:
        return forward(vit, images, reducer).logits

    compiled = torch.compile(logits, fullgraph=True, backend="aot_eager")(images)
    eager = logits(images)
    assert relative(compiled, eager) <= 1e-5
    ours, theirs = _gradients(compiled, vit), _gradients(eager, vit)
    assert len(ours) == len(theirs)
    assert all((a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-6 for a, b in zip(ours, theirs, strict=True))


@every_spec
def test_dynamo_sees_one_graph_even_with_everything_asked_for(spec: str) -> None:
    torch.compiler.reset()
    vit, reducer = navia.load(shake(SHALLOW["timm plain"]())), parse(spec)
    touch = TokenEdits(cls_shift=torch.ones(48), cls_bias={0: torch.ones(48)}, prompts=torch.ones(2, 48))

    def everything(images: Tensor) -> Any:
        output = forward(vit, images, reducer, edits=touch, features=True, keys=True, attention=True, trace=True)
        return output.logits, output.features, output.tokens.sources

    explained = torch._dynamo.explain(everything)(images_for(vit))
    assert explained.graph_break_count == 0
    assert explained.graph_count == 1


def test_calling_the_compiled_vit_checks_its_input_and_runs() -> None:
    torch.compiler.reset()
    vit = navia.load(shake(SHALLOW["timm plain"]()))
    images = images_for(vit)
    compiled = torch.compile(vit, backend="aot_eager")
    assert relative(compiled(images, reduce="tome:3"), vit(images, reduce="tome:3")) <= 1e-5
    with pytest.raises(navia.NaviaError, match="takes images of 32x32 px"):
        compiled(torch.zeros(1, 3, 40, 40))


@pytest.mark.parametrize("method", ["tent", "navia"])
def test_a_compiled_stream_gives_the_answers_of_an_eager_one(method: str) -> None:
    torch.compiler.reset()
    vit = navia.load(shake(SHALLOW["timm plain"]()))
    batches = [images_for(vit, 8) + 0.1 * i for i in range(3)]
    source = navia.SourceStatistics.measure(vit, batches[0], "tome:2")
    eager = navia.adapt(vit, method, "tome:2", source)
    answers = [eager(batch) for batch in batches]
    vit.compile_backend = "aot_eager"
    adapter = navia.adapt(vit, method, "tome:2", source)
    for batch, answer in zip(batches, answers, strict=True):
        assert relative(adapter(batch), answer) <= 1e-5


@pytest.mark.parametrize("spec", ["none", "tome:3"])
def test_a_model_loaded_for_bfloat16_adapts_in_single_precision(spec: str) -> None:
    """Products are rounded, parameters and answers are not; the answers stay near."""
    plain = build("timm plain")
    mixed = navia.load(plain.model, precision="bfloat16", grad_checkpointing=True)
    assert mixed.grad_checkpointing
    images = images_for(plain, 8)
    adapter = navia.adapt(mixed, "tent", spec)
    logits = adapter(images)
    assert logits.dtype == torch.float32
    assert adapter.last is not None
    assert adapter.last.kept == 8
    assert all(p.dtype == torch.float32 for p in adapter.method.parameters.values())
    assert not torch.equal(logits, plain(images, reduce=spec))
    if spec == "none":
        assert relative(logits, plain(images)) < 5e-2


@three_libraries
@every_spec
def test_autocast_to_bfloat16_runs_forward_and_backward(name: str, spec: str) -> None:
    vit = build(name)
    images = images_for(vit)
    with torch.autocast("cpu", torch.bfloat16):
        logits = forward(vit, images, parse(spec)).logits
    assert logits.shape == (3, 11)
    assert logits.isfinite().all()
    assert all(grad.isfinite().all() for grad in _gradients(logits.float(), vit))
    if spec == "none":  # reducers may choose other tokens after rounding
        assert relative(logits.float(), forward(vit, images).logits) < 5e-2


@three_libraries
@every_spec
def test_double_precision_is_kept_throughout(name: str, spec: str) -> None:
    single, double = build(name), build(name).double()
    images = images_for(single)
    logits = double(images, reduce=spec)
    assert logits.dtype == torch.float64
    assert relative(single(images, reduce=spec).double(), logits) <= 1e-5


@three_libraries
@every_spec
def test_bfloat16_model_takes_float32_images(name: str, spec: str) -> None:
    vit = build(name)
    images = images_for(vit)
    reference = vit(images, reduce=spec)
    logits = vit.to(torch.bfloat16)(images, reduce=spec)
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    if spec == "none":
        assert relative(logits.float(), reference) < 5e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@every_spec
def test_float32_touch_on_a_model_of_another_dtype(spec: str, dtype: torch.dtype) -> None:
    """Adaptation keeps its small vectors in single precision whatever the model is in."""
    vit = build("timm plain").to(dtype)
    vectors = [torch.full(size, 0.1, requires_grad=True) for size in ((48,), (48,), (48,), (2, 48))]
    touch = TokenEdits(cls_shift=vectors[0], cls_bias={1: vectors[1]}, head_shift=vectors[2], prompts=vectors[3])
    logits = forward(vit, images_for(vit), parse(spec), edits=touch).logits
    assert logits.dtype == dtype
    logits.sum().backward()
    for vector in vectors:
        assert vector.grad is not None
        assert vector.grad.dtype == torch.float32
        assert vector.grad.abs().max() > 0


@pytest.mark.parametrize("name", MODELS)
def test_copies_and_pickles_give_equal_outputs(name: str) -> None:
    vit = build(name)
    images = images_for(vit)
    stream = io.BytesIO()
    torch.save(vit, stream)
    stream.seek(0)
    for other in (copy.deepcopy(vit), pickle.loads(pickle.dumps(vit)), torch.load(stream, weights_only=False)):
        assert other.model is not vit.model
        assert other.preprocessing == vit.preprocessing
        assert torch.equal(other(images, reduce="tome:3"), vit(images, reduce="tome:3"))


def test_a_deep_copy_shares_nothing() -> None:
    vit = build("timm plain")
    images = images_for(vit)
    before = vit(images)
    other = copy.deepcopy(vit)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(vit(images), before)


RANDOM: dict[str, tuple[str, dict[str, Any]]] = {
    "timm drop path": ("timm", {"drop_path_rate": 0.5}),
    "timm attention dropout": ("timm", {"attn_drop_rate": 0.5}),
    "timm projection dropout": ("timm", {"proj_drop_rate": 0.5}),
    "timm position dropout": ("timm", {"pos_drop_rate": 0.5}),
    "timm head dropout": ("timm", {"drop_rate": 0.5}),
    "timm patch dropout": ("timm", {"patch_drop_rate": 0.5}),
    "transformers attention dropout": ("transformers", {"attention_probs_dropout_prob": 0.5}),
    "transformers hidden dropout": ("transformers", {"hidden_dropout_prob": 0.5}),
    "torchvision attention dropout": ("torchvision", {"attention_dropout": 0.5}),
    "torchvision dropout": ("torchvision", {"dropout": 0.5}),
}


def _random(library: str, options: dict[str, Any]) -> nn.Module:
    if library == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(img_size=32, patch_size=8, num_classes=11, embed_dim=48, depth=4, num_heads=3, **options)
    if library == "transformers":
        import transformers

        sizes = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 96}
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=11, **options)
        return transformers.ViTForImageClassification(config)
    from torchvision.models import VisionTransformer as TorchvisionViT

    return TorchvisionViT(32, 8, 4, 3, 48, 96, num_classes=11, **options)


@pytest.mark.parametrize("what", RANDOM)
@pytest.mark.parametrize("spec", ["none", "tome:2"])
def test_training_mode_is_random_and_evaluation_is_not(what: str, spec: str) -> None:
    vit = navia.load(shake(_random(*RANDOM[what])))
    images = images_for(vit)
    assert torch.equal(vit(images, reduce=spec), vit(images, reduce=spec))
    vit.train()
    first, second = vit(images, reduce=spec), vit(images, reduce=spec)
    assert not torch.equal(first, second)
    first.sum().backward()  # what was dropped does not upset the backward pass
    assert vit.cls_token.grad is not None
    assert vit.cls_token.grad.isfinite().all()


def test_replaced_parts_are_honoured() -> None:
    vit: Any = build("timm plain")
    images = images_for(vit)
    vit.model.head = shake(nn.Linear(48, 4))
    assert vit.num_classes == 4
    assert vit(images).shape == (3, 4)
    assert relative(vit(images), vit.model(images)) <= 1e-5
    before = vit(images)
    vit.model.blocks[2].mlp = shake(nn.Sequential(nn.Linear(48, 20), nn.Tanh(), nn.Linear(20, 48)), seed=3)
    assert relative(vit(images), vit.model(images)) <= 1e-5
    assert relative(vit(images), before) > 1e-3
    del vit.model.blocks[3]
    assert vit.depth == 3
    assert relative(vit(images), vit.model(images)) <= 1e-5


def test_parts_whose_output_their_backward_reads_keep_their_gradients() -> None:
    """The residual sum does not overwrite what a replaced part still needs."""
    vit: Any = build("timm plain")
    vit.model.blocks[1].mlp = nn.Sequential(vit.model.blocks[1].mlp, nn.Tanh())
    vit.model.blocks[2].attn.proj = nn.Identity()
    images = images_for(vit)
    ours = _gradients(vit(images), vit)
    theirs = _gradients(vit.model(images), vit)
    assert all((a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-6 for a, b in zip(ours, theirs, strict=True))


def test_forward_hooks_see_what_a_part_put_out() -> None:
    """And go on seeing it after the residual sum."""
    vit: Any = build("timm plain")
    seen: list[Tensor] = []
    handle = vit.model.blocks[1].mlp.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad():
        vit(images_for(vit))
        vit.model(images_for(vit))
    handle.remove()
    assert relative(seen[0], seen[1]) <= 1e-5


def test_inference_mode_and_no_grad_leave_no_graph() -> None:
    vit = build("timm plain")
    images = images_for(vit)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not vit(images, reduce="tome:3").requires_grad
    assert vit(images, reduce="tome:3").requires_grad


@needs_cuda
@three_libraries
@every_spec
def test_cuda_equals_cpu(name: str, spec: str) -> None:
    vit = build(name)
    images = images_for(vit)
    reference = vit(images, reduce=spec)
    assert relative(vit.cuda()(images.cuda(), reduce=spec).cpu(), reference) <= 1e-4


@needs_cuda
def test_cuda_model_refuses_cpu_images() -> None:
    with pytest.raises(navia.NaviaError, match="images are on cpu"):
        build("timm plain").cuda()(torch.zeros(1, 3, 32, 32))
