"""Fixtures that every test may use: small models of all families, golden data, the real weights where they are present."""

import os
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from PIL import Image

import navia
from navia.data import sample
from tests import families

# Started in the background, the test run ignores Ctrl-C and so would the programs that it starts to interrupt them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("navia", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("navia")
torch.set_num_threads(1)  # the workers of the test run share the cores; more threads would wait for each other

SHARED = Path(__file__).parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers and browsers are slow. Files with many slow tests come first: parallel workers end together when only short
    files are left."""
    for item in items:
        if {"serve", "browser"} & set(item.path.parts):
            item.add_marker(pytest.mark.slow)
            # half a request, a connection that is cut: such tests leave sockets to the garbage collector on purpose
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a ViT of twelve narrow blocks, 16 image tokens and 10 classes, for tests of what is around a model."""
    folder = tmp_path_factory.mktemp("tiny") / "vit"
    families.tiny().save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture
def clothes(tmp_path: Path) -> Path:
    """Pictures of the embedded sample as files."""
    folder = tmp_path / "clothes"
    folder.mkdir()
    for i, image in enumerate(sample.source_images().images[:16]):
        Image.fromarray(image).save(folder / f"{i:02}.png")
    return folder


def write_by_class(root: Path, count: int) -> Path:
    """Labelled pictures of the embedded sample in folders that bear its classes' names."""
    unseen = sample.unseen_images()
    assert unseen.labels is not None
    for i in range(count):
        folder = root / sample.CLASSES[unseen.labels[i]]
        folder.mkdir(exist_ok=True)
        Image.fromarray(unseen.images[i]).save(folder / f"{i:04}.png")
    return root


@pytest.fixture(scope="session")
def clothes_by_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 pictures: more than a source needs."""
    return write_by_class(tmp_path_factory.mktemp("by class"), 320)


@pytest.fixture(scope="session")
def few_by_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """97 pictures: three batches of 32 and one that is left over."""
    return write_by_class(tmp_path_factory.mktemp("few by class"), 97)
