"""Reduced forwards give the numbers of the official implementations: logits, groups, sizes, kept and removed tokens."""

import math
from functools import cache

import numpy as np
import pytest
import torch

import navia
from navia.reduce import EViT, Reducer, ToFu, ToMe, parse
from navia.reduce.evit import split_by_attention
from navia.reduce.matching import match
from navia.vit.forward import Outcome, run
from tests.families import golden, tolerance

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

streams = pytest.mark.parametrize("stream", ["A", "B"])


@cache
def walked(vit: navia.ViT, name: str, stream: str, compat: bool = False) -> list[Outcome]:
    """The six batches of a stream through the golden model."""
    reducer = ToFu(ALL[name].r, compat=True) if compat else ALL[name]
    images = torch.from_numpy(golden("inputs")[f"x_{stream}"])
    with torch.no_grad():
        return [run(vit, batch, reducer, features=True, keys=True, attention=True, trace=True) for batch in images.unbind(0)]


def attention_margins(outcome: Outcome, reducer: Reducer) -> tuple[np.ndarray, np.ndarray]:
    """Smallest difference over the blocks between the last kept and first dropped attention, and between any two."""
    assert outcome.attention is not None
    cut, any_two = [], []
    for attention, r in zip(outcome.attention, reducer.amounts(DEPTH), strict=True):
        if r:
            ranked = attention[:, 1:].sort(dim=1, descending=True).values
            gaps = ranked[:, :-1] - ranked[:, 1:]
            cut.append(gaps[:, -r])
            any_two.append(gaps.min(dim=1).values)
    return torch.stack(cut).min(dim=0).values.numpy(), torch.stack(any_two).min(dim=0).values.numpy()


def settled(data: dict[str, np.ndarray], outcome: Outcome, name: str, stream: str, batch: int) -> np.ndarray:
    """Images on which no decision is so close that a rounding may turn it."""
    if name in EVIT:
        recorded = data.get(f"{stream}.min_gap")
        margin = attention_margins(outcome, EVIT[name])[0] if recorded is None else recorded[batch]
        return margin >= 1e-7
    if f"{stream}.min_gap" in data:
        return data[f"{stream}.min_gap"][batch] >= 1e-5
    return np.ones(32, dtype=bool)


@streams
@pytest.mark.parametrize("name", ALL)
def test_logits(golden_vit: navia.ViT, name: str, stream: str) -> None:
    data = golden(name)
    for batch, outcome in enumerate(walked(golden_vit, name, stream)):
        sure = settled(data, outcome, name, stream, batch)
        assert sure.sum() >= 28
        apart = np.abs(outcome.logits.numpy() - data[f"{stream}.logits"][batch])[sure]
        assert apart.max() <= tolerance(data, stream, batch), batch


@streams
@pytest.mark.parametrize("name", TOME)
def test_tome_groups_sizes_and_schedule(golden_vit: navia.ViT, name: str, stream: str) -> None:
    data = golden(name)
    assert ALL[name].amounts(DEPTH) == tuple(data["r_list"])
    for batch, outcome in enumerate(walked(golden_vit, name, stream)):
        sure = settled(data, outcome, name, stream, batch)
        assert outcome.tokens.sources is not None
        assert outcome.tokens.sizes is not None
        assert np.array_equal(outcome.tokens.sources.numpy()[sure], data[f"{stream}.assign"][batch][sure])
        assert np.array_equal(outcome.tokens.sizes.numpy()[sure], data[f"{stream}.size"][batch][sure])


@streams
@pytest.mark.parametrize("name", EVIT)
def test_evit_keeps_the_same_tokens_in_the_same_order(golden_vit: navia.ViT, name: str, stream: str) -> None:
    """On images without a near tie anywhere in the order, since later indices count in it."""
    data, reducer = golden(name), EVIT[name]
    reducing = [layer for layer, r in enumerate(reducer.amounts(DEPTH)) if r]
    compared = 0
    for batch, outcome in enumerate(walked(golden_vit, name, stream)):
        sure = attention_margins(outcome, reducer)[1] >= 1e-7
        compared += int(sure.sum())
        recorded = data[f"{stream}.kept_idx"][batch]
        assert len(recorded) == len(reducing)
        assert outcome.attention is not None
        for theirs, layer in zip(recorded, reducing, strict=True):
            stay, _ = split_by_attention(outcome.attention[layer], reducer.amounts(DEPTH)[layer], prefix=1)
            padded = np.full(theirs.shape, -1)
            padded[:, : stay.shape[1]] = stay.numpy() - 1
            assert np.array_equal(padded[sure], theirs[sure]), (batch, layer)
    assert compared >= 100  # of 192


@streams
@pytest.mark.parametrize("name", TOFU)
def test_tofu_removes_the_same_tokens_into_the_same_partners(golden_vit: navia.ViT, name: str, stream: str) -> None:
    data, reducer = golden(name), TOFU[name]
    for batch, outcome in enumerate(walked(golden_vit, name, stream)):
        sure = settled(data, outcome, name, stream, batch)
        assert outcome.tokens.sizes is not None
        assert np.array_equal(outcome.tokens.sizes.numpy()[sure], data[f"{stream}.size"][batch][sure])
        assert outcome.keys is not None
        for layer, keys in enumerate(outcome.keys):
            kept, removed, into = match(keys, reducer.amounts(DEPTH)[layer], prefix=1)
            partner = kept.gather(1, into)
            merging = layer >= DEPTH // 2
            ours = np.stack([removed.numpy(), partner.numpy() if merging else removed.numpy()], axis=-1)[sure]
            src, dst = data[f"{stream}.src_pos"][batch, layer], data[f"{stream}.dst_pos"][batch, layer]
            theirs = np.stack([src, dst if merging else src], axis=-1)[sure].astype(int)
            assert np.array_equal(np.sort(_pairs(ours)), np.sort(_pairs(theirs))), (batch, layer)


def _pairs(pairs: np.ndarray) -> np.ndarray:
    """[B, r, 2] -> [B, r], one number per pair."""
    return pairs[..., 0] * 1000 + pairs[..., 1]


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith("_fwd")])
def test_cls_features_of_the_first_batch(golden_vit: navia.ViT, name: str) -> None:
    data = golden(name)
    outcome = walked(golden_vit, name, "A")[0]
    sure = settled(data, outcome, name, "A", 0)
    assert outcome.features is not None
    theirs = data["A.cls_features_b0"].reshape(32, DEPTH, 64)
    assert np.abs(outcome.features.numpy() - theirs)[sure].max() <= 2e-5


@pytest.mark.parametrize("name", TOFU)
def test_tofu_compat_has_the_same_values(golden_vit: navia.ViT, name: str) -> None:
    for ours, compat in zip(walked(golden_vit, name, "A"), walked(golden_vit, name, "A", compat=True), strict=True):
        assert torch.allclose(ours.logits, compat.logits, rtol=0, atol=1e-5)


def test_accuracies_are_those_recorded(golden_vit: navia.ViT) -> None:
    labels = torch.from_numpy(golden("inputs")["y_A"])
    for name in ("none", "tome_r2", "evit_fuse_r2", "tofu_theirs_r2_fwd"):
        logits = torch.stack([outcome.logits for outcome in walked(golden_vit, name, "A")])
        accuracy = (logits.argmax(-1) == labels).double().mean().item()
        assert accuracy == pytest.approx(float(golden(name)["acc_ABCD"][0]) / 100, abs=1.5 / 192)


def test_official_keep_rate_schedule() -> None:
    assert kept_share(0.7, (3, 6, 9)) == [0, 0, 0, 14, 0, 0, 10, 0, 0, 8, 0, 0]
