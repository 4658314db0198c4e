"""Fixtures that every test may use: small models of all families, golden data, the real weights where they are present."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from navia.vit.torchvision_ops import ensure_torchvision_imports

ensure_torchvision_imports()

import navia  # noqa: E402
from tests import families  # noqa: E402

torch.set_num_threads(1)  # the workers of the test run share the cores; more threads would wait for each other

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden_vit() -> navia.ViT:
    """The small ViT that the golden outputs were recorded on. Treat as read-only."""
    return families.golden_model()


@pytest.fixture(scope="session")
def golden_inputs() -> dict[str, np.ndarray]:
    return families.golden("inputs")


@pytest.fixture(scope="session")
def deit() -> navia.ViT:
    """DeiT-Ti with ImageNet weights, where they are present."""
    path = Path(os.environ.get("NAVIA_DEIT", SHARED / "deit_tiny_patch16_224" / "model.safetensors"))
    if not path.is_file():
        pytest.skip("no DeiT-Ti weights: set NAVIA_DEIT to model.safetensors")
    return navia.load("timm:deit_tiny_patch16_224", checkpoint=path)


@pytest.fixture(scope="session")
def imagenet() -> Path:
    """A folder of ImageNet validation images in wnid folders, where it is present."""
    path = Path(os.environ.get("NAVIA_IMAGENET", SHARED / "imagenet-val-2k"))
    if not path.is_dir():
        pytest.skip("no ImageNet images: set NAVIA_IMAGENET to a folder of wnid folders")
    return path
