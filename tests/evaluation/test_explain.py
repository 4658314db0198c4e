"""Looking inside: distances, moves and information against cases whose answer is known."""

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pytest
import torch
from torch import Tensor

import navia
from navia.errors import InputError, SpecError
from navia.evaluation.cost import cost
from navia.evaluation.explain import Explanation, compared_pairs, explain, make_conditions
from navia.evaluation.information import estimate, probe, split_folds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def one_penalty() -> Iterator[None]:
    """The choice of the penalty is tested in test_information.py, and takes most of a probe's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("navia.evaluation.information.PENALTIES", (0.1,))
        yield


@pytest.fixture(scope="module")
def target(golden_inputs: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(golden_inputs["x_B"]).flatten(0, 1), torch.from_numpy(golden_inputs["y_B"]).flatten().long()


@pytest.fixture(scope="module")
def sources(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> dict[str, navia.SourceStatistics]:
    images = torch.from_numpy(golden_inputs["source_images"])
    return {spec: navia.SourceStatistics.measure(golden_vit, images, spec) for spec in ("none", "tome:2")}


def batches(images: Tensor, labels: Tensor | None = None, size: int = 32) -> list[Any]:
    parts = images.split(size)
    return list(parts) if labels is None else list(zip(parts, labels.split(size), strict=True))


@pytest.fixture(scope="module")
def found(
    golden_vit: navia.ViT, target: tuple[Tensor, Tensor], sources: dict[str, navia.SourceStatistics]
) -> tuple[Explanation, dict[str, navia.Adapter]]:
    """NAVIA and its parts, adapted to 96 images and examined on 96 others."""
    images, labels = target
    conditions = make_conditions(golden_vit, "navia", "tome:2", sources["tome:2"])
    halves = batches(images[:96]), batches(images[96:], labels[96:])
    return explain(conditions, *halves, list(sources.values())), conditions


def test_source_images_have_no_gap_and_no_adaptation_moves_nothing(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray], sources: dict[str, navia.SourceStatistics]
) -> None:
    images = batches(torch.from_numpy(golden_inputs["source_images"]))
    found = explain(make_conditions(golden_vit, "none", "tome:2"), [], images, list(sources.values()))
    assert found.conditions == ("dense", "merged", "none")
    for layer in found.layers:
        assert max(layer.gap.values()) < 1e-6
        assert set(layer.moved.values()) == set(layer.bias.values()) == {0.0}
        assert layer.information is layer.infonce is layer.probe is layer.differences is None
    assert (found.accuracy, found.probing, found.note) == (None, None, "the images have no labels")
    assert [layer.tokens["merged"] for layer in found.layers] == list(cost(golden_vit, "tome:2").tokens[1:])
    assert {layer.tokens["dense"] for layer in found.layers} == {50}


def test_adaptation_closes_the_gap_and_its_moves_are_seen(
    found: tuple[Explanation, dict[str, navia.Adapter]], golden_vit: navia.ViT, target: tuple[Tensor, Tensor]
) -> None:
    explanation, _ = found
    assert explanation.conditions == ("dense", "merged", "align", "+E", "+S", "both")
    assert (explanation.reduce, explanation.adapted_on, explanation.looked_at) == ("tome:2", 96, 96)
    gaps = {name: sum(layer.gap[name] for layer in explanation.layers) for name in explanation.conditions}
    assert max(gaps[name] for name in ("align", "+E", "+S", "both")) < gaps["merged"]
    for layer in explanation.layers:
        assert [moved > 0 for moved in layer.moved.values()] == [False] * 2 + [True] * 4
        assert [bias > 0 for bias in layer.bias.values()] == [False] * 4 + [layer.layer < 6] * 2
    images, labels = target
    plain = navia.adapt(golden_vit, "none", "tome:2").predict(images[96:]).argmax(dim=1)
    assert explanation.accuracy is not None
    assert explanation.accuracy["merged"] == pytest.approx((plain == labels[96:]).double().mean().item())


def test_every_condition_is_adapted_to_the_same_stream_as_if_it_were_alone(
    found: tuple[Explanation, dict[str, navia.Adapter]],
    golden_vit: navia.ViT,
    target: tuple[Tensor, Tensor],
    sources: dict[str, navia.SourceStatistics],
) -> None:
    _, conditions = found
    parts: dict[str, dict[str, bool]] = {"align": {}, "+E": {"biases": False}, "+S": {"embedding": False}, "both": {}}
    for name, options in parts.items():
        method = "align" if name == "align" else "navia"
        adapter = navia.adapt(golden_vit, method, "tome:2", sources["tome:2"], **options)
        for part in target[0][:96].split(32):
            adapter(part)
        torch.testing.assert_close(conditions[name].predict(target[0][96:]), adapter.predict(target[0][96:]))
    for name in ("dense", "merged"):
        assert conditions[name].steps == 0


def test_information_is_that_of_a_probe_on_the_features(
    found: tuple[Explanation, dict[str, navia.Adapter]], target: tuple[Tensor, Tensor]
) -> None:
    """Features come back from the file unchanged, and differences are paired by image."""
    explanation, conditions = found
    images, labels = target[0][96:], target[1][96:]
    folds, layer = split_folds(labels), explanation.layers[7]
    features = {name: conditions[name].features(images).features for name in ("merged", "both")}
    scores = {name: probe(rows[folds.positions, 7], folds) for name, rows in features.items() if rows is not None}
    assert layer.information is not None
    assert layer.infonce is not None
    assert layer.differences is not None
    assert explanation.probing is not None
    for name, expected in scores.items():
        assert layer.information[name].value == pytest.approx(estimate(expected.information).value, abs=1e-3)
        assert layer.infonce[name].value == pytest.approx(estimate(expected.infonce).value, abs=1e-3)
    paired = estimate(scores["both"].information - scores["merged"].information)
    assert layer.differences["both - merged"].value == pytest.approx(paired.value, abs=1e-3)
    assert layer.differences["both - merged"].high == pytest.approx(paired.high, abs=1e-3)
    assert explanation.probing.num_images == len(folds.targets)
    assert layer.information["dense"].value < explanation.probing.label_entropy


def test_labels_can_be_grouped_and_too_few_images_are_no_error(
    golden_vit: navia.ViT, target: tuple[Tensor, Tensor], sources: dict[str, navia.SourceStatistics]
) -> None:
    images, labels = target[0][:64], target[1][:64]
    conditions = {"dense": navia.adapt(golden_vit, "none")}
    groups = [0, 0, 0, 1, 1, *[-1] * (golden_vit.num_classes - 5)]
    found = explain(conditions, [], batches(images, labels), list(sources.values()), groups)
    assert found.probing is not None
    assert (found.probing.num_labels, found.probing.num_images) == (2, int((labels < 5).sum()))
    few = explain(conditions, [], batches(images[:8], labels[:8]), list(sources.values()))
    assert few.probing is None
    assert few.note is not None
    assert "at least 5 images each" in few.note
    assert few.accuracy is not None
    unknown = explain(conditions, [], batches(images, torch.where(labels == 1, -1, labels)), list(sources.values()))
    assert unknown.accuracy is None
    with pytest.raises(InputError, match="no source statistics of reducer none"):
        explain(conditions, [], batches(images), [sources["tome:2"]])


class Decoded(Sequence[Any]):
    """Batches that exist only while they are used; `alive`: bytes of all tensors whenever a new one is asked for."""

    def __init__(self, images: Tensor, labels: Tensor, repeats: int) -> None:
        self.parts, self.repeats = batches(images, labels, 16), repeats
        self.alive: list[int] = []

    def __len__(self) -> int:
        return self.repeats * len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        raise NotImplementedError

    def _bytes_of_tensors(self) -> int:
        gc.collect()
        # Packed int8 weights that another test made have no storage that could be read.
        tensors = [found for found in gc.get_objects() if type(found) is Tensor and found.layout is torch.strided]
        return sum({found.untyped_storage().data_ptr(): found.untyped_storage().nbytes() for found in tensors}.values())

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            self.alive.append(self._bytes_of_tensors())
            images, labels = self.parts[number % len(self.parts)]
            yield images.clone(), labels.clone()
            del images, labels


def test_memory_does_not_grow_with_the_number_of_images(
    golden_vit: navia.ViT, target: tuple[Tensor, Tensor], sources: dict[str, navia.SourceStatistics]
) -> None:
    """Between batches there are the adapters with what their guards keep, then also the moments and 8 bytes per label."""
    stream, images = (Decoded(target[0][:64], target[1][:64], 3) for _ in range(2))
    conditions = make_conditions(golden_vit, "align", "tome:2", sources["tome:2"])
    found = explain(conditions, stream, images, list(sources.values()), [-1] * golden_vit.num_classes)
    assert (found.adapted_on, found.looked_at) == (192, 192)
    assert len(stream.alive) == len(images.alive) == 12
    assert stream.alive[-1] - stream.alive[2] < target[0][:16].nbytes
    assert images.alive[-1] - images.alive[2] == 9 * 16 * 8


def test_no_file_of_features_is_left(
    golden_vit: navia.ViT, target: tuple[Tensor, Tensor], sources: dict[str, navia.SourceStatistics], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    explain({"dense": navia.adapt(golden_vit, "none")}, [], batches(target[0][:32]), list(sources.values()))
    assert list(tmp_path.iterdir()) == []


def test_options_go_to_the_conditions_that_have_them(
    golden_vit: navia.ViT, sources: dict[str, navia.SourceStatistics]
) -> None:
    made = make_conditions(golden_vit, "navia", "tome:2", sources["tome:2"], lr=0.1, budget=2)
    assert {made[name].options.lr for name in ("align", "+E", "+S", "both")} == {0.1}
    assert made["+S"].options.budget == 2
    chosen = make_conditions(golden_vit, "navia", "tome:2", sources["tome:2"], biases=False)
    assert list(chosen) == ["dense", "merged", "navia"]
    assert list(make_conditions(golden_vit, "tent")) == ["dense", "tent"]
    with pytest.raises(SpecError, match="bugdet"):
        make_conditions(golden_vit, "navia", "tome:2", sources["tome:2"], bugdet=2)


def test_pairs_to_compare() -> None:
    steps = [("merged", "dense"), ("align", "merged"), ("+E", "align"), ("+S", "align"), ("both", "align")]
    assert compared_pairs(["dense", "merged", "align", "+E", "+S", "both"]) == [
        *steps,
        ("both", "merged"),
        ("both", "dense"),
    ]
    assert compared_pairs(["dense", "merged", "tent"]) == [("merged", "dense"), ("tent", "merged"), ("tent", "dense")]
    assert compared_pairs(["dense", "align"]) == [("align", "dense")]
    assert compared_pairs(["dense"]) == []


@pytest.mark.parametrize(
    ("method", "options"),
    [("cotta", {"lr": 0.1, "ema_decay": 0.5}), ("lame", {}), ("foa_bp", {}), ("foa", {"population": 4})],
)
def test_what_is_scored_is_what_answers_under_the_class_mask(
    golden_vit: navia.ViT,
    target: tuple[Tensor, Tensor],
    sources: dict[str, navia.SourceStatistics],
    method: str,
    options: dict[str, float],
) -> None:
    """Labels are columns of the masked answers, as those of ImageNet-R are: here of the classes in reverse."""
    mask = list(range(golden_vit.num_classes))[::-1]
    images, labels = target[0], golden_vit.num_classes - 1 - target[1]
    conditions = make_conditions(golden_vit, method, source=sources["none"], classes=mask, **options)
    halves = batches(images[:96]), batches(images[96:], labels[96:])
    found = explain(conditions, *halves, list(sources.values()), [-1] * golden_vit.num_classes)
    assert found.accuracy is not None
    for name, state in {"dense": navia.adapt(golden_vit, "none", classes=mask), method: conditions[method]}.items():
        answers = torch.cat([state.predict(part) for part in images[96:].split(32)]).argmax(dim=1)
        assert found.accuracy[name] == pytest.approx((answers == labels[96:]).double().mean().item())
    assert found.accuracy["dense"] > 2 / golden_vit.num_classes


def test_cotta_is_seen_as_its_teacher_who_answers(
    golden_vit: navia.ViT, target: tuple[Tensor, Tensor], sources: dict[str, navia.SourceStatistics]
) -> None:
    conditions = make_conditions(golden_vit, "cotta", lr=0.1, ema_decay=1.0)  # a teacher who never moves
    found = explain(conditions, batches(target[0][:64]), batches(target[0][64:96]), list(sources.values()))
    assert all(layer.moved["cotta"] == 0 for layer in found.layers)
    assert all(layer.gap["cotta"] == layer.gap["dense"] for layer in found.layers)
    adapter = conditions["cotta"]
    assert not torch.equal(adapter.method.forward(target[0][:8]).logits, adapter.features(target[0][:8]).logits)
