"""The counted matrix products of a call are those that PyTorch's own counter finds in the real call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

import navia
from cases import Case, Setting, load, passes_of, runner
from navia.models.forward import forward
from navia.reduction import NoReduction, parse
from roofline import BareGemms, Gemm, Passes, Work, bare_product, roofline, work_of
from tests.families import MODELS, THREE, build, images_for

BATCH = 8


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_back(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# The counter does not know the fused CPU kernel; its products are those of the other fused kernels.
FUSED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_back,
}


def counted(call: Callable[[], object]) -> int:
    """Multiply-accumulates counted by PyTorch in a real call: matrix products and convolutions."""
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        call()
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


# ---- forward


@pytest.mark.parametrize("name", ["timm plain", "timm deit distilled"])
def test_full_dense_forward_has_the_products_of_the_library(name: str) -> None:
    vit = build(name)
    with torch.no_grad():
        expected = counted(lambda: vit.model(images_for(vit, BATCH)))
    assert work_of(vit, NoReduction(), BATCH, Passes(full_last_block=True)).macs == expected


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3", "evit:2,fuse=false", "tofu:3", "tome:[0,2,1]", "evit:1000"])
@pytest.mark.parametrize("name", THREE)
def test_forward_counts_the_computed_rows(name: str, spec: str) -> None:
    vit, reducer = build(name), parse(spec)
    with torch.no_grad():
        expected = counted(lambda: forward(vit, images_for(vit, BATCH), reducer))
    work = work_of(vit, reducer, BATCH, Passes())
    assert work.macs == expected
    assert work.macs < work_of(vit, reducer, BATCH, Passes(full_last_block=True)).macs


@pytest.mark.parametrize("name", MODELS)
def test_matrices_of_every_family_are_in_the_assumed_order(name: str) -> None:
    vit = build(name)
    with torch.no_grad():
        expected = counted(lambda: forward(vit, images_for(vit, BATCH)))
    assert work_of(vit, NoReduction(), BATCH, Passes()).macs == expected


# ---- steps


@pytest.fixture(scope="module")
def embedded() -> navia.ViT:
    return load(Setting("embedded", BATCH))


METHODS = ["none", "tent", "sar", "eata", "deyo", "cotta", "align", "foa_bp", "navia", "foa"]


def step_counts(vit: navia.ViT, case: Case) -> tuple[int, int]:
    """Products of a step with an update: counted by PyTorch, and by us."""
    made = runner(vit, case)
    images = torch.randn(BATCH, vit.in_chans, *vit.preprocessing.size)
    made(images)
    found = counted(lambda: made(images))
    assert made.adapter is None or made.adapter.last is None or made.adapter.last.guard is None
    return found, work_of(vit, parse(case.reduce), BATCH, passes_of(vit, case)).macs


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_step_counts_the_passes_of_its_method(embedded: navia.ViT, method: str) -> None:
    found, ours = step_counts(embedded, Case("step", method, "tome:16"))
    assert found == ours


@pytest.mark.parametrize("reduce", ["none", "evit:16", "evit:16,fuse=false", "tofu:16", "tofu:16,compat=true"])
def test_step_counts_the_tokens_left_by_its_reducer(embedded: navia.ViT, reduce: str) -> None:
    found, ours = step_counts(embedded, Case("step", "align", reduce))
    assert found == ours


def test_step_of_the_library_computes_every_row(embedded: navia.ViT) -> None:
    found, ours = step_counts(embedded, Case("step", "timm", "none"))
    assert found == ours
    assert ours > step_counts(embedded, Case("step", "tent", "none"))[1]


# ---- arithmetic


def test_work_adds_up() -> None:
    first, second = Gemm(2, 3, 4, "forward"), Gemm(5, 6, 7, "inputs")
    work = Work({first: 1}, 10) + Work({first: 2, second: 1}, 1)
    assert work.gemms == {first: 3, second: 1}
    assert work.macs == 3 * 24 + 210 + 11
    assert work.times(2).macs == 2 * work.macs
    assert work.times(0).macs == 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["forward", "inputs", "weights"])
def test_bare_products_have_the_shape_of_their_kind(kind: Any, precision: str) -> None:
    made = bare_product(Gemm(3, 4, 5, kind), precision)()
    assert isinstance(made, torch.Tensor)
    assert made.shape == (3, 5)
    assert made.dtype == (torch.float32 if precision == "float32" else torch.bfloat16)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_share_is_bound_over_measured(precision: str) -> None:
    work = Work({Gemm(64, 64, 64, "forward"): 2}, other=1000)
    bare = BareGemms([(work, precision)])
    for _ in range(3):
        bare.round()
    found = roofline(work, 4 * bare.seconds(work, precision), bare, precision)
    assert found.share == pytest.approx(0.25)
    assert found.gflops == pytest.approx(found.gflops_bare / 4)
