"""Real weights on real images, where both are present: accuracies that a wrong step on the way would miss."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import navia
from navia.data.sources import Domain, scan
from navia.evaluation.metrics import top_k

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sample(deit: navia.ViT, imagenet: Path) -> tuple[Tensor, Tensor]:
    """Every fifth image, already cut to 224 px, and its class among the sorted folders."""
    folder = scan(imagenet)
    assert folder.labels is not None
    assert folder.class_names is not None
    assert len(folder.class_names) == 1000
    images = Domain("clean", folder).tensors(range(0, len(folder), 5), deit.preprocessing.crop_only())
    return images, torch.tensor(folder.labels[::5])


def accuracy(vit: navia.ViT, images: Tensor, labels: Tensor, spec: str) -> float:
    with torch.no_grad():
        return top_k(torch.cat([vit(part, reduce=spec) for part in images.split(50)]), labels)


def test_dense_accuracy_is_that_of_the_weights_and_tome_costs_little_of_it(
    deit: navia.ViT, sample: tuple[Tensor, Tensor]
) -> None:
    """73.8 % on all two thousand images; 400 of them leave 2.2 points of standard error, and the band 3.5 of these."""
    images, labels = sample
    assert len(images) == 400
    dense, merged = (accuracy(deit, images, labels, spec) for spec in ("none", "tome:8"))
    assert 0.66 <= dense <= 0.815
    assert dense - 0.06 <= merged <= dense + 0.03


@pytest.mark.parametrize("spec", ["evit:8", "tofu:8"])
def test_other_reducers_still_see(deit: navia.ViT, sample: tuple[Tensor, Tensor], spec: str) -> None:
    images, labels = sample
    assert accuracy(deit, images[::4], labels[::4], spec) > 0.5


@pytest.mark.parametrize(("precision", "agreement"), [("bfloat16", 0.95), ("int8", 0.9)])
def test_other_precisions_predict_the_same(
    deit: navia.ViT, sample: tuple[Tensor, Tensor], precision: str, agreement: float
) -> None:
    """Without reduction: on 200 images int8 agreed with float32 on 97.5 %."""
    images = sample[0][::4]
    with torch.no_grad():
        exact, low = deit(images), navia.load(deit, precision=precision)(images)
    assert (exact.argmax(dim=1) == low.argmax(dim=1)).float().mean() >= agreement
