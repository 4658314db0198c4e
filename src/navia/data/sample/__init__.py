"""The embedded sample: a small ViT trained on Fashion-MNIST (tools/train_sample.py) and a part of its images, so that
everything can be tried without a network. The images are Zalando's, under the MIT licence (NOTICE beside this file)."""

from pathlib import Path

import numpy as np

from navia.data.domain import Pixels

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model.safetensors"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN, STD = 0.2860, 0.3530


def unseen_images() -> Pixels:
    """2,000 labelled images that the model was not trained on."""
    with np.load(FOLDER / "images.npz") as data:
        return Pixels(data["images"], [int(label) for label in data["labels"]], "test")


def source_images() -> Pixels:
    """256 clean images of the training part, without labels: what a user would keep for statistics."""
    with np.load(FOLDER / "images.npz") as data:
        return Pixels(data["source"], None, "source")
