"""The comparison: what it lets pass, what it refuses, and that a refused file is not left behind."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import navia
from navia.errors import InputError, SpecError
from navia.export import FORMATS, ExportError, read_metadata
from navia.export.formats import Format
from navia.export.module import FrozenModel
from navia.export.parity import Parity, _is_tie, compare, comparison_images, random_images
from tests.export.models import model
from tests.families import build, images_for


def plain(reduce: str = "none") -> navia.Adapter:
    return navia.adapt(model("timm"), "none", reduce)


def compared(wrong: dict[int, float], reduce: str = "none", tolerance: float = 1e-4) -> Parity:
    """The comparison with a file whose logits of some images (by position) are wrong."""
    adapter, shown = plain(reduce), comparison_images(model("timm"), None)

    def exported(images: Tensor) -> Tensor:
        logits = adapter.predict(images)
        for position, error in wrong.items():
            same = (images == shown[position]).flatten(1).all(dim=1)
            logits[same] += error
        return logits

    return compare(exported, adapter.predict, FrozenModel(adapter), shown, tolerance)


def test_every_image_and_batch_size_counts() -> None:
    parity = compared({})
    assert (parity.images, parity.agree, parity.difference, parity.beyond) == (16, 16, 0.0, 0)
    assert list(parity.differences) == [1, 7, 8]
    assert parity.passed
    assert compared({0: 5e-5}).passed
    parity = compared({0: 5e-5, 3: 1e-2})
    assert parity.beyond == 1
    assert not parity.passed
    assert parity.differences[1] == pytest.approx(5e-5, rel=0.1)
    assert parity.differences[7] == pytest.approx(1e-2, rel=0.1)
    assert "max |difference| 1.0e-02 over 16 images in batches of 1, 7, 8" in parity.describe()
    assert "1 beyond 0.0001" in parity.describe()


def test_nan_is_no_parity() -> None:
    parity = compared({5: float("nan")})
    assert parity.difference == float("inf")
    assert not parity.passed


def test_other_shapes_are_refused() -> None:
    adapter = plain()
    with pytest.raises(ExportError, match=r"shape \(1, 3\), not \(1, 10\)"):
        compare(
            lambda x: adapter.predict(x)[:, :3],
            adapter.predict,
            FrozenModel(adapter),
            comparison_images(model("timm"), None),
            1e-4,
        )


def test_a_wrong_logit_is_no_tie_just_because_tokens_are_merged() -> None:
    parity = compared({3: 1e-2}, "tome:8")
    assert (parity.beyond, parity.ties) == (1, 0)
    assert not parity.passed


def test_a_tie_between_tokens_is_told_from_an_error() -> None:
    """Four equal quarters and no positions: every token has exact equals, and which of them are merged is arbitrary. (With
    sizes in the attention nobody would notice.)"""
    vit = model("timm")
    frozen = FrozenModel(navia.adapt(vit, "none", "tome:8,proportional=false"))
    frozen.vit.model.pos_embed.data = torch.zeros_like(frozen.vit.model.pos_embed)
    tied = images_for(vit, 1)[0, :, :14, :14].repeat(1, 2, 2)
    assert _is_tie(frozen, tied, 1e-5)
    assert not _is_tie(frozen, images_for(vit, 1)[0], 1e-5)
    assert not _is_tie(FrozenModel(navia.adapt(vit, "none")), tied, 0.0)  # nothing is chosen there


def test_ties_are_let_pass_only_while_they_are_the_exception() -> None:
    assert Parity(16, {1: 0.1}, 16, 8, 8, 1e-4).passed
    assert not Parity(16, {1: 0.1}, 16, 9, 9, 1e-4).passed
    assert "3 beyond 0.0001 (2 by ties between tokens)" in Parity(16, {1: 0.1}, 16, 3, 2, 1e-4).describe()


@pytest.mark.parametrize("name", ["timm grey, oblong", "timm dynamic size", "transformers dinov2"])
def test_random_images_look_like_preprocessed_ones(name: str) -> None:
    vit = build(name)
    made = random_images(vit, 4)
    vit.check_images(made)
    pixels = vit.preprocessing.denormalise(made)
    assert pixels.min() >= -1e-6
    assert pixels.max() <= 1 + 1e-6
    near = (pixels[..., 1:] - pixels[..., :-1]).abs().mean()
    far = (pixels[..., pixels.shape[-1] // 2 :] - pixels[..., : -(pixels.shape[-1] // 2)]).abs().mean()
    assert near < 0.6 * far  # neighbours are alike
    assert torch.equal(made, random_images(vit, 4))


def test_own_pictures_fill_every_batch() -> None:
    vit = model("timm")
    assert len(comparison_images(vit, images_for(vit, 3))) == 8
    assert len(comparison_images(vit, images_for(vit, 30))) == 30
    with pytest.raises(InputError, match="channel"):
        comparison_images(vit, torch.zeros(2, 3, 28, 28))


# ---- what happens to files


@pytest.fixture
def wrong_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format whose files return other logits."""
    honest = FORMATS["checkpoint"]
    off = Format(honest.suffix, honest.write, lambda path, frozen: lambda images: honest.open(path, frozen)(images) + 1)
    monkeypatch.setitem(FORMATS, "checkpoint", off)


@pytest.mark.usefixtures("wrong_format")
def test_a_refused_file_is_not_left_behind_and_an_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(ExportError, match=r"model.safetensors does not predict what the adapter.* 1.0e\+00 over 16 images"):
        plain().export(path)
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    with pytest.raises(ExportError):
        plain().export(path, force=True)
    assert path.read_text() == "old"
    assert plain().export(path, force=True, tolerance=2.0).difference > 0.9


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    plain().export(path)
    with pytest.raises(InputError, match=r"exists already.*force=True") as refused:
        plain().export(path)
    assert "--force" in refused.value.command_line
    plain("tome:4").export(path, force=True)
    assert read_metadata(path).reduce == "tome:4"
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]


def test_only_exported_folders_are_replaced(tmp_path: Path) -> None:
    adapter = navia.adapt(model("transformers"), "none")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("all my work")
    with pytest.raises(InputError, match="did not export"):
        adapter.export(home, "checkpoint", force=True)
    assert (home / "thesis.txt").is_file()
    adapter.export(tmp_path / "model")
    (tmp_path / "model" / "old.txt").write_text("")
    adapter.export(tmp_path / "model", force=True)
    assert not (tmp_path / "model" / "old.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "model"]


@pytest.mark.parametrize(
    ("library", "path", "format", "message"),
    [
        ("timm", "model.bin", None, r"which format is 'model.bin'\? Known: .onnx \(onnx\), .pt2 \(torch\), .safetensors"),
        ("timm", "model", None, "which format is 'model'"),
        ("transformers", "model.safetensors", None, r"a folder \(checkpoint\)"),
        ("timm", "model.onnx", "tflite", "unknown format 'tflite'; known: onnx, torch, checkpoint"),
        ("timm", "model.onnx", "torch", "must end with .pt2, got 'model.onnx'"),
        ("transformers", "model.safetensors", "checkpoint", "must be a folder"),
    ],
)
def test_paths_that_do_not_suit_the_format(
    library: str, path: str, format: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        navia.adapt(model(library), "none").export(tmp_path / path, format)


def test_foreign_files_have_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no exported file"):
        read_metadata(tmp_path / "model.onnx")
    for name in ("model.onnx", "model.pt2", "model.safetensors"):
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(ExportError, match="was not exported by navia, or is damaged"):
            read_metadata(tmp_path / name)
    with pytest.raises(ExportError, match="not exported by navia"):
        read_metadata(tmp_path)
