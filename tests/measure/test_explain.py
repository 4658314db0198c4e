"""Looking inside: distances, moves and probes against cases whose answer is known."""

import numpy as np
import pytest
import torch

import navia
from navia.errors import InputError
from navia.measure.cost import cost
from navia.measure.explain import explain, probe


def test_a_probe_finds_what_is_linearly_there_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    noise = torch.randn(400, 16, generator=generator)
    readable = noise + 4 * torch.nn.functional.one_hot(labels, 16)
    score, low, high = probe(readable, labels)
    assert score > 0.95
    assert low < score <= high
    chance, low, high = probe(noise, labels)
    assert low < 0.25 < high
    assert chance < 0.4
    with pytest.raises(InputError, match="at least 2 classes"):
        probe(noise, torch.zeros(400, dtype=torch.long))


@pytest.fixture(scope="module")
def target(golden_inputs: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(golden_inputs["x_B"]).flatten(0, 1), torch.from_numpy(golden_inputs["y_B"]).flatten().long()


def test_source_images_have_no_gap_and_no_adaptation_moves_nothing(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
) -> None:
    images = torch.from_numpy(golden_inputs["source_images"])
    source = navia.SourceStatistics.measure(golden_vit, images, "tome:2")
    dense = navia.SourceStatistics.measure(golden_vit, images)
    found = explain(navia.adapt(golden_vit, "none", "tome:2"), [], images, source, dense_source=dense)
    for layer in found.layers:
        assert max(layer.gap.values()) < 1e-6
        assert layer.moved == 0
        assert layer.bias == 0
        assert layer.probe is None
    assert [layer.tokens["tome:2"] for layer in found.layers] == list(cost(golden_vit, "tome:2").tokens[1:])
    assert {layer.tokens["dense"] for layer in found.layers} == {50}


def test_adaptation_closes_the_gap_and_its_moves_are_seen(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray], target: tuple[torch.Tensor, torch.Tensor]
) -> None:
    source = navia.SourceStatistics.measure(golden_vit, torch.from_numpy(golden_inputs["source_images"]), "tome:2")
    images, labels = target
    adapter = navia.adapt(golden_vit, "navia", "tome:2", source)
    found = explain(adapter, images[:96].split(32), images[96:], source, labels[96:], batch=32)
    assert found.conditions == ("dense", "tome:2", "navia + tome:2")
    assert (found.adapted_on, found.looked_at) == (96, 96)
    before, after = (sum(layer.gap[name] for layer in found.layers) for name in ("tome:2", "navia + tome:2"))
    assert after < before
    assert all(layer.moved > 0 for layer in found.layers)
    assert [layer.bias > 0 for layer in found.layers] == [True] * 6 + [False] * 6
    assert found.accuracy is not None
    plain = navia.adapt(golden_vit, "none", "tome:2").predict(images[96:]).argmax(dim=1)
    assert found.accuracy["tome:2"] == pytest.approx((plain == labels[96:]).double().mean().item())
    assert all(layer.probe is not None and 0 <= layer.probe["dense"][0] <= 1 for layer in found.layers)
