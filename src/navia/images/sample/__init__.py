"""The embedded sample: a small ViT trained on Fashion-MNIST and a few hundred test images, so that everything can be tried
without a network. The same files carry the golden tests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent
MODEL = FOLDER / "model.safetensors"
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN, STD = 0.2860, 0.3530
DOMAINS = {"gaussian noise": "A", "low contrast": "B"}


@dataclass(frozen=True)
class Sample:
    """source [64, 1, 28, 28]: clean images; domains: shifted images [192, 1, 28, 28] and labels [192] by name."""

    source: Tensor
    domains: dict[str, tuple[Tensor, Tensor]]


def load_sample() -> Sample:
    with np.load(FOLDER / "images.npz") as data:
        domains = {
            name: (torch.from_numpy(data[f"x_{key}"]).flatten(0, 1), torch.from_numpy(data[f"y_{key}"]).flatten())
            for name, key in DOMAINS.items()
        }
        return Sample(torch.from_numpy(data["source_images"]), domains)
