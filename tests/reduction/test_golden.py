"""Reduced forwards give the numbers of the official implementations: logits, groups, sizes, kept and removed tokens."""

import math
from functools import cache

import numpy as np
import pytest
import torch

import navia
from navia.models.forward import ForwardOutput, forward
from navia.reduction import EViT, Reducer, ToFu, ToMe, parse
from navia.reduction.evit import split_by_attention
from navia.reduction.matching import match
from tests.families import golden
from tests.near_ties import DANGER, tolerance

DEPTH, IMAGE_TOKENS = 12, 49


def kept_share(share: float, blocks: tuple[int, ...]) -> list[int]:
    """EViT's own schedule as amounts per block: ceil(share * n) of n image tokens stay, and the fused one is new."""
    amounts, count = [], IMAGE_TOKENS
    for layer in range(DEPTH):
        keep = math.ceil(share * count) if layer in blocks else count
        amounts.append(count - keep)
        count = keep + (1 if keep < count else 0)
    return amounts


TOME = {
    "tome_r1": ToMe(1),
    "tome_r2": ToMe(2),
    "tome_r3": ToMe(3),
    "tome_r2_dec": ToMe((2, -1.0)),
    "tome_r2_noprop": ToMe(2, proportional=False),
}
EVIT = {
    "evit_fuse_r1": EViT(1),
    "evit_fuse_r2": EViT(2),
    "evit_fuse_r3": EViT(3),
    "evit_fuse_r4": EViT(4),
    "evit_drop_r1": EViT(1, fuse=False),
    "evit_drop_r2": EViT(2, fuse=False),
    "evit_keep0.7_fuse": EViT(kept_share(0.7, (3, 6, 9))),
    "evit_theirs_r2_fwd": EViT(2),
    "evit_theirs_r3_fwd": EViT(3),
}
TOFU = {"tofu_theirs_r1_fwd": ToFu(1), "tofu_theirs_r2_fwd": ToFu(2)}
ALL: dict[str, Reducer] = {"none": parse("none"), **TOME, **EVIT, **TOFU}

IMAGES, BATCHES = 192, 6

streams = pytest.mark.parametrize("stream", ["A", "B"])


@cache
def walked(vit: navia.ViT, name: str, stream: str, compat: bool = False) -> ForwardOutput:
    """All images of a stream through the golden model."""
    reducer = ToFu(ALL[name].r, compat=True) if compat else ALL[name]
    images = torch.from_numpy(golden("inputs")[f"x_{stream}"]).flatten(0, 1)
    with torch.no_grad():
        return forward(vit, images, reducer, features=True, keys=True, attention=True, trace=True)


def per_image(recorded: np.ndarray) -> np.ndarray:
    """[batches, images of a batch, ...] -> [images, ...]"""
    return recorded.reshape(IMAGES, *recorded.shape[2:])


def per_block(recorded: np.ndarray) -> np.ndarray:
    """[batches, blocks, images of a batch, ...] -> [blocks, images, ...]"""
    return np.moveaxis(recorded, 1, 0).reshape(recorded.shape[1], IMAGES, *recorded.shape[3:])


def attention_margins(output: ForwardOutput, reducer: Reducer) -> tuple[np.ndarray, np.ndarray]:
    """Smallest difference over the blocks between the last kept and first dropped attention, and between any two."""
    assert output.attention is not None
    cut, any_two = [], []
    for attention, r in zip(output.attention, reducer.tokens_per_block(DEPTH), strict=True):
        if r:
            ranked = attention[:, 1:].sort(dim=1, descending=True).values
            gaps = ranked[:, :-1] - ranked[:, 1:]
            cut.append(gaps[:, -r])
            any_two.append(gaps.min(dim=1).values)
    return torch.stack(cut).min(dim=0).values.numpy(), torch.stack(any_two).min(dim=0).values.numpy()


def settled(data: dict[str, np.ndarray], output: ForwardOutput, name: str, stream: str) -> np.ndarray:
    """Images on which no decision is so close that a rounding may turn it."""
    recorded = data.get(f"{stream}.min_gap")
    if name in EVIT:
        margin = attention_margins(output, EVIT[name])[0] if recorded is None else per_image(recorded)
        return margin >= DANGER["evit"]
    return np.ones(IMAGES, dtype=bool) if recorded is None else per_image(recorded) >= DANGER["tome"]


@streams
@pytest.mark.parametrize("name", ALL)
def test_logits(golden_vit: navia.ViT, name: str, stream: str) -> None:
    data, output = golden(name), walked(golden_vit, name, stream)
    sure = settled(data, output, name, stream)
    assert sure.sum() >= 175
    apart = np.abs(output.logits.numpy() - per_image(data[f"{stream}.logits"])).max(axis=1)
    allowed = np.repeat([tolerance(data, stream, batch) for batch in range(BATCHES)], IMAGES // BATCHES)
    assert (apart <= allowed)[sure].all()


@streams
@pytest.mark.parametrize("name", TOME)
def test_tome_groups_sizes_and_schedule(golden_vit: navia.ViT, name: str, stream: str) -> None:
    data, output = golden(name), walked(golden_vit, name, stream)
    assert ALL[name].tokens_per_block(DEPTH) == tuple(data["r_list"])
    sure = settled(data, output, name, stream)
    assert output.tokens.sources is not None
    assert output.tokens.sizes is not None
    assert np.array_equal(output.tokens.sources.numpy()[sure], per_image(data[f"{stream}.assign"])[sure])
    assert np.array_equal(output.tokens.sizes.numpy()[sure], per_image(data[f"{stream}.size"])[sure])


@streams
@pytest.mark.parametrize("name", EVIT)
def test_evit_keeps_the_same_tokens_in_the_same_order(golden_vit: navia.ViT, name: str, stream: str) -> None:
    """On images without a near tie anywhere in the order, since later indices count in it."""
    data, output, amounts = golden(name), walked(golden_vit, name, stream), EVIT[name].tokens_per_block(DEPTH)
    sure = attention_margins(output, EVIT[name])[1] >= DANGER["evit"]
    assert sure.sum() >= 100
    assert output.attention is not None
    reducing = [layer for layer, r in enumerate(amounts) if r]
    for theirs, layer in zip(per_block(data[f"{stream}.kept_idx"]), reducing, strict=True):
        stay, _ = split_by_attention(output.attention[layer], amounts[layer], num_prefix_tokens=1)
        padded = np.full(theirs.shape, -1)
        padded[:, : stay.shape[1]] = stay.numpy() - 1
        assert np.array_equal(padded[sure], theirs[sure]), layer


@streams
@pytest.mark.parametrize("name", TOFU)
def test_tofu_removes_the_same_tokens_into_the_same_partners(golden_vit: navia.ViT, name: str, stream: str) -> None:
    """Partners in the merging blocks only; the others just drop."""
    data, output, amounts = golden(name), walked(golden_vit, name, stream), TOFU[name].tokens_per_block(DEPTH)
    sure = settled(data, output, name, stream)
    assert output.tokens.sizes is not None
    assert np.array_equal(output.tokens.sizes.numpy()[sure], per_image(data[f"{stream}.size"])[sure])
    assert output.keys is not None
    sources, partners = per_block(data[f"{stream}.src_pos"]), per_block(data[f"{stream}.dst_pos"])
    for layer, keys in enumerate(output.keys):
        kept, removed, into = match(keys, amounts[layer], num_prefix_tokens=1)
        merging = layer >= DEPTH // 2
        ours = removed.numpy() + 1000 * kept.gather(1, into).numpy() * merging  # one number per pair
        theirs = sources[layer] + 1000 * partners[layer].astype(int) * merging
        assert np.array_equal(np.sort(ours)[sure], np.sort(theirs)[sure]), layer


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith("_fwd")])
def test_cls_features_of_the_first_batch(golden_vit: navia.ViT, name: str) -> None:
    data, output = golden(name), walked(golden_vit, name, "A")
    theirs = data["A.cls_features_b0"].reshape(32, DEPTH, 64)
    assert output.features is not None
    sure = settled(data, output, name, "A")[:32]
    assert np.abs(output.features[:32].numpy() - theirs)[sure].max() <= 2e-5


@pytest.mark.parametrize("name", TOFU)
def test_tofu_compat_has_the_same_values(golden_vit: navia.ViT, name: str) -> None:
    ours, compat = (walked(golden_vit, name, "A", compat) for compat in (False, True))
    sure = settled(golden(name), ours, name, "A")
    assert torch.allclose(ours.logits[sure], compat.logits[sure], rtol=0, atol=1e-5)


def test_accuracies_are_those_recorded(golden_vit: navia.ViT) -> None:
    labels = torch.from_numpy(golden("inputs")["y_A"]).flatten()
    for name in ("none", "tome_r2", "evit_fuse_r2", "tofu_theirs_r2_fwd"):
        right = (walked(golden_vit, name, "A").logits.argmax(dim=1) == labels).double().mean().item()
        assert right == pytest.approx(float(golden(name)["acc_ABCD"][0]) / 100, abs=1.5 / IMAGES)


def test_official_keep_rate_schedule() -> None:
    assert kept_share(0.7, (3, 6, 9)) == [0, 0, 0, 14, 0, 0, 10, 0, 0, 8, 0, 0]
