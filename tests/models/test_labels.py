"""What classes are called: only where the model, its weights, the data or the user say so."""

from pathlib import Path
from typing import Any

import pytest
import timm
import transformers
from safetensors.torch import save_file
from torchvision.models import VisionTransformer as TorchvisionViT

import navia
from navia.data import imagenet
from navia.data.sources import open_domains
from navia.errors import InputError
from navia.models.labels import class_names
from tests.families import build

SMALL: dict[str, Any] = {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3}
HF = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 96, "image_size": 32}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a ViT with 1,000 classes."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", **SMALL).state_dict(), path)
    return path


def test_a_model_of_ones_own_with_1000_classes_has_no_names(weights: Path) -> None:
    assert class_names(navia.load("timm:vit_tiny_patch16_224", checkpoint=weights, **SMALL)) is None
    assert class_names(navia.load(timm.create_model("vit_tiny_patch16_224", **SMALL))) is None
    assert class_names(navia.load("timm:vit_tiny_patch16_224", pretrained=False, **SMALL)) is None
    assert class_names(navia.load(TorchvisionViT(32, 8, 1, 3, 48, 96, num_classes=1000))) is None
    unnamed = transformers.ViTForImageClassification(transformers.ViTConfig(**HF, patch_size=8, num_labels=1000))
    assert class_names(navia.load(unnamed)) is None


def test_weights_of_the_library_have_the_names_of_imagenet(weights: Path) -> None:
    published: dict[str, Any] = {"pretrained_cfg_overlay": {"file": str(weights)}, **SMALL}
    vit = navia.load("timm:deit_tiny_patch16_224.fb_in1k", **published)
    assert class_names(vit) == imagenet.names()
    assert class_names(navia.load(vit, checkpoint=weights)) is None  # other weights than the library's
    retrained = navia.load("timm:deit_tiny_patch16_224.fb_in1k", num_classes=5, **published)
    assert class_names(retrained) is None


def test_the_user_says_what_classes_are_called(tmp_path: Path, weights: Path) -> None:
    (tmp_path / "names.txt").write_text("".join(f"class {i}\n" for i in range(11)))
    model = build("timm plain").model
    assert class_names(navia.load(model, labels=tmp_path / "names.txt")) == tuple(f"class {i}" for i in range(11))
    assert class_names(navia.load(model, labels=list("abcdefghijk"))) == tuple("abcdefghijk")
    of_imagenet = navia.load("timm:vit_tiny_patch16_224", checkpoint=weights, labels="imagenet", **SMALL)
    assert class_names(of_imagenet) == imagenet.names()
    with pytest.raises(InputError, match="2 names for a model of 11 classes"):
        navia.load(model, labels=["one", "two"])
    with pytest.raises(InputError, match="1000 names for a model of 11 classes"):
        navia.load(model, labels="imagenet")
    with pytest.raises(InputError, match=r"labels are 'imagenet', a list of names or a file .* 'nowhere.txt'"):
        navia.load(model, labels="nowhere.txt")


def _pictures(root: Path, folders: list[str]) -> Path:
    for name in folders:
        (root / name).mkdir(parents=True)
        (root / name / "one.png").touch()
    return root


def test_folders_named_by_wnids_tell_that_the_classes_are_those_of_imagenet(tmp_path: Path) -> None:
    assert open_domains(_pictures(tmp_path / "a", ["n01440764", "n01443537"]), 1000).names == imagenet.names()
    assert open_domains(_pictures(tmp_path / "b", ["0", "1"]), 1000).names is None
    own = [f"class {i}" for i in range(1000)]
    assert open_domains(_pictures(tmp_path / "c", ["class 7"]), 1000, own).names == tuple(own)
    assert open_domains("embedded", 10).names is None
