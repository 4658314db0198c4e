"""ONNX and torch.export: the files predict what the adapter predicts, in batches of any size."""

import logging
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

import navia
from navia.errors import NaviaError
from navia.export import ExportError, read_metadata
from navia.methods.base import METHODS, Method, Prediction
from navia.methods.options import SGDOptions
from tests.export.models import REDUCERS, model, moved
from tests.families import images_for

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("library", "reduce"), [*(("timm", reduce) for reduce in REDUCERS), ("transformers", "none"), ("transformers", "tome:8")]
)
def test_onnxruntime_predicts_what_the_adapter_does(library: str, reduce: str, tmp_path: Path) -> None:
    """NAVIA with everything that it adds; on timm also with class indices."""
    classes = [7, 2, 3] if library == "timm" else None
    adapter = moved(library, "navia", reduce, classes=classes)
    assert all(bool(bias.any()) for bias in adapter.method.token_edits().cls_bias.values())
    path = tmp_path / "model.onnx"
    parity = adapter.export(path)
    assert parity.difference < 1e-4
    assert parity.agree == parity.images
    assert set(parity.differences) >= {1, 7}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 7, 20):
        images = images_for(model(library), batch, seed=40 + batch)
        (logits,) = session.run(None, {"images": images.numpy()})
        assert (torch.from_numpy(logits) - adapter.predict(images)).abs().max() < 1e-4, batch
    found = read_metadata(path)
    assert found.preprocessing == model(library).preprocessing
    assert (found.method, found.reduce, found.steps) == ("navia", reduce, 2)
    assert found.classes == (None if classes is None else tuple(classes))
    assert found.labels == (None if classes else ("ant", "bee", "cat", "dog", "eel", "fox", "gnu"))
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "batch"
    assert str(Path.cwd()).encode() not in path.read_bytes()  # nothing of this machine
    onnx.checker.check_model(path)


@pytest.mark.parametrize(
    ("library", "method", "reduce"),
    [("timm", "foa", "tome:8"), ("torchvision", "cotta", "tofu:2"), ("timm", "none", "none")],
)
def test_a_loaded_program_predicts_what_the_adapter_does(library: str, method: str, reduce: str, tmp_path: Path) -> None:
    """FOA: prompts and activation shift; CoTTA: the teacher, not the student."""
    options = {"foa": {"population": 3}, "cotta": {"ema_decay": 0.5, "lr": 0.05}}.get(method, {})
    adapter = moved(library, method, reduce, **options)
    parity = adapter.export(tmp_path / "model.pt2", "torch")
    assert parity.difference < 1e-6
    program = torch.export.load(tmp_path / "model.pt2").module()
    for batch in (1, 7, 20):
        images = images_for(model(library), batch, seed=60 + batch)
        assert (program(images) - adapter.predict(images)).abs().max() < 1e-5
    found = read_metadata(tmp_path / "model.pt2")
    assert (found.model, found.method, found.reduce) == (model(library).name, method, reduce)
    assert found.options == vars(adapter.method.options)


def test_lame_is_refused_because_images_depend_on_each_other(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"'lame' corrects the predictions of a batch by one another.*'none'"):
        navia.adapt(model("timm"), "lame").export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_method_that_changes_its_predictions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(Method):
        name = "doubled"
        Options = SGDOptions

        def forward_step(self, images: torch.Tensor) -> Prediction:
            return self.forward_with_grad(images)

        def predict(self, images: torch.Tensor) -> torch.Tensor:
            return 2 * super().predict(images)

    monkeypatch.setitem(METHODS._entries, "doubled", Doubled)
    with pytest.raises(ExportError, match="'doubled' changes logits after the forward"):
        navia.adapt(model("timm"), "doubled").export(tmp_path / "model.pt2")


def test_a_broken_adapter_is_refused(tmp_path: Path) -> None:
    adapter = navia.adapt(model("timm"), "tent")
    with torch.no_grad():
        next(iter(adapter.method.parameters.values())).fill_(float("nan"))
    with pytest.raises(ExportError, match="NaN or infinite"):
        adapter.export(tmp_path / "model.pt2")


def test_onnx_without_its_packages_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(NaviaError, match=r"needs the onnxscript package: pip install 'navia\[export\]'"):
        navia.adapt(model("timm"), "none").export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_the_exporters_loggers_keep_their_levels() -> None:
    from navia.export.formats import _quiet

    logger = logging.getLogger("onnxscript")
    before = logger.level
    with _quiet():
        assert logger.level == logging.ERROR
    assert logger.level == before
