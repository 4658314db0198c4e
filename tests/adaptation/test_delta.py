"""Which deltas an adapter takes: only tensors, options and classes that are its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import navia
from navia.adaptation.delta import BrokenDeltaError, DeltaError, read_delta
from navia.export import open_delta
from navia.io import write_tensors
from tests.families import build, images_for

VIT = "timm plain"


@pytest.fixture(scope="module")
def vit() -> navia.ViT:
    return build(VIT)


@pytest.fixture(scope="module")
def source(vit: navia.ViT) -> navia.SourceStatistics:
    return navia.SourceStatistics.measure(vit, images_for(vit, 32, seed=9), fisher=True)


def saved(adapter: navia.Adapter, path: Path, batch: int = 12) -> Path:
    adapter(images_for(adapter.source_vit, batch) * 1.5 + 0.3)
    adapter.save(path)
    return path


def rewritten(path: Path, tensors: dict[str, Tensor] | None = None, **metadata: str) -> Path:
    """The same delta with other tensors or metadata, and a checksum that fits."""
    own, told = read_delta(path)
    kept = {name: value for name, value in told.items() if name not in ("navia", "version", "digest")}
    write_tensors(path, "delta", {**own, **(tensors or {})}, {**kept, **metadata})
    return path


@pytest.mark.parametrize(
    ("method", "saved_with", "other"),
    [
        ("navia", {"bias_position": "block_input"}, {}),
        ("navia", {"token": "re-initialised"}, {}),
        ("align", {"shift": True}, {}),
        ("none", {}, {"shift": True}),
        ("foa", {"population": 4, "shift": False}, {"population": 4}),
        ("lame", {"affinity": "rbf"}, {}),
    ],
)
def test_options_that_shape_the_answer_must_be_those_of_the_delta(
    vit: navia.ViT,
    source: navia.SourceStatistics,
    tmp_path: Path,
    method: str,
    saved_with: dict[str, Any],
    other: dict[str, Any],
) -> None:
    path = saved(navia.adapt(vit, method, source=source, **saved_with), tmp_path / "d.safetensors")
    with pytest.raises(DeltaError, match=r"belongs to another (bias_position|token|shift|affinity)"):
        navia.adapt(vit, method, source=source, **other).load(path)
    navia.adapt(vit, method, source=source, **saved_with).load(path)


def test_options_that_only_steer_learning_may_differ(vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path) -> None:
    path = saved(navia.adapt(vit, "navia", source=source, lr=1e-2), tmp_path / "d.safetensors")
    navia.adapt(vit, "navia", source=source, lr=1e-3, discrepancy_weight=1.0).load(path)


def test_classes_must_be_those_of_the_delta(vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path) -> None:
    path = saved(navia.adapt(vit, "align", source=source, classes=[4, 1, 2]), tmp_path / "d.safetensors")
    navia.adapt(vit, "align", source=source, classes=[4, 1, 2]).load(path)
    with pytest.raises(DeltaError, match=r"other classes: 4, 1, 2, not all of the model"):
        navia.adapt(vit, "align", source=source).load(path)
    with pytest.raises(DeltaError, match=r"not 0, 1, 2, 3, 4, \.\.\. \(6 in all\)"):
        navia.adapt(vit, "align", source=source, classes=range(6)).load(path)


def test_a_delta_from_before_classes_were_written_still_loads(
    vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path
) -> None:
    adapter = navia.adapt(vit, "align", source=source, classes=[4, 1, 2])
    path = saved(adapter, tmp_path / "d.safetensors")
    tensors, metadata = read_delta(path)
    old = {name: value for name, value in metadata.items() if name not in ("classes", "navia", "version", "digest")}
    write_tensors(path, "delta", tensors, old)
    x = images_for(vit, 4)
    for classes in (None, [4, 1, 2]):
        fresh = navia.adapt(vit, "align", source=source, classes=classes)
        fresh.load(path)
        assert torch.equal(fresh.predict(x) if classes else fresh.predict(x)[:, [4, 1, 2]], adapter.predict(x))


def test_an_eata_delta_of_another_number_of_classes_is_refused(
    vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path
) -> None:
    lively = {"margin": 1.0, "redundancy": 1.0}
    path = saved(navia.adapt(vit, "eata", source=source, **lively), tmp_path / "d.safetensors")
    rewritten(path, classes="[0, 1]")
    with pytest.raises(DeltaError, match="mean_prediction"):
        navia.adapt(vit, "eata", source=source, classes=[0, 1], **lively).load(path)


@pytest.mark.parametrize("name", ["memory.search", "memory.anything", "memory.prompts", "memory.recent"])
def test_only_tensors_that_the_method_knows_are_taken(
    vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path, name: str
) -> None:
    adapter = navia.adapt(vit, "foa", source=source, population=4)
    path = saved(adapter, tmp_path / "d.safetensors")
    rewritten(path, {name: torch.zeros(7)})
    before = adapter.predict(images_for(vit, 4))
    with pytest.raises(DeltaError, match=name):
        adapter.load(path)
    assert torch.equal(adapter.predict(images_for(vit, 4)), before)


@pytest.mark.parametrize("batch", [3, 12])
@pytest.mark.parametrize("method", ["none", "align", "foa", "foa_bp", "navia", "eata"])
def test_what_a_method_remembers_goes_into_an_adapter_that_remembers_something_else(
    vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path, method: str, batch: int
) -> None:
    """Among others the recent features of small batches, of which the two adapters have seen different numbers."""
    options: dict[str, dict[str, Any]] = {
        "none": {"shift": True},
        "foa": {"population": 4},
        "eata": {"margin": 1.0, "redundancy": 1.0},
    }
    first, second = (navia.adapt(vit, method, source=source, **options.get(method, {})) for _ in range(2))
    path = saved(first, tmp_path / "d.safetensors", batch)
    for size in (2, 2, 16):
        second(images_for(vit, size))
    second.load(path)
    x = images_for(vit, 4)
    assert torch.equal(second.predict(x), first.predict(x))


@pytest.mark.parametrize(
    "metadata", [{"options": "{"}, {"options": "[]"}, {"classes": '{"a": 1}'}, {"classes": '["a"]'}, {"steps": "many"}]
)
def test_unreadable_metadata_is_a_broken_delta(
    vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path, metadata: dict[str, str]
) -> None:
    adapter = navia.adapt(vit, "align", source=source)
    path = rewritten(saved(adapter, tmp_path / "d.safetensors"), **metadata)
    with pytest.raises(BrokenDeltaError):
        adapter.load(path)


def test_exported_it_answers_with_its_own_classes(vit: navia.ViT, source: navia.SourceStatistics, tmp_path: Path) -> None:
    masked, whole = (navia.adapt(vit, "align", source=source, classes=classes) for classes in ([4, 1, 2], None))
    x = images_for(vit, 4)
    path = saved(masked, tmp_path / "masked.safetensors")
    assert torch.equal(open_delta(vit, path).predict(x), masked.predict(x))
    assert torch.equal(open_delta(vit, path, classes=[4, 1, 2]).predict(x), masked.predict(x))
    with pytest.raises(DeltaError, match="predicts classes 4, 1, 2, not 4, 1: give none, or these"):
        open_delta(vit, path, classes=[4, 1])
    path = saved(whole, tmp_path / "whole.safetensors")
    assert torch.equal(open_delta(vit, path, classes=[3, 0]).predict(x), whole.predict(x)[:, [3, 0]])
