"""Checkpoints in the libraries' own names: what folds is folded, the rest is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import navia
from navia.data.preprocessing import Preprocessing
from navia.export import ExportError, open_delta, read_metadata
from navia.export.formats import fold
from navia.export.module import FrozenModel
from tests.export.models import MAKERS, model, moved, source
from tests.families import build, images_for, own_forward

FOLDS: list[tuple[str, dict[str, Any]]] = [
    ("align", {}),
    ("navia", {"biases": False}),
    ("foa_bp", {}),
    ("cotta", {"ema_decay": 0.5, "lr": 0.05}),
    ("none", {}),
]


@pytest.mark.parametrize(("method", "options"), FOLDS, ids=[method for method, _ in FOLDS])
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_fresh_model_with_the_file_predicts_what_the_adapter_does(
    library: str, method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    adapter = moved(library, method, **options)
    path = tmp_path / "model.safetensors"
    assert adapter.export(path).difference < 1e-5
    fresh = MAKERS[library]().eval()
    fresh.load_state_dict(load_file(path))
    images = images_for(model(library), 7)
    with torch.no_grad():
        assert (fresh(images) - adapter.predict(images)).abs().max() < 1e-5
    assert read_metadata(path).method == method
    assert (fresh(images) - own_forward(model(library), images)).abs().max() > 1e-3 or method == "none"  # it had moved


def _with_own_classifier(library: str, name: str) -> navia.Adapter:
    own = MAKERS[library]()
    setattr(own, name, nn.Sequential(nn.Dropout(0.5), getattr(own, name)))
    return navia.adapt(navia.load(own), "none")


def test_a_classifier_in_a_sequential_stays_one_in_a_file_of_weights(tmp_path: Path) -> None:
    assert _with_own_classifier("timm", "head").export(tmp_path / "model.safetensors").difference < 1e-5
    assert "head.1.weight" in load_file(tmp_path / "model.safetensors")


def test_a_transformers_folder_has_no_place_for_a_classifier_in_a_sequential(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no place for a classifier that is a Sequential: export as onnx or torch"):
        _with_own_classifier("transformers", "classifier").export(tmp_path / "model")


@pytest.mark.parametrize(("method", "options"), FOLDS, ids=[method for method, _ in FOLDS])
def test_transformers_loads_the_folder(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    adapter = moved("transformers", method, **options)
    assert adapter.export(tmp_path / "model").difference < 1e-5
    fresh = AutoModelForImageClassification.from_pretrained(tmp_path / "model").eval()
    images = images_for(model("transformers"), 7)
    with torch.no_grad():
        assert (fresh(images).logits - adapter.predict(images)).abs().max() < 1e-5
    assert fresh.config.id2label[3] == "dog"
    assert list(AutoImageProcessor.from_pretrained(tmp_path / "model").image_mean) == [0.5, 0.5, 0.5]
    found = read_metadata(tmp_path / "model")
    assert found == read_metadata(tmp_path / "model" / "model.safetensors")
    assert (found.method, found.steps) == (method, 2)


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing((48, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (48, 48), "bilinear"),
        Preprocessing((48, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (56, 56), "bicubic"),
        Preprocessing((48, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 56, "bicubic"),
        Preprocessing((48, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), None),
    ],
    ids=["squash", "squash and crop", "short side and crop", "crop only"],
)
def test_every_preprocessing_goes_with_the_folder(preprocessing: Preprocessing, tmp_path: Path) -> None:
    vit = navia.load(model("transformers").model, preprocessing=preprocessing)
    navia.adapt(vit, "none").export(tmp_path / "model")  # which compares what transformers would do
    assert read_metadata(tmp_path / "model").preprocessing == preprocessing
    assert navia.load(f"hf:{tmp_path / 'model'}").preprocessing.resize == preprocessing.resize


def test_reducer_and_mask_are_not_in_the_weights_but_are_compared_and_noted(tmp_path: Path) -> None:
    adapter = moved("timm", "align", "tome:8", classes=[4, 1])
    assert adapter.export(tmp_path / "model.safetensors").difference < 1e-5
    vit = navia.load(_timm_with(tmp_path / "model.safetensors"))
    images = images_for(vit, 7)
    with torch.no_grad():
        assert (vit(images, "tome:8", [4, 1]) - adapter.predict(images)).abs().max() < 1e-5
    assert read_metadata(tmp_path / "model.safetensors").reduce == "tome:8"
    assert read_metadata(tmp_path / "model.safetensors").classes == (4, 1)


def _timm_with(path: Path) -> torch.nn.Module:
    made = MAKERS["timm"]()
    made.load_state_dict(load_file(path))
    return made


def test_what_does_not_fold_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(
        ExportError, match=r"a timm checkpoint has no place for the CLS biases of block 0: export as onnx or t"
    ):
        moved("timm", "navia").export(path)
    with pytest.raises(ExportError, match="no place for the 3 extra tokens"):
        moved("timm", "foa", population=3).export(path)
    with pytest.raises(ExportError, match="CLS biases of block 0 and the 1 extra token:"):
        moved("timm", "navia", token="new").export(path)
    assert not list(tmp_path.iterdir())


def test_the_activation_shift_folds_only_where_the_classifier_reads_nothing_but_cls() -> None:
    vit = build("transformers dinov2")
    images = images_for(vit, 12)
    adapter = navia.adapt(vit, "foa_bp", source=navia.SourceStatistics.measure(vit, images))
    fold(FrozenModel(adapter))  # no shift before the first batch
    adapter(images)
    with pytest.raises(ExportError, match="its classifier reads other features too"):
        fold(FrozenModel(adapter))


def test_an_unadapted_navia_folds() -> None:
    adapter = navia.adapt(model("timm"), "navia", source=source("timm", "none"))
    own = dict(model("timm").model.named_parameters())
    assert all(torch.equal(p, own[name]) for name, p in fold(FrozenModel(adapter)).model.named_parameters())


@pytest.mark.parametrize("method", ["navia", "eata", "cotta", "sar", "foa_bp"])
def test_a_delta_needs_source_statistics_only_for_the_shift(method: str, tmp_path: Path) -> None:
    adapter = moved("timm", method, "tome:8")
    adapter.save(tmp_path / "delta.safetensors")
    if method == "foa_bp":
        with pytest.raises(navia.NaviaError, match="'foa_bp' shifts by source statistics"):
            open_delta(model("timm"), tmp_path / "delta.safetensors")
    given = source("timm", "tome:8") if method == "foa_bp" else None
    opened = open_delta(model("timm"), tmp_path / "delta.safetensors", given)
    images = images_for(model("timm"), 7)
    assert torch.equal(opened.predict(images), adapter.predict(images))
    assert opened.steps == 2
