"""Real weights on real images, where both are present: accuracies that a wrong step on the way would miss."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import navia
from navia.images.folder import batches, scan
from navia.measure.quality import top_k


@pytest.fixture(scope="module")
def sample(deit: navia.ViT, imagenet: Path) -> tuple[Tensor, Tensor]:
    """Every tenth image, already cut to 224 px, and its class among the sorted folders."""
    folder = scan(imagenet)
    assert folder.labels is not None
    assert folder.class_names is not None
    assert len(folder.class_names) == 1000
    images = torch.cat([batch for batch, _ in batches(folder.paths[5::10], deit.preprocessing.crop_only())])
    return images, torch.tensor(folder.labels[5::10])


@pytest.fixture(scope="module")
def dense(deit: navia.ViT, sample: tuple[Tensor, Tensor]) -> Tensor:
    return predicted(deit, sample[0], "none")


def predicted(vit: navia.ViT, images: Tensor, spec: str) -> Tensor:
    with torch.no_grad():
        return torch.cat([vit(part, reduce=spec) for part in images.split(50)])


def test_dense_accuracy_is_that_of_the_weights(dense: Tensor, sample: tuple[Tensor, Tensor]) -> None:
    """74 % on all two thousand images; 200 leave 3.2 points of standard error."""
    assert len(dense) == 200
    assert 0.62 <= top_k(dense, sample[1]) <= 0.78


def test_tome_costs_little_accuracy(deit: navia.ViT, dense: Tensor, sample: tuple[Tensor, Tensor]) -> None:
    images, labels = sample
    accuracy = top_k(predicted(deit, images, "tome:8"), labels)
    assert top_k(dense, labels) - 0.06 <= accuracy <= top_k(dense, labels) + 0.03


@pytest.mark.parametrize("spec", ["evit:8", "tofu:8"])
def test_other_reducers_still_see(deit: navia.ViT, sample: tuple[Tensor, Tensor], spec: str) -> None:
    images, labels = sample[0][::2], sample[1][::2]
    assert top_k(predicted(deit, images, spec), labels) > 0.5
