"""The embedded sample: the model knows its clean images, and none of them is among the source."""

import pytest
import torch

import navia
from navia.data import sample
from navia.data.sources import Domain
from navia.evaluation.metrics import top_k


@pytest.mark.slow
def test_clean_accuracy_is_that_of_the_training_log() -> None:
    """90.1 % of all 2,000; 500 leave 1.3 points of standard error."""
    vit, domain = navia.load("embedded"), Domain("clean", sample.unseen_images())
    images = domain.tensors(range(500), vit.preprocessing)
    labels = torch.tensor([domain.label(i) for i in range(500)])
    with torch.no_grad():
        logits = torch.cat([vit(part) for part in images.split(50)])
    assert top_k(logits, labels) > 0.86


def test_counts_classes_and_no_image_twice() -> None:
    unseen, source = sample.unseen_images(), sample.source_images()
    assert (len(unseen), len(source)) == (2000, 256)
    assert unseen.labels is not None
    assert set(unseen.labels) == set(range(len(sample.CLASSES)))
    assert source.labels is None
    shown = {image.tobytes() for image in source.images}
    assert not any(image.tobytes() in shown for image in unseen.images)
