"""The one forward gives what each library's own forward gives, values and gradients, and every reducer runs on it."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import navia
from navia.evaluation.cost import token_counts
from navia.models.forward import forward
from navia.reduction import parse
from tests.families import MODELS, build, images_for, own_forward, relative, shake

IDLE = ("none", "tome:0", "evit:0", "tofu:0")
ACTIVE = ("tome:3", "tome:3,proportional=false", "evit:3", "evit:3,fuse=false", "tofu:3", "tofu:3,compat=true")

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@pytest.mark.parametrize("batch", [1, 3])
def test_without_reduction_logits_are_the_librarys_own(name: str, batch: int) -> None:
    vit = build(name)
    images = images_for(vit, batch)
    with torch.no_grad():
        theirs = own_forward(vit, images)
        assert theirs.shape == (batch, 11)
        for spec in IDLE:
            assert relative(vit(images, reduce=spec), theirs) <= 1e-5, spec


def _gradients(vit: navia.ViT, logits: torch.Tensor) -> dict[str, torch.Tensor | None]:
    vit.zero_grad(set_to_none=True)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    (logits * weights).sum().backward()
    return {key: None if p.grad is None else p.grad.clone() for key, p in vit.named_parameters()}


@every_model
def test_without_reduction_gradients_are_the_librarys_own(name: str) -> None:
    """Of all parameters; those that the library leaves without a gradient (mask tokens) stay without one."""
    vit = build(name)
    images = images_for(vit)
    theirs = _gradients(vit, own_forward(vit, images))
    assert sum(grad is not None for grad in theirs.values()) > 40
    for spec in IDLE:
        ours = _gradients(vit, vit(images, reduce=spec))
        for key, grad in theirs.items():
            if grad is None:
                assert ours[key] is None, key
            else:
                assert ours[key] is not None, key
                # key biases cancel in the softmax: their true gradient is zero and what is left is rounding
                assert (ours[key] - grad).abs().max() <= 1e-4 * grad.abs().max() + 1e-6, key


@every_model
@pytest.mark.parametrize("spec", ACTIVE)
def test_every_reducer_runs_on_every_family(name: str, spec: str) -> None:
    vit, reducer = build(name), parse(spec)
    images = images_for(vit)
    with torch.no_grad():
        output = forward(vit, images, reducer, trace=True)
        dense = vit(images)
    assert output.logits.shape == (3, 11)
    assert output.logits.isfinite().all()
    assert relative(output.logits, dense) > 1e-4  # the tokens that went are missed
    assert output.counts == token_counts(vit, reducer)
    assert output.counts[-1] < output.counts[0]
    assert output.tokens.length == output.counts[-1]
    assert output.tokens.num_prefix_tokens == vit.num_prefix_tokens
    assert output.tokens.sources is not None
    front = torch.arange(vit.num_prefix_tokens).expand(3, -1)
    assert torch.equal(output.tokens.sources[:, : vit.num_prefix_tokens], front)
    if output.tokens.sizes is not None:
        assert (output.tokens.sizes[:, : vit.num_prefix_tokens] == 1).all()
    behind = output.tokens.sources[:, vit.num_prefix_tokens :]
    assert ((behind == -1) | (behind >= vit.num_prefix_tokens)).all()  # no image token ends in a prefix row


@pytest.mark.parametrize("registers", [0, 1, 2])
@pytest.mark.parametrize("spec", ["tome:1000", "evit:1000", "evit:1000,fuse=false", "tofu:1000"])
def test_asking_for_too_much_leaves_the_prefix_and_an_image_token(registers: int, spec: str) -> None:
    """Also when blocks remain that have nothing left to reduce."""
    model = VisionTransformer(
        img_size=32, patch_size=8, num_classes=11, embed_dim=48, depth=7, num_heads=3, reg_tokens=registers
    )
    vit, reducer = navia.load(shake(model)), parse(spec)
    with torch.no_grad():
        output = forward(vit, images_for(vit), reducer, trace=True)
    assert output.logits.isfinite().all()
    assert output.counts == token_counts(vit, reducer)
    assert output.tokens.num_prefix_tokens == 1 + registers
    assert output.tokens.num_image_tokens == (2 if spec == "evit:1000" else 1)
