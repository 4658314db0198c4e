"""Costs: the figures of the paper's table, and a count that agrees with PyTorch's own counter to the last product."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import navia
from navia.errors import InputError, SpecError
from navia.evaluation import latency
from navia.evaluation.cost import count_macs, token_counts
from navia.models.forward import TokenEdits, forward
from navia.reduction import Reducer, parse
from tests.families import MODELS, THREE, build, images_for


@pytest.fixture(scope="module")
def base() -> navia.ViT:
    """ViT-B/16 without weights: costs need none."""
    with torch.device("meta"):
        return navia.load("timm:vit_base_patch16_224", pretrained=False)


# ---- figures of methods and papers


@pytest.mark.parametrize(
    ("spec", "gmacs"), [("none", 17.58), ("tome:4", 15.34), ("tome:8", 13.12), ("tofu:4", 15.34), ("tofu:8", 13.12)]
)
def test_consistent_gmacs_of_vit_b(base: navia.ViT, spec: str, gmacs: float) -> None:
    assert navia.cost(base, reduce=spec).gmacs == pytest.approx(gmacs, abs=0.01)


@pytest.mark.parametrize(
    ("spec", "gmacs"),
    [
        ("none", 15.71),
        ("tome:4", 14.29),
        ("tome:8", 12.22),
        ("tofu:4", 14.29),
        ("tofu:8", 12.22),
        ("evit:4", 14.80),
        ("evit:8", 12.73),
    ],
)
def test_gmacs_of_vit_b_by_the_papers_convention(base: navia.ViT, spec: str, gmacs: float) -> None:
    assert navia.cost(base, reduce=spec).gmacs_paper == pytest.approx(gmacs, abs=0.01)


def test_foa_by_the_papers_convention(base: navia.ViT) -> None:
    foa = navia.cost(base, forwards=28, prompts=3)
    assert foa.gmacs_paper == pytest.approx(446.49, abs=0.01)
    assert foa.tokens == (200,) * 13
    assert navia.cost(base, forwards=2).gmacs_paper == pytest.approx(31.42, abs=0.01)


def test_cost_tells_what_it_counted(base: navia.ViT) -> None:
    found = navia.cost(base, reduce="tome:8")
    assert found.reduce == "tome:8"
    assert "vit_base_patch16_224" in found.model
    assert found.parameters == 86_567_656
    assert found.timing is None
    assert found.tokens == tuple(range(197, 100, -8))
    assert sum(found.macs.values()) == pytest.approx(found.gmacs * 1e9)
    assert json.loads(json.dumps(found.as_dict()))["tokens"] == list(found.tokens)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("navia", {"budget": 1}),
        ("navia", {"biases": False}),
        ("navia", {"token": "new", "layers": [3]}),
        ("foa", {"prompts": 5, "population": 4}),
        ("deyo", {"layers": "early"}),
    ],
)
def test_options_of_a_method_are_counted(method: str, options: dict[str, Any]) -> None:
    """As a real adapter with them has it: so many numbers that move, so many tokens that enter."""
    vit = build("timm plain")
    found, usual = navia.cost(vit, "tome:2", method=method, options=options), navia.cost(vit, "tome:2", method=method)
    source = navia.SourceStatistics.measure(vit, images_for(vit, 8), "tome:2")
    adapter = navia.adapt(vit, method, "tome:2", source, guard=False, **options)
    moving = adapter.trainable + adapter.method.memory.get("prompts", torch.zeros(0)).numel()
    assert found.trainable == moving != usual.trainable
    assert found.tokens == adapter.method.forward(images_for(vit, 2)).counts


def test_options_that_a_method_lacks_are_refused(base: navia.ViT) -> None:
    with pytest.raises(SpecError, match="method 'tent' has no option 'budget'"):
        navia.cost(base, method="tent", options={"budget": 2})


# ---- against PyTorch's counter


def _fused_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


# The counter does not know the CPU's fused kernel; its flops are those of the other fused kernels.
FUSED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention}


def counted(vit: navia.ViT, reducer: Reducer, prompts: int = 0, batch: int = 2) -> int:
    """Multiply-accumulates per image that PyTorch sees in a real forward: matrix products and convolutions. Traced, so that
    the last block keeps the rows that no classifier reads: the count is of the whole model, as everybody's."""
    touch = TokenEdits(prompts=torch.zeros(prompts, vit.embed_dim)) if prompts else None
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        forward(vit, images_for(vit, batch), reducer, edits=touch, trace=True)
    assert counter.get_total_flops() % (2 * batch) == 0
    return counter.get_total_flops() // (2 * batch)


def uncounted(vit: navia.ViT, reducer: Reducer, tokens: tuple[int, ...]) -> int:
    """Weighted sums that PyTorch counts as products and the cost leaves out: EViT's fused token is a sum over the r
    that go, and a pooled mean of merged tokens one over those that are left."""
    total = 0
    if reducer.needs_cls_attention and getattr(reducer, "fuse", False):
        total += sum(reducer.tokens_per_block(vit.depth)) * vit.embed_dim
    if "dinov2" in type(vit.model).__name__.lower() and reducer.needs_keys:
        total += (tokens[-1] - vit.num_prefix_tokens) * vit.embed_dim
    return total


@pytest.mark.parametrize("spec", ["none", "tome:3", "evit:3", "evit:2,fuse=false", "tofu:3", "tome:[0,2,1]"])
@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_pytorch_counts(name: str, spec: str) -> None:
    """Exactly, on every family: all parts but the norms, whose 5 operations per element are a convention."""
    vit, reducer = build(name), parse(spec)
    tokens = token_counts(vit, reducer)
    macs = count_macs(vit, reducer, tokens, vit.num_prefix_tokens)
    ours = sum(macs.values()) - macs["norms"]
    expected = counted(vit, reducer) - uncounted(vit, reducer, tokens)
    assert ours == expected


@pytest.mark.parametrize("name", THREE)
def test_products_with_prompts_are_those_that_pytorch_counts(name: str) -> None:
    vit, reducer = build(name), parse("tome:3")
    macs = count_macs(vit, reducer, token_counts(vit, reducer, prompts=3), vit.num_prefix_tokens + 3)
    assert sum(macs.values()) - macs["norms"] == counted(vit, reducer, prompts=3)


@pytest.mark.parametrize("spec", ["none", "tome:3", "tome:1000", "evit:3", "evit:1000,fuse=false", "tofu:3", "tome:[5,0,5]"])
@pytest.mark.parametrize("prompts", [0, 2])
def test_token_counts_are_those_of_a_real_run(spec: str, prompts: int) -> None:
    for name in THREE:
        vit, reducer = build(name), parse(spec)
        touch = TokenEdits(prompts=torch.zeros(prompts, vit.embed_dim)) if prompts else None
        with torch.no_grad():
            assert forward(vit, images_for(vit), reducer, edits=touch).counts == token_counts(vit, reducer, prompts)


def test_reduction_makes_it_cheaper_and_amounts_of_zero_do_not() -> None:
    vit = build("timm plain")
    dense = navia.cost(vit)
    for name in ("tome", "evit", "tofu"):
        assert navia.cost(vit, reduce=f"{name}:3").gmacs < dense.gmacs
        assert navia.cost(vit, reduce=f"{name}:0").gmacs == dense.gmacs


# ---- measuring and refusing


@pytest.mark.parametrize("rounds", [1, 3])
def test_measured_costs_come_with_a_timing(rounds: int) -> None:
    timing = navia.cost(build("timm plain"), reduce="tome:3", measure=True, batch_size=2, rounds=rounds).timing
    assert timing is not None
    assert (timing.batch, timing.rounds) == (2, rounds)
    assert 0 < timing.low <= timing.ms_per_image <= timing.high
    assert timing.peak_mib >= 0


def test_the_timing_of_a_cost_is_that_of_its_method_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    vit, steps = build("timm plain"), []
    usual = latency.measure_steps

    def measured(vit: navia.ViT, runs: Any, batch_size: int, rounds: int) -> Any:
        steps.extend(runs)
        return usual(vit, runs, batch_size, rounds)

    monkeypatch.setattr("navia.evaluation.cost.measure_steps", measured)
    found = navia.cost(vit, "tome:2", method="navia", options={"budget": 1}, measure=True, batch_size=8, rounds=1)
    assert steps == [("navia", {"budget": 1}, parse("tome:2"))]
    assert found.timing is not None
    assert found.timing.updated
    assert json.loads(json.dumps(found.as_dict()))["timing"]["of_dense_step"] > 0


def test_peak_memory_sees_a_large_allocation() -> None:
    """In a process of its own: in this one, memory that earlier tests gave back may serve again unseen."""
    code = "import torch; from navia.evaluation import latency; kept = []; grow = lambda: kept.append(torch.ones(64, 2**18))"
    program = f"{code}; print(latency.peak_memory(grow, torch.device('cpu')))"  # 64 MiB
    peak = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert 50 < peak < 200


def test_the_systems_count_of_memory_is_read_in_its_own_unit() -> None:
    """KiB on Linux, bytes on macOS."""
    assert latency.maxrss_mib(2048, "linux") == 2
    assert latency.maxrss_mib(2**21, "darwin") == 2


@pytest.mark.parametrize("options", [{"forwards": 0}, {"prompts": -1}, {"batch_size": 0}, {"rounds": 0}])
def test_impossible_numbers_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least 1, prompts at least 0"):
        navia.cost(build("timm plain"), **options)


def test_reducers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="5 amounts given, but the model has 4 blocks"):
        navia.cost(build("timm plain"), reduce="tome:[1,1,1,1,1]")
    with pytest.raises(SpecError, match="unknown reducer"):
        navia.cost(build("timm plain"), reduce="nosuch:2")
