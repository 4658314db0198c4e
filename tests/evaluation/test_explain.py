"""Looking inside: distances, moves and probes against cases whose answer is known."""

import numpy as np
import pytest
import torch

import navia
from navia.errors import InputError
from navia.evaluation.cost import cost
from navia.evaluation.explain import explain, probe

pytestmark = pytest.mark.slow


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
    found = explain(navia.adapt(golden_vit, "none", "tome:2"), [], images, source, dense)
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
    dense = navia.SourceStatistics.measure(golden_vit, torch.from_numpy(golden_inputs["source_images"]))
    found = explain(adapter, images[:96].split(32), images[96:], source, dense, labels[96:], batch_size=32)
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


@pytest.mark.parametrize(
    ("method", "options"),
    [("cotta", {"lr": 0.1, "ema_decay": 0.5}), ("lame", {}), ("foa_bp", {}), ("foa", {"population": 4})],
)
def test_what_is_scored_is_what_answers_under_the_class_mask(
    golden_vit: navia.ViT,
    golden_inputs: dict[str, np.ndarray],
    target: tuple[torch.Tensor, torch.Tensor],
    method: str,
    options: dict[str, float],
) -> None:
    """Labels are columns of the masked answers, as those of ImageNet-R are: here of the classes in reverse."""
    source = navia.SourceStatistics.measure(golden_vit, torch.from_numpy(golden_inputs["source_images"]))
    mask = list(range(golden_vit.num_classes))[::-1]
    images, labels = target[0], golden_vit.num_classes - 1 - target[1]
    adapter = navia.adapt(golden_vit, method, source=source, classes=mask, **options)
    found = explain(adapter, images[:96].split(32), images[96:], source, source, labels[96:], batch_size=32)
    assert found.accuracy is not None
    plain = navia.adapt(golden_vit, "none", classes=mask)
    for name, state in {"dense": plain, "none": plain, f"{method} + none": adapter}.items():
        answers = torch.cat([state.predict(part) for part in images[96:].split(32)]).argmax(dim=1)
        assert found.accuracy[name] == pytest.approx((answers == labels[96:]).double().mean().item())
    assert found.accuracy["dense"] > 2 / golden_vit.num_classes


def test_cotta_is_seen_as_its_teacher_who_answers(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray], target: tuple[torch.Tensor, torch.Tensor]
) -> None:
    source = navia.SourceStatistics.measure(golden_vit, torch.from_numpy(golden_inputs["source_images"]))
    adapter = navia.adapt(golden_vit, "cotta", lr=0.1, ema_decay=1.0)  # a teacher who never moves
    found = explain(adapter, target[0][:64].split(32), target[0][64:96], source, source)
    assert all(layer.moved == 0 for layer in found.layers)
    assert all(layer.gap["cotta + none"] == layer.gap["dense"] for layer in found.layers)
    assert not torch.equal(adapter.method.forward(target[0][:8]).logits, adapter.features(target[0][:8]).logits)
