"""The embedded sample: a small ViT trained on Fashion-MNIST (tools/train_sample.py) and some of its images, to try
everything without a network. The images are Zalando's, under the MIT licence (NOTICE beside this file)."""

from pathlib import Path

import numpy as np

from navia.data.sources import ArrayImages

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model.safetensors"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN, STD = 0.2860, 0.3530


def unseen_images() -> ArrayImages:
    """2,000 labelled images that the model was not trained on."""
    with np.load(FOLDER / "images.npz") as data:
        return ArrayImages(data["images"], [int(label) for label in data["labels"]], "test")


def source_images() -> ArrayImages:
    """256 clean images of the training set, without labels, for source statistics."""
    with np.load(FOLDER / "images.npz") as data:
        return ArrayImages(data["source"], None, "source")
