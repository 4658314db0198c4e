"""DeiT-Ti and ImageNet validation images, for benchmarks of the real thing: where they lie, and how they become a batch."""

import os
from pathlib import Path

import numpy as np
import torch

import navia
from navia.data.corruptions import corrupt
from navia.data.preprocessing import open_image
from navia.data.sources import Folder

SHARED = Path(__file__).parents[2] / "shared"
MODEL = "timm:deit_tiny_patch16_224"
WEIGHTS = Path(os.environ.get("NAVIA_DEIT", SHARED / "deit_tiny_patch16_224" / "model.safetensors"))
IMAGES = Path(os.environ.get("NAVIA_IMAGENET", SHARED / "imagenet-val-2k"))


def pictures(folder: Folder, positions: list[int], corruption: str | None = None, severity: int = 5) -> np.ndarray:
    """As uint8 [N, 224, 224, 3]; each image's noise depends on its position alone."""
    found = [np.asarray(open_image(folder.paths[i]).convert("RGB")) for i in positions]
    if corruption is not None:
        found = [corrupt(picture, corruption, severity, seed=i) for i, picture in zip(positions, found, strict=True)]
    return np.stack(found)


def batch(vit: navia.ViT, found: np.ndarray) -> torch.Tensor:
    return torch.stack([vit.preprocessing.normalise(picture) for picture in found])
