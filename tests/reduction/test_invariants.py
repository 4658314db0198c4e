"""What holds for every reducer on any shape: nothing is lost, nobody is doubled, the prefix is left alone."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import navia
from navia.evaluation.cost import token_counts
from navia.reduction import REDUCERS, AttentionInfo, EViT, NoReduction, Reducer, ToFu, Tokens, ToMe, parse
from navia.reduction.base import tokens_per_block
from navia.reduction.matching import match

examples = settings(max_examples=40)

shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "image": st.integers(1, 40),
        "prefix": st.integers(0, 5),
        "dim": st.integers(1, 6),
        "r": st.integers(0, 50),
        "seed": st.integers(0, 10_000),
    }
)
reducers = st.sampled_from(
    [
        ToMe(),
        ToMe(proportional=False),
        EViT(),
        EViT(fuse=False),
        ToFu(split=0),
        ToFu(split=9),
        ToFu(split=0, compat=True),
    ]
)
merging = st.sampled_from([ToMe(), ToFu(split=0), ToFu(split=0, compat=True)])


def sample(shape: dict[str, int], dtype: torch.dtype = torch.float64) -> tuple[Tokens, AttentionInfo]:
    """Traced random tokens and what a block's attention would show of them."""
    generator = torch.Generator().manual_seed(shape["seed"])
    batch, count = shape["batch"], shape["prefix"] + shape["image"]
    values = torch.randn(batch, count, shape["dim"], generator=generator, dtype=dtype)
    keys = torch.randn(batch, count, 4, generator=generator)
    attention = torch.randn(batch, count, generator=generator, dtype=dtype).softmax(dim=1)
    return Tokens(values, shape["prefix"]).with_sources(), AttentionInfo(keys, attention)


def step(reducer: Reducer, tokens: Tokens, r: int, seen: AttentionInfo) -> Tokens:
    """As the forward does: a block without an amount does not call the reducer."""
    return reducer.apply(tokens, r, seen, layer=2, depth=4) if r else tokens


@examples
@given(shapes, reducers)
def test_counts_are_the_reducers_own_arithmetic(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    out = step(reducer, tokens, shape["r"], seen)
    expected = reducer.num_remaining(shape["image"], shape["r"]) if shape["r"] else shape["image"]
    assert out.num_image_tokens == expected
    assert out.values.shape == (shape["batch"], shape["prefix"] + expected, shape["dim"])
    assert out.values.isfinite().all()
    assert 1 <= out.num_image_tokens <= shape["image"]


@examples
@given(shapes, reducers)
def test_the_prefix_stays_in_place_and_unchanged(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    out = step(reducer, tokens, shape["r"], seen)
    prefix = shape["prefix"]
    assert out.num_prefix_tokens == prefix
    assert torch.allclose(out.values[:, :prefix], tokens.values[:, :prefix], rtol=1e-12)
    assert out.sources is not None
    assert torch.equal(out.sources[:, :prefix], torch.arange(prefix).expand(shape["batch"], -1))
    if out.sizes is not None:
        assert (out.sizes[:, :prefix] == 1).all()


@examples
@given(shapes, reducers)
def test_sources_reach_every_row_that_is_left(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    out = step(reducer, tokens, shape["r"], seen)
    assert out.sources is not None
    for row in out.sources:
        assert set(row.tolist()) - {-1} == set(range(out.length))
    drops = reducer in (EViT(fuse=False), ToFu(split=9))
    lost = (out.sources == -1).sum(dim=1)
    assert (lost == (shape["image"] - out.num_image_tokens if drops else 0)).all()


@examples
@given(shapes, merging, st.integers(1, 3))
def test_sizes_always_add_up_to_the_tokens_at_the_start(shape: dict[str, int], reducer: Reducer, rounds: int) -> None:
    tokens, _ = sample(shape)
    start = tokens.length
    for turn in range(rounds):
        keys = torch.randn(shape["batch"], tokens.length, 4, generator=torch.Generator().manual_seed(turn))
        tokens = step(reducer, tokens, shape["r"], AttentionInfo(keys))
    if shape["r"]:
        assert tokens.sizes is not None
        assert (tokens.sizes.sum(dim=1) == start).all()
        assert tokens.sources is not None
        counted = torch.zeros_like(tokens.sizes).scatter_add_(1, tokens.sources, torch.ones(tokens.sources.shape))
        assert torch.equal(tokens.sizes, counted)


@examples
@given(shapes, st.booleans())
def test_tome_keeps_the_weighted_mean_of_all_tokens(shape: dict[str, int], sized: bool) -> None:
    tokens, seen = sample(shape)
    if sized:
        tokens = tokens._replace(sizes=torch.randint(1, 5, tokens.values.shape[:2]).double())
    out = step(ToMe(), tokens, shape["r"], seen)

    def total(tokens: Tokens) -> Tensor:
        sizes = torch.ones(tokens.values.shape[:2]) if tokens.sizes is None else tokens.sizes
        return (tokens.values * sizes.unsqueeze(-1)).sum(dim=1)

    assert torch.allclose(total(out), total(tokens), rtol=1e-5, atol=1e-5)  # sizes are shared out in single precision
    prefix = shape["prefix"]
    image = Tokens(tokens.values, prefix, tokens.sizes).image_mean()
    assert torch.allclose(out.image_mean(), image, rtol=1e-5, atol=1e-5)


@examples
@given(shapes)
def test_tofu_gives_merged_rows_the_largest_norm_of_their_members(shape: dict[str, int]) -> None:
    tokens, seen = sample(shape)
    merged, mean = (step(reducer, tokens, shape["r"], seen) for reducer in (ToFu(split=0), ToMe()))
    assert merged.sources is not None
    norms = tokens.values.norm(dim=-1)
    largest = torch.zeros(merged.values.shape[:2], dtype=norms.dtype).scatter_reduce(1, merged.sources, norms, "amax")
    assert torch.allclose(merged.values.norm(dim=-1), largest)
    # and the direction of the mean
    cosine = torch.nn.functional.cosine_similarity(merged.values, mean.values, dim=-1)
    assert torch.allclose(cosine, torch.ones_like(cosine))


@examples
@given(shapes)
def test_tofu_compat_has_equal_values(shape: dict[str, int]) -> None:
    tokens, seen = sample(shape)
    ours, compat = (step(ToFu(split=0, compat=compat), tokens, shape["r"], seen) for compat in (False, True))
    assert torch.allclose(ours.values, compat.values, rtol=1e-10)


def test_tofu_compat_takes_the_radial_gradient_from_every_row() -> None:
    """The CLS row included, as in the reference implementation; by default only merged rows lose it."""
    tokens, seen = sample({"batch": 2, "image": 12, "prefix": 1, "dim": 5, "r": 3, "seed": 0})
    for compat in (False, True):
        values = tokens.values.clone().requires_grad_()
        out = ToFu(split=0, compat=compat).apply(tokens._replace(values=values), 3, seen, 2, 4)
        out.values[:, 0].square().sum().backward()
        assert values.grad is not None
        along = (values.grad[:, 0] * values[:, 0]).sum(dim=-1)
        assert torch.allclose(along, torch.zeros(2, dtype=along.dtype) if compat else 2 * values[:, 0].square().sum(dim=-1))


@pytest.mark.parametrize("compat", [False, True])
def test_tofu_of_opposite_or_zero_tokens_stays_finite(compat: bool) -> None:
    """Their mean is zero and has no direction."""
    keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    for pair in ([[1.0, 2.0], [-1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]):
        values = torch.tensor([[[3.0, 4.0], *pair]], requires_grad=True)
        out = ToFu(split=0, compat=compat).apply(Tokens(values, 1), 1, AttentionInfo(keys), 0, 2)
        assert out.values.isfinite().all()
        out.values.sum().backward()
        assert values.grad is not None
        assert values.grad.isfinite().all()


@examples
@given(shapes)
def test_evit_fused_token_is_the_sum_weighted_by_attention(shape: dict[str, int]) -> None:
    tokens, seen = sample(shape)
    r = min(shape["r"], shape["image"] - 1)
    out = step(EViT(), tokens, shape["r"], seen)
    assert out.sizes is None
    if r == 0:
        assert torch.equal(out.values, tokens.values)
        return
    assert seen.cls_attention is not None
    for sample_out, values, weights in zip(out.values, tokens.values, seen.cls_attention, strict=True):
        ranked = sorted(range(shape["prefix"], tokens.length), key=lambda row: -weights[row].item())
        stay, go = ranked[:-r], ranked[-r:]
        assert torch.equal(sample_out[shape["prefix"] : -1], values[stay])  # most attended first
        assert torch.allclose(sample_out[-1], sum(weights[row] * values[row] for row in go))


@examples
@given(shapes, merging)
def test_merging_identical_tokens_changes_nothing(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    same = tokens.values[:, -1:].expand_as(tokens.values)
    out = step(reducer, tokens._replace(values=same), shape["r"], seen)
    assert torch.allclose(out.values, same[:, : out.length], rtol=1e-6)


@examples
@given(shapes, reducers)
def test_samples_do_not_see_each_other(shape: dict[str, int], reducer: Reducer) -> None:
    """Permuting the batch permutes the result, and a batch of one gives the same row."""
    tokens, seen = sample(shape)
    order = torch.randperm(shape["batch"], generator=torch.Generator().manual_seed(shape["seed"]))

    def picked(rows: Tensor) -> Tokens:
        assert tokens.sources is not None
        assert seen.keys is not None
        assert seen.cls_attention is not None
        part = tokens._replace(values=tokens.values[rows], sources=tokens.sources[rows])
        return step(reducer, part, shape["r"], AttentionInfo(seen.keys[rows], seen.cls_attention[rows]))

    whole = step(reducer, tokens, shape["r"], seen)
    assert torch.allclose(picked(order).values, whole.values[order], rtol=1e-10)
    alone = picked(torch.tensor([shape["batch"] - 1]))
    assert torch.allclose(alone.values, whole.values[-1:], rtol=1e-10)
    assert whole.sources is not None
    assert alone.sources is not None
    assert torch.equal(alone.sources, whole.sources[-1:])


@examples
@given(shapes)
def test_matching_partitions_the_rows(shape: dict[str, int]) -> None:
    _, seen = sample(shape)
    assert seen.keys is not None
    kept, removed, into = match(seen.keys, shape["r"], shape["prefix"])
    count = shape["prefix"] + shape["image"]
    assert removed.shape[1] == min(shape["r"], shape["image"] // 2)
    for stay, go, target in zip(kept.tolist(), removed.tolist(), into.tolist(), strict=True):
        assert sorted(stay + go) == list(range(count))
        assert all(row >= shape["prefix"] for row in go)
        assert all(shape["prefix"] <= row < len(stay) for row in target)
        assert all(stay[row] % 2 != gone % 2 for row, gone in zip(target, go, strict=True))  # from A into B


@examples
@given(shapes, reducers)
def test_steps_do_not_write_to_their_input(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    assert seen.keys is not None
    before = tokens.values.clone(), seen.keys.clone()
    step(reducer, tokens, shape["r"], seen)
    assert torch.equal(tokens.values, before[0])
    assert torch.equal(seen.keys, before[1])


@examples
@given(shapes, reducers)
def test_gradients_are_finite_and_reach_every_row_that_is_kept(shape: dict[str, int], reducer: Reducer) -> None:
    tokens, seen = sample(shape)
    values = tokens.values.clone().requires_grad_()
    out = step(reducer, tokens._replace(values=values), shape["r"], seen)
    weights = torch.randn(out.values.shape, generator=torch.Generator().manual_seed(1), dtype=out.values.dtype)
    (out.values * weights).sum().backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
    assert out.sources is not None
    dropped = out.sources == -1
    assert (values.grad[dropped] == 0).all()
    if reducer in (ToMe(), EViT()):
        assert (values.grad[~dropped].abs().sum(dim=-1) > 0).all()


# ---- schedules and their text

listed = st.lists(st.integers(0, 60), max_size=12)
inflected = st.tuples(st.integers(0, 60), st.floats(-1, 1))
amount = st.one_of(st.integers(0, 60), inflected, listed)


@examples
@given(amount, st.integers(12, 30))
def test_schedules_have_one_amount_per_block(r: Any, depth: int) -> None:
    made = tokens_per_block(r, depth)
    assert len(made) == depth
    assert all(isinstance(n, int) and n >= 0 for n in made)
    if isinstance(r, int):
        assert sum(made) == r * depth
    elif isinstance(r, list):
        assert list(made[: len(r)]) == r
        assert sum(made) == sum(r)
    else:
        assert (r[0] - 1) * depth <= sum(made) <= r[0] * depth  # truncated block by block
        assert list(made) == sorted(made, reverse=r[1] < 0)


def test_a_schedule_for_one_block() -> None:
    assert tokens_per_block((4, 0.5), 1) == (2,)
    assert tokens_per_block([3], 1) == (3,)


any_reducer = st.one_of(
    st.just(NoReduction()),
    st.builds(ToMe, amount, st.booleans()),
    st.builds(EViT, amount, st.booleans()),
    st.builds(ToFu, amount, st.one_of(st.none(), st.integers(0, 30)), st.booleans()),
)


@examples
@example(ToMe(r=(0, -0.0)))
@given(any_reducer)
def test_text_form_reads_back_as_the_same_reducer(reducer: Reducer) -> None:
    assert parse(str(reducer)) == reducer
    assert str(parse(str(reducer))) == str(reducer)


def test_text_forms_are_short() -> None:
    assert str(ToMe(8)) == "tome:8"
    assert str(ToMe((8, -1))) == "tome:8,-1"
    assert str(EViT([4, 0, 2], fuse=False)) == "evit:[4,0,2],fuse=false"
    assert str(ToFu(8, split=6, compat=True)) == "tofu:8,split=6,compat=true"
    assert str(NoReduction()) == "none"
    assert REDUCERS.names() == ["evit", "none", "tofu", "tome"] == navia.list_reducers()


# ---- the token counts of ViT-B/16


@pytest.fixture(scope="module")
def base() -> navia.ViT:
    with torch.device("meta"):
        return navia.load("timm:vit_base_patch16_224", pretrained=False)


@pytest.mark.parametrize(
    ("spec", "lost_per_block"), [("none", 0), ("tome:4", 4), ("tome:8", 8), ("tofu:8", 8), ("evit:4", 3), ("evit:8", 7)]
)
def test_token_counts_of_vit_b(base: navia.ViT, spec: str, lost_per_block: int) -> None:
    """197 entering the first block, as many fewer at every block; EViT's fused token comes back."""
    counts = token_counts(base, parse(spec))
    assert counts == tuple(range(197, 197 - 13 * lost_per_block, -lost_per_block)) if lost_per_block else (197,) * 13
    assert counts[-1] == {0: 197, 3: 161, 4: 149, 7: 113, 8: 101}[lost_per_block]
