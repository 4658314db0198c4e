"""Statistics, deltas, options, choice and streams as they are in the field."""

import dataclasses
import io
import logging
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BatchFeature

import navia
from navia.adaptation.delta import DeltaError
from navia.adaptation.guard import GuardOptions
from navia.data.loader import Batch, Loader
from navia.data.sources import open_source
from navia.data.streams import make_stream
from navia.errors import InputError, SourceError, SpecError
from navia.methods import foa
from navia.methods.features import batch_moments, entropy
from navia.methods.parameters import weights_and_biases
from tests.families import build, images_for, shake

VIT = "timm plain"


@pytest.fixture(scope="module")
def vit() -> navia.ViT:
    return build(VIT)


@pytest.fixture(scope="module")
def source(vit: navia.ViT) -> navia.SourceStatistics:
    return navia.SourceStatistics.measure(vit, images_for(vit, 48, seed=9), "tome:2")


def shifted(vit: navia.ViT, count: int, seed: int) -> torch.Tensor:
    return images_for(vit, count, seed=seed) * 1.5 + 0.3


class TestSourceStatistics:
    def test_tensor_loader_and_folder_agree(self, vit: navia.ViT, tmp_path: Path) -> None:
        pictures = []
        for i in range(6):
            pixels = torch.randint(0, 255, (40, 36, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
            picture = Image.fromarray(pixels.numpy())
            picture.save(tmp_path / f"{i}.png")
            pictures.append(picture)
        tensor = vit.preprocessing.batch(pictures)
        of_tensor = navia.SourceStatistics.measure(vit, tensor, "tome:2")
        of_loader = navia.SourceStatistics.measure(vit, [(tensor[:4], "labels"), (tensor[4:], "labels")], "tome:2")
        of_folder = navia.SourceStatistics.measure(vit, tmp_path, "tome:2", batch_size=4)
        for other in (of_loader, of_folder):
            torch.testing.assert_close(other.mean, of_tensor.mean)
            torch.testing.assert_close(other.std, of_tensor.std)
            assert other.provenance == of_tensor.provenance

    def test_limit(self, vit: navia.ViT) -> None:
        images = images_for(vit, 20)
        some = navia.SourceStatistics.measure(vit, images, limit=10, batch_size=4)
        assert some.provenance.count == 10
        torch.testing.assert_close(some.mean, navia.SourceStatistics.measure(vit, images[:10]).mean)

    def test_save_and_load(self, vit: navia.ViT, tmp_path: Path) -> None:
        measured = navia.SourceStatistics.measure(vit, images_for(vit, 8), "evit:2", fisher=True)
        measured.save(tmp_path / "source.safetensors")
        loaded = navia.SourceStatistics.load(tmp_path / "source.safetensors")
        assert torch.equal(loaded.mean, measured.mean)
        assert torch.equal(loaded.std, measured.std)
        assert loaded.provenance == measured.provenance
        assert all(torch.equal(loaded.fisher[name], value) for name, value in measured.fisher.items())
        navia.adapt(vit, "align", "evit:2", tmp_path / "source.safetensors")(images_for(vit, 9))

    def test_discrepancy_of_the_source_itself_is_zero(self, vit: navia.ViT) -> None:
        images = images_for(vit, 16)
        own = navia.SourceStatistics.measure(vit, images, "tome:2")
        adapter = navia.adapt(vit, "align", "tome:2", own)
        adapter(images)
        assert adapter.last is not None
        assert adapter.last.discrepancy == pytest.approx(0, abs=1e-10)

    def test_foreign_statistics_are_refused_by_name(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        with pytest.raises(SourceError, match=r"tome:2, not tome:3"):
            navia.adapt(vit, "align", "tome:3", source)
        with pytest.raises(SourceError, match="other weights"):
            navia.adapt(build(VIT, seed=5), "align", "tome:2", source)
        with pytest.raises(SourceError, match="other weights"):
            navia.adapt(build("torchvision"), "align", "tome:2", _as_if(source, build("torchvision")))
        other = build(VIT)
        other.preprocessing = dataclasses.replace(vit.preprocessing, mean=(0.1, 0.2, 0.3))
        with pytest.raises(SourceError, match="preprocessing"):
            navia.adapt(other, "align", "tome:2", source)

    def test_broken_files(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no source statistics file"):
            navia.SourceStatistics.load(tmp_path / "nothing")
        (tmp_path / "rubbish").write_bytes(b"not a tensor file at all")
        with pytest.raises(SourceError, match="cannot read"):
            navia.SourceStatistics.load(tmp_path / "rubbish")

    def test_one_image_is_too_few(self, vit: navia.ViT) -> None:
        with pytest.raises(InputError, match="at least 2"):
            navia.SourceStatistics.measure(vit, images_for(vit, 1))


def _as_if(source: navia.SourceStatistics, vit: navia.ViT) -> navia.SourceStatistics:
    pre = vit.preprocessing
    own = dataclasses.replace(source.provenance, size=pre.size, mean=pre.mean, std=pre.std)
    return dataclasses.replace(source, provenance=own)


class Reading(NamedTuple):
    """A batch of somebody else's loader."""

    images: torch.Tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda images: (images, torch.zeros(len(images))),
        lambda images: [images, torch.zeros(len(images))],
        lambda images: {"labels": torch.zeros(len(images)), "pixel_values": images},
        lambda images: {"images": images},
        lambda images: {"image": images},
        lambda images: Batch(images, torch.zeros(len(images)), (), (), 0, False),
        lambda images: Reading(images),
        lambda images: BatchFeature({"pixel_values": images}),
    ],
)
def test_batches_of_all_usual_loaders_are_taken_alike(
    vit: navia.ViT, source: navia.SourceStatistics, wrap: Callable[[torch.Tensor], Any]
) -> None:
    """By `measure`, `choose`, and the adapter's `answer`, `predict` and call."""
    images = shifted(vit, 16, 0)
    of_tensor = navia.SourceStatistics.measure(vit, images)
    of_loader = navia.SourceStatistics.measure(vit, [wrap(half) for half in images.split(8)])
    torch.testing.assert_close(of_loader.mean, of_tensor.mean)
    one, other = (navia.adapt(vit, "navia", "tome:2", source) for _ in range(2))
    assert torch.equal(one.predict(wrap(images)), other.predict(images))
    assert torch.equal(one(wrap(images)), other(images))
    assert torch.equal(one.forward_step(wrap(images)).logits, other.forward_step(images).logits)
    settings: dict[str, Any] = {"reduce": "tome:2", "grid": {"budget": (1,)}, "batch_size": 8}
    chosen = navia.choose(vit, [wrap(half) for half in images.split(8)], source, **settings)
    assert chosen.table == navia.choose(vit, images, source, **settings).table


def test_navias_own_loader_is_taken(tmp_path: Path) -> None:
    embedded = navia.load("embedded")
    stream = make_stream([open_source("embedded", 8)], seed=None)
    measured = navia.SourceStatistics.measure(embedded, Loader(stream, embedded.preprocessing, 4))
    assert measured.provenance.count == 8


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        ({"labels": torch.zeros(2)}, "pixel_values, images or image; it has labels"),
        ((), "empty tuple"),
        (("labels",), "images must be a tensor .*got str"),
        (3, "images must be a tensor .*got int"),
    ],
)
def test_batches_without_images_are_refused_by_name(vit: navia.ViT, batch: Any, complaint: str) -> None:
    adapter = navia.adapt(vit, "none")
    for refuse in (adapter, adapter.predict, lambda batch: navia.SourceStatistics.measure(vit, [batch])):
        with pytest.raises(InputError, match=complaint):
            refuse(batch)


class TestBadRequests:
    @pytest.mark.parametrize("method", ["align", "navia", "foa", "foa_bp"])
    def test_method_without_its_statistics(self, vit: navia.ViT, method: str) -> None:
        with pytest.raises(SourceError, match=rf"{method}.*needs source statistics"):
            navia.adapt(vit, method)

    def test_eata_without_fisher(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        with pytest.raises(SourceError, match="fisher=True"):
            navia.adapt(vit, "eata", "tome:2", source)
        with pytest.raises(SourceError, match=r"measure\(vit, images, reduce, fisher=True\)"):
            navia.adapt(vit, "eata", "tome:2")
        navia.adapt(vit, "eata", "tome:2", fisher=0.0)

    def test_unknown_method_and_option(self, vit: navia.ViT) -> None:
        with pytest.raises(SpecError, match=r"unknown method 'tnet'; known: align, .*tent"):
            navia.adapt(vit, "tnet")
        with pytest.raises(SpecError, match=r"no option 'learning_rate'; known: lr, momentum"):
            navia.adapt(vit, "tent", learning_rate=1e-3)

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("tent", {"lr": -1e-3}),
            ("tent", {"lr": float("nan")}),
            ("sar", {"variant": "best"}),
            ("deyo", {"layers": "some"}),
            ("lame", {"affinity": "cosine"}),
            ("lame", {"neighbours": 0}),
            ("navia", {"layers": "middle"}),
            ("navia", {"layers": [0, 99]}),
            ("navia", {"layers": [1, 1]}),
            ("navia", {"budget": 99}),
            ("navia", {"bias_position": "nowhere"}),
            ("navia", {"token": "two"}),
            ("navia", {"budget": "six"}),
            ("navia", {"budget": 2.0}),
            ("navia", {"layers": 3}),
            ("navia", {"layers": [0, "1"]}),
            ("align", {"buffer_size": 0}),
            ("align", {"min_batch": 40}),
            ("foa", {"buffer_size": 6}),
            ("foa", {"prompts": 0}),
            ("foa", {"population": 2}),
        ],
    )
    def test_bad_option_values(
        self, vit: navia.ViT, source: navia.SourceStatistics, method: str, options: dict[str, object]
    ) -> None:
        with pytest.raises(SpecError):
            navia.adapt(vit, method, "tome:2", source, **options)

    @pytest.mark.parametrize(
        ("method", "options", "complaint"),
        [
            ("navia", {"embedding": "False"}, "option embedding must be true or false, got 'False'"),
            ("navia", {"biases": 0}, "option biases must be true or false, got 0"),
            ("tent", {"lr": "abc"}, "option lr must be a number, got 'abc'"),
            ("tent", {"momentum": True}, "option momentum must be a number, got True"),
            ("lame", {"neighbours": 2.5}, "option neighbours must be a whole number, got 2.5"),
            ("lame", {"neighbours": None}, "option neighbours must be a whole number, got None"),
        ],
    )
    def test_options_of_another_kind_are_refused_by_name(
        self, vit: navia.ViT, source: navia.SourceStatistics, method: str, options: dict[str, object], complaint: str
    ) -> None:
        with pytest.raises(SpecError, match=re.escape(complaint)):
            navia.adapt(vit, method, "tome:2", source, **options)

    def test_numbers_of_numpy_and_whole_rates_are_numbers(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        navia.adapt(
            vit, "navia", "tome:2", source, lr=np.float32(1e-3), discrepancy_weight=30, min_batch=np.int64(8), layers=(0, 2)
        )

    @pytest.mark.parametrize(
        "options", [{"every": 0}, {"images": 0}, {"patience": 0}, {"drift": -1.0}, {"away": float("nan")}]
    )
    def test_impossible_guards(self, options: dict[str, Any]) -> None:
        with pytest.raises(SpecError, match=f"guard's {next(iter(options))} must be at least"):
            GuardOptions(**options)


class TestDelta:
    def test_small_and_only_what_moved(self, source: navia.SourceStatistics, vit: navia.ViT, tmp_path: Path) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source, eta_delta=0.0)
        adapter(shifted(vit, 16, 0))
        adapter.save(tmp_path / "d.safetensors")
        from safetensors import safe_open

        with safe_open(tmp_path / "d.safetensors", "pt") as file:
            names = set(file.keys())
            assert file.metadata()["method"] == "navia"
        assert "delta" not in names  # its learning rate was 0
        assert "delta_l.0" in names
        assert not any("mlp" in name or "attn" in name for name in names)

    def test_vit_base_delta_is_below_300_kb(self, tmp_path: Path) -> None:
        """LayerNorms 38,400 + CLS 768 + 6 biases of 768, as methods and files count them."""
        base = navia.load("timm:vit_base_patch16_224", pretrained=False)
        stats = navia.SourceStatistics.measure(base, torch.randn(2, 3, 224, 224), "tome:8")
        adapter = navia.adapt(base, "navia", "tome:8", stats)
        assert adapter.trainable == 38_400 + 768 + 6 * 768
        with torch.no_grad():
            for parameter in adapter.method.parameters.values():
                parameter.add_(0.01)
        adapter.save(tmp_path / "d.safetensors")
        assert (tmp_path / "d.safetensors").stat().st_size < 300_000

    def test_foreign_deltas_are_refused(self, source: navia.SourceStatistics, vit: navia.ViT, tmp_path: Path) -> None:
        path = tmp_path / "d.safetensors"
        adapter = navia.adapt(vit, "navia", "tome:2", source)
        adapter(shifted(vit, 16, 0))
        adapter.save(path)
        with pytest.raises(DeltaError, match="another method"):
            navia.adapt(vit, "align", "tome:2", source).load(path)
        with pytest.raises(DeltaError, match="another weights"):
            navia.adapt(build(VIT, seed=3), "tent", "tome:2").load(path)
        with pytest.raises(DeltaError, match="does not tune"):
            navia.adapt(vit, "navia", "tome:2", source, biases=False).load(path)
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(DeltaError, match="cannot read"):
            adapter.load(path)
        source.save(path)
        with pytest.raises(DeltaError, match="no delta file"):
            adapter.load(path)


class TestNavia:
    def test_without_augmentations_it_is_align(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        off = navia.adapt(vit, "navia", "tome:2", source, embedding=False, biases=False)
        align = navia.adapt(vit, "align", "tome:2", source)
        for i in range(4):
            x = shifted(vit, 12, i)
            assert torch.equal(off(x), align(x))

    def test_layer_sets(self) -> None:
        from navia.methods.parameters import choose_layers

        assert choose_layers(12, "shallow", None) == (0, 1, 2, 3, 4, 5)
        assert choose_layers(12, "shallow", 4) == (0, 1, 2, 3)
        assert choose_layers(12, "deep", 6) == (6, 7, 8, 9, 10, 11)
        assert choose_layers(12, "uniform", 6) == (0, 2, 4, 6, 8, 10)
        assert choose_layers(4, "shallow", None) == (0, 1)
        assert choose_layers(12, [3, 1], None) == (3, 1)

    def test_first_gradient_reaches_the_chosen_layers(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source, layers=[0, 2])
        adapter(shifted(vit, 16, 1))
        moved = {name for name, p in adapter.method.parameters.items() if name.startswith("delta") and p.abs().sum() > 0}
        assert moved == {"delta", "delta_l.0", "delta_l.2"}

    @pytest.mark.parametrize("options", [{"token": "re-initialised"}, {"token": "new"}, {"bias_position": "block_input"}])
    def test_ablations_run_and_reset(self, source: navia.SourceStatistics, vit: navia.ViT, options: dict[str, str]) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source, **options)
        plain = navia.adapt(vit, "navia", "tome:2", source)
        stream = [shifted(vit, 12, i) for i in range(3)]
        answers = [adapter(x) for x in stream]
        reference = [plain(x) for x in stream]
        assert not torch.equal(answers[-1], reference[-1])
        adapter.reset()
        assert all(torch.equal(adapter(x), a) for x, a in zip(stream, answers, strict=True))

    def test_reinitialised_cls_is_part_of_the_reset_state(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source, token="re-initialised")
        adapter(shifted(vit, 12, 0))
        adapter.reset()
        token = vit.cls_token[0, 0] + adapter.method.parameters["delta"]
        assert token.abs().max() < 1e-4

    def test_shift_changes_answers_not_the_update(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        with_shift = navia.adapt(vit, "navia", "tome:2", source, shift=True)
        without = navia.adapt(vit, "navia", "tome:2", source)
        stream = [shifted(vit, 12, i) for i in range(3)]
        a, b = [with_shift(x) for x in stream], [without(x) for x in stream]
        assert torch.equal(a[0], b[0])  # nothing to shift by before the first batch
        assert not torch.equal(a[1], b[1])
        own, other = with_shift.method.parameters, without.method.parameters
        assert all(torch.equal(p, other[name]) for name, p in own.items())


class TestStreams:
    def test_small_batches_use_recent_features(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source)
        kept = []
        for i in range(12):
            adapter(shifted(vit, 1, i))
            assert adapter.last is not None
            kept.append(adapter.last.kept)
        assert kept == [0] * 7 + [1] * 5  # no update until 8 images have been seen
        assert len(adapter.method.memory["recent"]) == 12

    def test_the_buffer_is_bounded(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "align", "tome:2", source, buffer_size=10)
        for i in range(15):
            adapter(shifted(vit, 2, i))
        assert len(adapter.method.memory["recent"]) == 10

    def test_large_batches_do_not_touch_the_buffer(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "align", "tome:2", source)
        adapter(shifted(vit, 8, 0))
        assert "recent" not in adapter.method.memory

    def test_statistics_with_recent_features_are_those_of_all(self) -> None:
        x = torch.randn(10, 3, 4)
        mean, std = batch_moments(x[7:], buffer=x[:7])
        torch.testing.assert_close(mean, x.mean(dim=0))
        torch.testing.assert_close(std, x.std(dim=0))

    @pytest.mark.parametrize("method", ["align", "navia", "foa_bp"])
    def test_a_still_camera_keeps_its_gradients_finite(
        self, source: navia.SourceStatistics, vit: navia.ViT, method: str
    ) -> None:
        """Eight equal frames one by one: statistics of no variance at all."""
        adapter = navia.adapt(vit, method, "tome:2", source, guard=False)
        for _ in range(9):
            assert adapter(shifted(vit, 1, 0)).isfinite().all()
        assert all(p.isfinite().all() for p in adapter.method.parameters.values())

    def test_statistics_of_equal_rows_have_a_gradient(self) -> None:
        row = torch.randn(1, 3, 4)
        features = row.clone().requires_grad_()
        _, std = batch_moments(features, buffer=row.expand(7, -1, -1))
        std.sum().backward()
        assert features.grad is not None
        assert torch.equal(features.grad, torch.zeros_like(row))
        torch.testing.assert_close(std, torch.zeros(3, 4), atol=1e-5, rtol=0)

    def test_foa_answers_with_its_prompts_until_there_are_enough_images(
        self, source: navia.SourceStatistics, vit: navia.ViT
    ) -> None:
        adapter = navia.adapt(vit, "foa", "tome:2", source, population=4)
        kept = []
        for i in range(9):
            x = shifted(vit, 1, i)
            before = adapter.predict(x)
            answer = adapter(x)
            assert adapter.last is not None
            kept.append(adapter.last.kept)
            assert adapter.last.kept or (torch.equal(answer, before) and "too few images" in (adapter.last.note or ""))
        assert kept == [0] * 7 + [1] * 2

    def test_foa_names_a_loss_that_is_no_number_and_answers_with_another_candidate(
        self, source: navia.SourceStatistics, vit: navia.ViT, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask = foa._Search.ask
        monkeypatch.setattr(
            foa._Search, "ask", lambda search: [c * (np.nan if i == 0 else 1) for i, c in enumerate(ask(search))]
        )
        adapter = navia.adapt(vit, "foa", "tome:2", source, population=4, guard=False)
        assert adapter(shifted(vit, 12, 0)).isfinite().all()
        assert adapter.last is not None
        assert (adapter.last.kept, adapter.last.note) == (0, "the loss of a candidate is not finite")

    def test_changing_batch_sizes_and_domains(self, source: navia.SourceStatistics, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "navia", "tome:2", source)
        for i, size in enumerate([64, 1, 7, 8, 2, 33, 1]):
            scale = 0.5 if i % 2 else 2.0
            logits = adapter(images_for(vit, size, seed=i) * scale)
            assert logits.shape == (size, 11)
            assert logits.isfinite().all()


class TestHalfPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("method", ["tent", "navia", "cotta"])
    def test_a_step_moves_as_many_numbers_as_in_single_precision(self, dtype: torch.dtype, method: str) -> None:
        vit = build(VIT).to(dtype)
        source = navia.SourceStatistics.measure(vit, images_for(vit, 48, seed=9), "tome:2")
        assert source.mean.dtype == source.std.dtype == torch.float32
        adapter = navia.adapt(vit, method, "tome:2", source)
        before = {name: p.detach().clone() for name, p in adapter.method.parameters.items()}
        for i in range(2):
            adapter(shifted(vit, 12, i))
        moved = sum(int((p != before[name]).sum()) for name, p in adapter.method.parameters.items())
        assert moved > 0.9 * adapter.trainable
        assert all(p.dtype == dtype for p in vit.parameters())

    def test_its_steps_are_near_those_of_single_precision(self) -> None:
        half, whole = build(VIT).to(torch.bfloat16), build(VIT).to(torch.bfloat16).float()
        one, other = (navia.adapt(vit, "tent", lr=1e-2, guard=False) for vit in (half, whole))
        for i in range(4):
            x = shifted(half, 12, i)
            torch.testing.assert_close(one(x), other(x), atol=0.1, rtol=0.1)
        steps = [
            torch.cat([(p - a.source_vit.model.get_parameter(n)).flatten() for n, p in a.method.parameters.items()])
            for a in (one, other)
        ]
        assert torch.cosine_similarity(*steps, dim=0) > 0.95

    def test_a_delta_is_in_single_precision_and_belongs_to_the_half_model(self, tmp_path: Path) -> None:
        vit = build(VIT).to(torch.bfloat16)
        adapter = navia.adapt(vit, "tent", lr=1e-2)
        adapter(shifted(vit, 12, 0))
        adapter.save(tmp_path / "half.safetensors")
        assert all(value.dtype == torch.float32 for value in load_file(tmp_path / "half.safetensors").values())
        again = navia.adapt(vit, "tent", lr=1e-2)
        again.load(tmp_path / "half.safetensors")
        assert torch.equal(again.predict(shifted(vit, 12, 1)), adapter.predict(shifted(vit, 12, 1)))
        with pytest.raises(DeltaError, match="another weights"):
            navia.adapt(build(VIT), "tent").load(tmp_path / "half.safetensors")

    def test_its_export_is_refused_by_name(self, tmp_path: Path) -> None:
        adapter = navia.adapt(build(VIT).to(torch.bfloat16), "tent")
        with pytest.raises(navia.NaviaError, match=r"weights are bfloat16.*float32"):
            adapter.export(tmp_path / "model.pt2")
        assert not list(tmp_path.iterdir())


class TestTwoHalves:
    @pytest.mark.parametrize("method", ["none", "tent", "navia", "foa"])
    def test_a_look_from_before_another_update_is_refused(
        self, vit: navia.ViT, source: navia.SourceStatistics, method: str
    ) -> None:
        adapter = navia.adapt(vit, method, "tome:2", source)
        first = adapter.forward_step(shifted(vit, 12, 0))
        second = adapter.forward_step(shifted(vit, 12, 1))
        adapter.update(first)
        before = {name: value.clone() for name, value in adapter.method.tensors().items()}
        for stale in (second, first):
            with pytest.raises(InputError, match="call update"):
                adapter.update(stale)
        assert all(torch.equal(value, before[name]) for name, value in adapter.method.tensors().items())
        assert adapter.steps == 1
        third = adapter.forward_step(shifted(vit, 12, 2))
        adapter.update(third)
        assert adapter.steps == 2

    def test_so_is_one_from_before_a_reset_or_of_another_adapter(self, vit: navia.ViT) -> None:
        adapter, other = navia.adapt(vit, "tent"), navia.adapt(vit, "tent")
        state = adapter.state_dict()
        for change in (adapter.reset, lambda: adapter.load_state_dict(state)):
            prediction = adapter.forward_step(shifted(vit, 12, 0))
            change()
            with pytest.raises(InputError, match="out of date"):
                adapter.update(prediction)
        prediction = adapter.forward_step(shifted(vit, 12, 0))
        with pytest.raises(InputError, match="another adapter"):
            other.update(prediction)
        adapter.update(prediction)


class TestGuard:
    def test_an_exploding_step_is_rolled_back(
        self, vit: navia.ViT, source: navia.SourceStatistics, caplog: pytest.LogCaptureFixture
    ) -> None:
        adapter = navia.adapt(vit, "align", "tome:2", source, lr=1e8)
        x = shifted(vit, 16, 0)
        with torch.no_grad():
            clean = vit(x, "tome:2")
        verdicts = []
        with caplog.at_level(logging.WARNING, logger="navia.guard"):
            for i in range(4):
                assert adapter(shifted(vit, 16, i)).isfinite().all()
                assert adapter.last is not None
                verdicts.append(adapter.last.guard)
        assert all(verdicts), verdicts
        assert "restored" in caplog.text
        assert torch.equal(adapter.predict(x), clean)  # back at the source

    @pytest.mark.parametrize(("share", "noticed"), [(0.9, True), (1.1, False)])
    def test_parameters_may_move_so_far_and_no_further(self, vit: navia.ViT, share: float, noticed: bool) -> None:
        """The limit lies a little below, or above, the way of one free step."""
        x = shifted(vit, 16, 0)
        free = navia.adapt(vit, "tent", lr=0.05, guard=False)
        free(x)
        adapter = navia.adapt(vit, "tent", lr=0.05, guard=GuardOptions(drift=share * free.drift))
        adapter(x)
        assert adapter.last is not None
        assert ("the parameters moved by" in (adapter.last.guard or "")) is noticed
        assert (adapter.drift == 0) is noticed

    @pytest.mark.parametrize(("share", "noticed"), [(0.9, True), (1.1, False)])
    def test_statistics_may_stray_so_far_and_no_further(
        self, vit: navia.ViT, source: navia.SourceStatistics, share: float, noticed: bool
    ) -> None:
        x = shifted(vit, 16, 0)
        free = navia.adapt(vit, "align", "tome:2", source, guard=False)
        free(x)
        assert free.last is not None
        assert free.last.discrepancy is not None
        away = free.last.discrepancy / float(source.std.square().mean())
        adapter = navia.adapt(vit, "align", "tome:2", source, guard=GuardOptions(away=share * away))
        adapter(x)
        assert adapter.last is not None
        assert ("variances off the source's" in (adapter.last.guard or "")) is noticed

    def test_non_finite_logits_are_answered_again_from_a_good_state(self, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "tent", lr=1e-3)
        x = shifted(vit, 16, 0)
        adapter(x)
        with torch.no_grad():
            next(iter(adapter.method.parameters.values())).fill_(float("inf"))
        answer = adapter(x)
        assert answer.isfinite().all()
        assert adapter.last is not None
        assert "not finite" in (adapter.last.guard or "")

    @pytest.mark.slow
    def test_collapse_is_noticed_and_undone(self, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
        """Entropy minimisation at a hundred times its rate drives all predictions to one class; the guard forbids it."""
        guarded = navia.adapt(golden_vit, "tent", lr=0.1)
        naive = navia.adapt(golden_vit, "tent", lr=0.1, guard=False)
        verdicts, correct = [], {"guarded": 0, "naive": 0}
        for key, batch in [(s, b) for _ in range(3) for s in "AB" for b in range(6)]:
            x, y = (torch.from_numpy(golden_inputs[f"{part}_{key}"][batch]) for part in "xy")
            blind = naive(x).argmax(dim=1)
            correct["naive"] += int((blind == y).sum())
            correct["guarded"] += int((guarded(x).argmax(dim=1) == y).sum())
            assert guarded.last is not None
            verdicts.append(guarded.last.guard)
        assert blind.unique().numel() == 1
        assert any(v and "collapse" in v and "the source" in v for v in verdicts)
        assert correct["guarded"] > 1.2 * correct["naive"]

    def test_a_collapse_onto_a_class_that_it_is_unsure_of_is_noticed(
        self, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
    ) -> None:
        """All answers are one class while the entropy rises: EATA under fog ended so."""
        adapter = navia.adapt(golden_vit, "tent", lr=0.0)
        batches = [torch.from_numpy(golden_inputs["x_A"][b]) for b in range(6)]
        for x in batches:
            adapter(x)
        weight, bias = (p for name, p in adapter.method.parameters.items() if name.startswith("norm."))
        with torch.no_grad():
            weight.mul_(1e-3)
            bias.mul_(0.1)
        told = []
        for x in 2 * batches:
            assert adapter.last is not None
            before = adapter.last.entropy
            adapter(x)
            told.append(adapter.last.guard)
            if told[-1]:
                break
            assert adapter.last.entropy > before or len(told) > 1
        assert told[-1]
        assert "collapse" in told[-1]
        with torch.no_grad():
            assert torch.equal(adapter.predict(x), golden_vit(x))

    @pytest.mark.slow
    def test_a_hard_picture_that_stays_is_no_collapse(
        self, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
    ) -> None:
        """One class and little certainty, as the source sees it too; asking the source leaves no trace."""
        mixed = [torch.from_numpy(golden_inputs["x_A"][b]) for b in range(6)]
        with torch.no_grad():
            hardest = max(torch.cat(mixed).split(1), key=lambda x: float(entropy(golden_vit(x))))
        on, off = (navia.adapt(golden_vit, "tent", lr=1e-5, guard=guard) for guard in (True, False))
        for x in (*mixed, *[hardest.expand(len(mixed[0]), -1, -1, -1)] * 12):
            assert torch.equal(on(x), off(x))
            assert on.last is not None
            assert on.last.guard is None
        assert on.guard is not None
        assert on.guard.last_check > 0

    def test_quiet_streams_are_left_alone(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        """Same answers with and without the guard, also when all images look alike (label shift)."""
        for stream in ([shifted(vit, 32, i) for i in range(12)], [shifted(vit, 1, 0).expand(32, -1, -1, -1)] * 8):
            on = navia.adapt(vit, "navia", "tome:2", source)
            off = navia.adapt(vit, "navia", "tome:2", source, guard=False)
            for x in stream:
                assert torch.equal(on(x), off(x))
                assert on.last is not None
                assert on.last.guard is None

    def test_a_sudden_shift_after_clean_images_is_no_trouble(
        self, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
    ) -> None:
        clean = torch.from_numpy(golden_inputs["source_images"])
        source = navia.SourceStatistics.measure(golden_vit, clean, "tome:2")
        adapter = navia.adapt(golden_vit, "navia", "tome:2", source)
        for x in (clean, *(torch.from_numpy(golden_inputs[f"x_{s}"][b]) for s in "AB" for b in range(6))):
            adapter(x)
            assert adapter.last is not None
            assert adapter.last.guard is None

    def test_three_troubles_send_it_back_to_the_source(self, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "tent", lr=1e-2)
        for i in range(11):
            adapter(shifted(vit, 16, i))
        verdicts = []
        for i in range(3):
            with torch.no_grad():
                next(iter(adapter.method.parameters.values())).fill_(float("nan"))
            adapter(shifted(vit, 16, 20 + i))
            assert adapter.last is not None
            verdicts.append(adapter.last.guard or "")
        assert "last good state" in verdicts[0]
        assert "the source" in verdicts[2]

    def test_goes_on_inside_the_callers_inference_mode(self, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "tent", lr=1e-2, guard=GuardOptions(every=1))
        with torch.inference_mode():
            adapter(shifted(vit, 16, 0))
            adapter.method.load_tensors({name: value * float("nan") for name, value in adapter.method.tensors().items()})
            adapter(shifted(vit, 16, 1))
            assert adapter.last is not None
            assert "last good state" in (adapter.last.guard or "")  # with momentum in it
        assert adapter(shifted(vit, 16, 2)).isfinite().all()
        with torch.inference_mode():
            adapter.load_state_dict(adapter.state_dict())
        adapter(shifted(vit, 16, 3))
        assert adapter.last is not None
        assert adapter.last.kept == 16

    def test_after_a_resume_it_still_knows_the_source_from_a_good_state(self, vit: navia.ViT) -> None:
        first, resumed = navia.adapt(vit, "tent"), navia.adapt(vit, "tent")
        first(shifted(vit, 16, 0))
        state = first.state_dict()
        assert state["guard"]["good"] is None
        resumed.load_state_dict(state)
        with torch.no_grad():
            next(iter(resumed.method.parameters.values())).fill_(float("nan"))
        resumed(shifted(vit, 16, 1))
        assert resumed.last is not None
        assert "restored the source" in (resumed.last.guard or "")
        state["guard"]["good"] = first.method.state()  # as it was written before
        resumed.load_state_dict(state)

    def test_a_state_without_a_guard_begins_a_new_watch(self, vit: navia.ViT) -> None:
        unguarded, guarded = navia.adapt(vit, "tent", guard=False), navia.adapt(vit, "tent")
        guarded(shifted(vit, 16, 0))
        assert guarded.guard is not None
        assert guarded.guard.seen == 16
        guarded.load_state_dict(unguarded.state_dict())
        assert guarded.guard.seen == 0


class TestChoose:
    def test_takes_the_lowest_late_loss_and_reports_its_cost(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        images = shifted(vit, 64, 0)
        grid = {"budget": (1, 2), "eta_delta_l": (1e-2, 5.0)}
        seen = []
        choice = navia.choose(
            vit,
            images,
            source,
            reduce="tome:2",
            grid=grid,
            batches=4,
            batch_size=16,
            progress=lambda n, of: seen.append((n, of)),
        )
        assert len(choice.table) == 4
        assert choice.options == min(choice.table, key=lambda row: row[1])[0]
        assert choice.images == 64
        assert choice.steps == 16
        assert choice.seconds > 0
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
        options, score = choice.table[0]
        adapter = navia.adapt(vit, "navia", "tome:2", source, guard=False, **options)
        losses = []
        for x in images.split(16):
            adapter(x)
            assert adapter.last is not None
            losses.append(adapter.last.loss or 0.0)
        assert score == pytest.approx(sum(losses[2:]) / 2)

    def test_scores_over_the_given_classes_which_are_no_option(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        images, some = shifted(vit, 32, 0), [1, 4, 7]
        choice = navia.choose(vit, images, source, reduce="tome:2", grid={"budget": (1,)}, batch_size=16, classes=some)
        assert choice.options == {"budget": 1}
        adapter = navia.adapt(vit, "navia", "tome:2", source, guard=False, classes=some, **choice.options)
        for half in images.split(16):
            adapter(half)
        assert adapter.last is not None
        assert choice.table[0][1] == adapter.last.loss
        assert choice.table != navia.choose(vit, images, source, reduce="tome:2", grid={"budget": (1,)}, batch_size=16).table

    def test_the_papers_grid(self, vit: navia.ViT) -> None:
        from navia.adaptation.selection import GRID

        assert GRID == {"budget": (4, 5, 6), "eta_delta": (8e-4, 1e-3, 3e-3), "eta_delta_l": (1e-2, 5e-2)}

    def test_too_few_images_or_no_loss(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        with pytest.raises(InputError, match="at least 2 batches"):
            navia.choose(vit, shifted(vit, 10, 0), source, reduce="tome:2")
        with pytest.raises(SpecError, match="no loss"):
            navia.choose(vit, shifted(vit, 32, 0), source, "none", "tome:2", grid={"shift": (False,)}, batch_size=16)
        with pytest.raises(SpecError, match="no loss to choose by: too few images"):
            navia.choose(vit, shifted(vit, 4, 0), source, reduce="tome:2", grid={"budget": (1,)}, batch_size=2)

    def test_a_small_last_batch_does_not_count(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        images, grid = shifted(vit, 51, 0), {"budget": (1,)}
        whole = navia.choose(vit, images[:48], source, reduce="tome:2", grid=grid, batch_size=16)
        assert navia.choose(vit, images, source, reduce="tome:2", grid=grid, batch_size=16).table == whole.table

    def test_settings_that_break_down_are_never_chosen(self, vit: navia.ViT, source: navia.SourceStatistics) -> None:
        images = shifted(vit, 64, 0)
        choice = navia.choose(vit, images, source, reduce="tome:2", grid={"lr": (1e30, 1e-3)}, batch_size=16)
        assert choice.options == {"lr": 1e-3}
        assert choice.table[0][1] == math.inf
        with pytest.raises(InputError, match="finite loss"):
            navia.choose(vit, images, source, reduce="tome:2", grid={"lr": (1e30,)}, batch_size=16)


def test_cotta_averages_augmented_views_when_unsure(vit: navia.ViT) -> None:
    """Below the confidence threshold the teacher answers the mean over augmented views; drawn anew after a reset alike."""
    x = shifted(vit, 8, 0)
    sure = navia.adapt(vit, "cotta", confidence_threshold=0.0)(x)
    unsure = navia.adapt(vit, "cotta", confidence_threshold=1.1, augmentations=4)
    first = unsure(x)
    assert not torch.allclose(sure, first, atol=1e-4)
    unsure.reset()
    assert torch.equal(unsure(x), first)


def test_cotta_draws_what_it_restores_where_the_weights_are(vit: navia.ViT) -> None:
    """On the meta device, which stands for a GPU; there is no generator for it, so the global one draws."""
    method = navia.adapt(vit, "cotta", guard=False).method
    method.device_generator = None
    method.parameters = {name: nn.Parameter(p.detach().to("meta")) for name, p in method.parameters.items()}
    method.source_weights = {name: p.detach() for name, p in method.parameters.items()}
    method.generator = None
    drawn: list[torch.device] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "rand" in str(func):
                drawn.append(out.device)
            return out

    with Watch():
        method._restore_weights()
    assert len(drawn) == len(method.parameters)
    assert {device.type for device in drawn} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cotta_on_a_gpu_resumes_to_the_bit_and_takes_states_of_a_cpu() -> None:
    on_cpu, vit = build(VIT), build(VIT).cuda()
    whole, resumed = (navia.adapt(vit, "cotta", restore=0.05) for _ in range(2))
    whole(shifted(vit, 12, 0).cuda())
    resumed.load_state_dict(whole.state_dict())
    x = shifted(vit, 12, 1).cuda()
    whole(x), resumed(x)
    assert all(torch.equal(p, resumed.method.parameters[name]) for name, p in whole.method.parameters.items())
    resumed.load_state_dict(navia.adapt(on_cpu, "cotta").state_dict())
    resumed(x)


class TestFoaSearch:
    @pytest.fixture
    def tiny(self) -> navia.ViT:
        from timm.models.vision_transformer import VisionTransformer

        shape = {"img_size": 8, "patch_size": 4, "num_classes": 3, "embed_dim": 24, "depth": 1, "num_heads": 2}
        return navia.load(shake(VisionTransformer(**shape)))

    @pytest.mark.parametrize("diagonal", [False, True])
    def test_resumes_to_the_bit_at_any_batch(self, tiny: navia.ViT, diagonal: bool) -> None:
        """The covariance is decomposed now and then only: a stream may be cut before, at or after that."""
        source = navia.SourceStatistics.measure(tiny, images_for(tiny, 16))

        def adapter() -> navia.Adapter:
            return navia.adapt(tiny, "foa", None, source, diagonal=diagonal, population=5, guard=False)

        whole, decomposed, followers = adapter(), set(), []
        for i in range(36):
            x = shifted(tiny, 8, i)
            answer = whole(x)
            assert all(torch.equal(follower(x), answer) for follower in followers)
            if i in (0, 1, 17, 18, 19, 32):
                buffer = io.BytesIO()
                torch.save(whole.state_dict(), buffer)
                buffer.seek(0)
                followers.append(adapter())
                followers[-1].load_state_dict(torch.load(buffer, weights_only=True))
            if not diagonal:
                decomposed.add(whole.method.search.strategy.sm.count_eigen)
        assert diagonal or 5 < len(decomposed) < 30
        state = whole.method.state()["search"]
        for follower in followers:
            other = follower.method.state()["search"]
            assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(other[name])) for name, value in state.items())

    def test_a_prepared_state_runs_no_code(self, tiny: navia.ViT, tmp_path: Path) -> None:
        class Payload:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (tmp_path / "executed",)

        source = navia.SourceStatistics.measure(tiny, images_for(tiny, 16))
        adapter = navia.adapt(tiny, "foa", None, source, guard=False)
        state = adapter.state_dict()
        before = adapter.predict(shifted(tiny, 8, 0))
        bad = pickle.dumps(Payload())
        search = state["method"].pop("search", {})

        def go_on(method: dict[str, Any]) -> None:
            adapter.load_state_dict({**state, "method": method})
            adapter(shifted(tiny, 8, 0))

        old = {**state["method"], "memory": {**state["method"]["memory"], "search": bad}}
        wrong = [{**search, name: bad} for name in search] + [{**search, "mean": torch.zeros(5)}, {"search": bad}, bad]
        for method in (old, *({**state["method"], "search": given} for given in wrong)):
            with pytest.raises(navia.NaviaError, match="state of method 'foa'"):
                go_on(method)
            assert not (tmp_path / "executed").exists()
        assert torch.equal(adapter.predict(shifted(tiny, 8, 0)), before)

    def test_nothing_in_adaptation_reads_pickles(self) -> None:
        folder = Path(foa.__file__).parent
        assert not [
            path.name for path in folder.rglob("*.py") if re.search(r"^\s*(import|from) pickle", path.read_text(), re.M)
        ]

    def test_candidates_without_a_finite_loss_are_tried_again(self, tiny: navia.ViT) -> None:
        search = foa._Search(6, foa.FoaOptions(), 1)
        first = search.ask()
        search.undo_ask()
        assert all(np.array_equal(a, b) for a, b in zip(first, search.ask(), strict=True))


def test_deyo_shuffles_tiles_of_any_size() -> None:
    from navia.methods.deyo import shuffle_patches

    x = torch.arange(2 * 3 * 8 * 8).float().reshape(2, 3, 8, 8)
    same = torch.arange(16).expand(2, 16)
    assert torch.equal(shuffle_patches(x, same, 4), x)
    turned = shuffle_patches(x, same.flip(1), 4)
    assert torch.equal(turned[:, :, :2, :2], x[:, :, 6:, 6:])
    assert shuffle_patches(torch.randn(2, 3, 30, 34), same, 4).shape == (2, 3, 30, 34)


def test_lame_of_a_single_image_is_the_model(vit: navia.ViT) -> None:
    x = shifted(vit, 1, 0)
    with torch.no_grad():
        expected = vit(x).softmax(dim=1)
    torch.testing.assert_close(navia.adapt(vit, "lame")(x).softmax(dim=1), expected, atol=1e-5, rtol=1e-3)


class TestSar:
    # a hill so high that it matters where a gradient is taken
    OPTIONS: ClassVar[dict[str, Any]] = {"margin": 1.0, "lr": 0.1, "rho": 5.0, "recover": 0.0}

    @pytest.mark.parametrize("variant", ["official", "foa"])
    def test_walking_each_block_again_gives_the_same_gradients(self, variant: str) -> None:
        plain, lean = build(VIT), build(VIT)
        lean.grad_checkpointing = True
        one, other = (navia.adapt(vit, "sar", guard=False, variant=variant, **self.OPTIONS) for vit in (plain, lean))
        for i in range(3):
            x = shifted(plain, 12, i)
            torch.testing.assert_close(other(x), one(x), atol=1e-5, rtol=0)
        for name, parameter in one.method.parameters.items():
            torch.testing.assert_close(other.method.parameters[name], parameter, atol=1e-5, rtol=0)

    def test_the_second_gradient_is_taken_on_top_of_the_hill(self, vit: navia.ViT) -> None:
        adapter = navia.adapt(vit, "sar", guard=False, momentum=0.0, **self.OPTIONS)
        method, x = adapter.method, shifted(vit, 12, 0)
        before = {name: p.detach().clone() for name, p in method.parameters.items()}

        def gradients() -> list[torch.Tensor]:
            h = entropy(method.forward(x).logits)
            return list(torch.autograd.grad(h[h < method.log_classes].mean(), list(method.parameters.values())))

        first = gradients()
        size = torch.cat([g.flatten() for g in first]).norm()
        with torch.no_grad():
            for parameter, gradient in zip(method.parameters.values(), first, strict=True):
                parameter.add_(5.0 * gradient / size)
        second = gradients()
        adapter.reset()
        adapter(x)
        for (name, parameter), gradient in zip(method.parameters.items(), second, strict=True):
            torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * gradient, atol=1e-5, rtol=1e-4)

    def test_a_step_that_keeps_nobody_moves_nothing(self, vit: navia.ViT) -> None:
        x = shifted(vit, 1, 0)
        with torch.no_grad():
            h = entropy(vit(x)).item()
        margin = h / math.log(11) * (1 + 1e-5)  # reliable here, and no longer once the entropy has climbed
        adapter = navia.adapt(vit, "sar", margin=margin)
        before = {name: p.detach().clone() for name, p in adapter.method.parameters.items()}
        adapter(x)
        assert adapter.last is not None
        assert adapter.last.kept == 0
        assert all(torch.equal(p, before[name]) for name, p in adapter.method.parameters.items())


@pytest.mark.parametrize("family", ["timm plain", "torchvision"])
def test_cotta_tunes_the_attention_of_every_library(family: str) -> None:
    vit = build(family)
    attention = {id(p) for layer in range(vit.depth) for p in vit.block_modules(layer)[0].parameters()}
    names = {id(p): name for name, p in vit.model.named_parameters()}
    assert {names[p] for p in attention} <= set(weights_and_biases(vit))
    assert not {name for name in weights_and_biases(vit) if "token" in name or "pos_embed" in name}


@pytest.mark.parametrize("method", ["none", "navia", "cotta", "foa"])
def test_to_moves_the_adapter_and_keeps_its_state(method: str, vit: navia.ViT, source: navia.SourceStatistics) -> None:
    """Without a GPU the target is the CPU again; the private copy, the optimizer and the guard are still made anew."""
    stay, move = (navia.adapt(vit, method, "tome:2", source) for _ in range(2))
    batches = [shifted(vit, 12, seed) for seed in range(3)]
    for batch in batches[:2]:
        stay(batch), move(batch)
    last, steps, before = move.last, move.steps, move.method
    assert move.to("cpu") is move
    assert move.method is not before
    assert move.source_vit is vit
    assert (move.last, move.steps, move.device) == (last, steps, torch.device("cpu"))
    assert torch.equal(move(batches[2]), stay(batches[2]))
    assert all(torch.equal(value, stay.tensors()[name]) for name, value in move.tensors().items())
    move.reset()
    assert torch.equal(move.predict(batches[0]), navia.adapt(vit, method, "tome:2", source).predict(batches[0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("method", ["navia", "cotta", "foa"])
def test_to_leaves_the_given_model_where_it_is(method: str, vit: navia.ViT, source: navia.SourceStatistics) -> None:
    adapter = navia.adapt(vit, method, "tome:2", source)
    adapter(shifted(vit, 4, 0))  # a small batch fills the memory
    expected = adapter.predict(shifted(vit, 12, 1))
    adapter.to("cuda")
    assert (vit.device.type, adapter.device.type) == ("cpu", "cuda")
    torch.testing.assert_close(adapter.predict(shifted(vit, 12, 1).cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
    adapter(shifted(vit, 4, 2).cuda())


def test_tensors_move_out_of_any_nesting() -> None:
    from navia.methods.parameters import to_device

    moved = to_device({"a": [torch.zeros(2), (torch.ones(1), 3)], "b": None}, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1][0].is_meta
    assert (moved["a"][1][1], moved["b"]) == (3, None)


def test_adapt_measures_the_statistics_of_a_folder_or_name() -> None:
    embedded = navia.load("embedded")
    measured = navia.SourceStatistics.measure(embedded, "embedded", "tome:8")
    adapter = navia.adapt(embedded, "align", "tome:8", "embedded")
    assert torch.equal(adapter.method.source.mean, measured.mean)  # type: ignore[union-attr]


def test_old_option_names_work_with_a_warning(vit: navia.ViT, source: navia.SourceStatistics) -> None:
    with pytest.warns(FutureWarning, match="option weight of navia is now discrepancy_weight"):
        old = navia.adapt(vit, "navia", "tome:2", source, weight=3.0)
    assert old.options.discrepancy_weight == 3.0


def test_reprs_say_what_a_user_asks_first(vit: navia.ViT, source: navia.SourceStatistics) -> None:
    adapter = navia.adapt(vit, "navia", "tome:2", source)
    assert "method='navia', reduce='tome:2'" in repr(adapter)
    assert f"depth={vit.depth}, embed_dim={vit.embed_dim}" in repr(vit)
    assert f"images={source.provenance.count}" in repr(source)


def test_the_search_of_foa_is_the_same_in_many_dimensions() -> None:
    """A wide ViT has 2,304 of them: cumulative step-size adaptation as in few ones, and a state that can be restored."""
    pytest.importorskip("cma")
    options = foa.FoaOptions(diagonal=True)
    search = foa._Search(2304, options, seed=0)
    candidates = search.ask()
    search.tell(candidates, [float(candidate @ candidate) for candidate in candidates])
    state, expected = search.state(), search.ask()
    again = foa._Search(2304, options, seed=1)
    again.load_state(state)
    assert all(np.array_equal(one, other) for one, other in zip(expected, again.ask(), strict=True))
    assert type(search.strategy.adapt_sigma).__name__ == "CMAAdaptSigmaCSA"
