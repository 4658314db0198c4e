"""One matching and merging step on recorded inputs, against the official ToMe functions, and small cases by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from navia.reduction import Tokens, ToMe
from navia.reduction.base import tokens_per_block
from navia.reduction.matching import Matching, add_at_rows, destination, match
from navia.reduction.tome import merge, merged_sizes
from tests.families import golden

DATA = golden("tome_merge")
CASES = sorted(key.removesuffix(".x_sized") for key in DATA if key.endswith(".x_sized"))


def recorded(name: str) -> Tensor:
    return torch.from_numpy(DATA[name])


def merged(r: int, prefix: int = 1, sized: bool = False) -> Tokens:
    sizes = recorded("size_in").squeeze(-1) if sized else None
    return merge(Tokens(recorded("x"), prefix, sizes).with_sources(), match(recorded("metric"), r, prefix))


@pytest.mark.parametrize("case", CASES)
def test_merged_values_sizes_and_groups(case: str) -> None:
    r = int(case.removeprefix("r"))
    with_sizes, without = merged(r, sized=True), merged(r)
    assert with_sizes.sizes is not None
    assert without.sizes is not None
    assert torch.allclose(with_sizes.values, recorded(f"{case}.x_sized"), rtol=0, atol=1e-5)
    assert torch.allclose(with_sizes.sizes, recorded(f"{case}.size_sized").squeeze(-1))
    assert torch.allclose(without.values, recorded(f"{case}.x_unit"), rtol=0, atol=1e-5)
    assert torch.equal(without.sizes, recorded(f"{case}.size_unit").squeeze(-1))
    assert without.sources is not None
    assert np.array_equal(without.sources.numpy(), DATA[f"{case}.assign"])


@pytest.mark.parametrize("case", CASES)
def test_every_token_finds_its_group_again(case: str) -> None:
    """Spreading the merged rows back along the sources is the official unmerge of an unweighted merge."""
    tokens = merged(int(case.removeprefix("r")))
    assert tokens.sources is not None
    spread = tokens.values.gather(1, tokens.sources.unsqueeze(-1).expand(-1, -1, 24))
    assert torch.allclose(spread, recorded(f"{case}.unmerged"), rtol=0, atol=1e-5)


def test_without_class_token() -> None:
    """The official rows that found no partner then come in the order of their scores, ours in their own."""
    tokens = merged(5, prefix=0, sized=True)
    assert tokens.sizes is not None
    theirs = torch.cat([recorded("nocls_r5.x"), recorded("nocls_r5.size")], dim=-1)
    ours = torch.cat([tokens.values, tokens.sizes.unsqueeze(-1)], dim=-1)
    unmatched = 25 - 5
    assert torch.allclose(ours[:, unmatched:], theirs[:, unmatched:], rtol=0, atol=1e-5)
    for a, b in zip(ours[:, :unmatched], theirs[:, :unmatched], strict=True):
        assert torch.allclose(a[a[:, 0].argsort()], b[b[:, 0].argsort()], rtol=0, atol=1e-5)


def test_amount_is_capped_at_half_of_the_image_tokens() -> None:
    tokens = merged(40, sized=True)
    assert tokens.sizes is not None
    assert tokens.length == 50 - 24
    assert torch.allclose(tokens.values, recorded("r40_capped.x"), rtol=0, atol=1e-5)
    assert torch.equal(tokens.sizes, recorded("r40_capped.size").squeeze(-1))


@pytest.mark.parametrize("key", sorted(key for key in DATA if key.startswith("parse_r.")))
def test_schedules(key: str) -> None:
    _, r, inflection = key.split(".", 2)
    theirs = tuple(DATA[key].tolist())
    assert tokens_per_block((int(r), float(inflection)), 12) == theirs
    assert ToMe((int(r), float(inflection))).tokens_per_block(12) == theirs
    if float(inflection) == 0:
        assert tokens_per_block(int(r), 12) == theirs


def test_recorded_cases_are_there() -> None:
    assert len(CASES) >= 2
    assert sum(key.startswith("parse_r.") for key in DATA) == 20


def test_second_merge_carries_the_sizes_on() -> None:
    """Two steps in a row equal the weighted mean over the original tokens of every final group."""
    x = recorded("x")
    first = merged(12)
    second = merge(first, match(first.values[..., :16], 9, 1))
    assert second.sources is not None
    assert second.sizes is not None
    groups = torch.nn.functional.one_hot(second.sources, second.length).to(x.dtype)  # [B, N, M]
    counts = groups.sum(dim=1)
    assert torch.equal(second.sizes, counts)
    assert torch.allclose(second.values, groups.transpose(1, 2) @ x / counts.unsqueeze(-1), atol=1e-5)
    assert second.sizes.max() > 2


# ---- by hand


def test_best_pairs_of_a_hand_made_case() -> None:
    """Prefix at 0, B at 1 and 3, A at 2 and 4: token 2 is parallel to 3, token 4 is nearer to 1 but not parallel."""
    keys = torch.tensor([[[9.0, 9.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.5]]])
    kept, removed, into = match(keys, 1, num_prefix_tokens=1)
    assert removed.tolist() == [[2]]
    assert kept.tolist() == [[0, 4, 1, 3]]
    assert into.tolist() == [[3]]  # the row of token 3
    kept, removed, into = match(keys, 2, num_prefix_tokens=1)
    assert removed.tolist() == [[2, 4]]
    assert kept.tolist() == [[0, 1, 3]]
    assert into.tolist() == [[2, 1]]


def test_the_prefix_is_nobodys_partner() -> None:
    """Even when it is the most similar token of all."""
    keys = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.01], [-1.0, 0.0], [1.0, 0.02], [-1.0, 0.1]]])
    kept, removed, _ = match(keys, 2, num_prefix_tokens=2)
    assert kept[0, :2].tolist() == [0, 1]
    assert set(removed[0].tolist()) <= {2, 4}


def test_keys_are_compared_by_direction_not_length() -> None:
    keys = torch.randn(2, 9, 4)
    scaled = keys * torch.rand(2, 9, 1).add(0.1) * 100
    for ours, theirs in zip(match(keys, 3, 1), match(scaled, 3, 1), strict=True):
        assert torch.equal(ours, theirs)


def test_destination_follows_the_partner_or_is_gone() -> None:
    matching = Matching(torch.tensor([[0, 4, 1, 3]]), torch.tensor([[2]]), torch.tensor([[3]]))
    assert destination(matching).tolist() == [[0, 2, 3, 3, 1]]
    assert destination(matching, dropped=True).tolist() == [[0, 2, -1, 3, 1]]


def test_shares_of_a_merge_add_up() -> None:
    matching = Matching(torch.tensor([[0, 1]]), torch.tensor([[2, 3]]), torch.tensor([[1, 1]]))
    after, share, rest = merged_sizes(torch.tensor([[1.0, 2.0, 3.0, 5.0]]), matching)
    assert after.tolist() == [[1.0, 10.0]]
    assert torch.allclose(share, torch.tensor([[0.3, 0.5]]))
    assert torch.allclose(rest, torch.tensor([[0.2, 0.2]]))


def test_add_at_adds_repeated_indices_and_leaves_its_input() -> None:
    x = torch.zeros(2, 3)
    out = add_at_rows(x, torch.tensor([[1, 1], [0, 2]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert out.tolist() == [[0.0, 3.0, 0.0], [3.0, 0.0, 4.0]]
    assert x.abs().sum() == 0
