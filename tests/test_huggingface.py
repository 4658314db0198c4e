"""The image-classification pipeline of transformers around an adapter: the adapter's answers in the pipeline's words."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import navia
from navia.data import sample
from navia.errors import InputError, SpecError
from tests.families import THREE, build

CLASSES = 11


def sample_images(count: int = 6, side: int = 40) -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 255, (side, side, 3), dtype=np.uint8)) for _ in range(count)]


def scores(answers: list[list[dict[str, object]]], labels: dict[int, str]) -> torch.Tensor:
    """The pipeline's answers [B, C], back in the order of the classes."""
    column = {name: i for i, name in labels.items()}
    table = torch.zeros(len(answers), len(labels))
    for row, answer in zip(table, answers, strict=True):
        for entry in answer:
            row[column[str(entry["label"])]] = float(str(entry["score"]))
    return table


@pytest.mark.parametrize("family", THREE)
def test_answers_are_the_adapters_before_its_update_batch_by_batch(family: str) -> None:
    vit = build(family)
    ours, theirs = (navia.adapt(vit, "tent", "tome:2", lr=0.05) for _ in range(2))
    classifier = navia.pipeline(theirs, batch_size=4, top_k=CLASSES)
    answers = classifier(sample_images())
    images = vit.preprocessing.batch(sample_images())
    expected = torch.cat([ours(images[:4]), ours(images[4:])]).softmax(dim=1)
    torch.testing.assert_close(scores(answers, classifier.model.config.id2label), expected, rtol=0, atol=1e-6)
    assert theirs.steps == 2
    again = classifier(sample_images())
    assert scores(again, classifier.model.config.id2label).sub(expected).abs().max() > 1e-4  # it has adapted


def test_it_is_a_transformers_pipeline_without_complaints(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        classifier = navia.pipeline(navia.adapt(build("timm plain"), "tent"), adapt=False)
    assert isinstance(classifier, transformers.ImageClassificationPipeline)
    assert caplog.records == []


def test_answering_only_leaves_the_adapter_alone() -> None:
    adapter = navia.adapt(build("timm plain"), "tent", "tome:2")
    classifier = navia.pipeline(adapter, adapt=False, batch_size=3)
    assert classifier(sample_images()) == classifier(sample_images())
    assert adapter.steps == 0


def test_one_picture_paths_arrays_and_top_k(tmp_path: Path) -> None:
    classifier = navia.pipeline(navia.adapt(build("timm plain"), "none"))
    picture = sample_images(1)[0]
    picture.save(tmp_path / "picture.png")
    answer = classifier(picture, top_k=2)
    assert len(answer) == 2
    assert answer[0]["score"] >= answer[1]["score"]
    assert classifier(str(tmp_path / "picture.png"), top_k=2) == answer
    assert classifier(np.asarray(picture), top_k=2) == answer
    assert len(classifier(picture)) == 5  # the pipeline's own default
    with pytest.raises(InputError, match="an image must be a Pillow image, a path, or uint8"):
        classifier(torch.zeros(3, 32, 32))


def test_labels_are_the_models_own() -> None:
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "owl"}, label2id={"cat": 0, "dog": 1, "owl": 2},
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    answer = navia.pipeline(navia.adapt(model, "none"), top_k=3)(sample_images(1)[0])
    assert {entry["label"] for entry in answer} == {"cat", "dog", "owl"}


def test_masked_classes_keep_their_names() -> None:
    adapter = navia.adapt(build("timm plain"), "none", classes=[7, 2])
    answer = navia.pipeline(adapter)(sample_images(1)[0])
    assert {entry["label"] for entry in answer} == {"LABEL_7", "LABEL_2"}
    assert sum(entry["score"] for entry in answer) == pytest.approx(1)


@pytest.mark.slow
def test_the_embedded_model_recognises_clothes_and_wins_back_a_shift() -> None:
    from navia.data.sources import Domain

    vit = navia.load("embedded")
    unseen = sample.unseen_images()
    shifted = Domain("noise", unseen, "gaussian_noise", 2)
    frames = [Image.fromarray(shifted.pixels(i, vit.preprocessing)) for i in range(192)]
    clean = Domain("clean", sample.source_images()).tensors(range(64), vit.preprocessing)
    source = navia.SourceStatistics.measure(vit, clean, "tome:8")

    def accuracy(method: str) -> float:
        adapter = navia.adapt(vit, method, "tome:8", source if method == "navia" else None)
        answers = navia.pipeline(adapter, batch_size=16, top_k=1)(frames)
        right = [answer[0]["label"] == sample.CLASSES[unseen.labels[i]] for i, answer in enumerate(answers)]
        return sum(right[96:]) / 96

    assert accuracy("navia") > accuracy("none") + 0.1


@pytest.mark.parametrize("name", ["model", "image_processor", "device"])
def test_what_the_adapter_decides_cannot_be_given_again(name: str) -> None:
    with pytest.raises(SpecError, match=rf"{name} come\(s\) from the adapter"):
        navia.pipeline(navia.adapt(build("timm plain"), "none"), **{name: "other"})
