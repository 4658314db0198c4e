"""navia.evaluate against a loop written by hand, against `navia bench`, and for every kind of data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error
from typer.testing import CliRunner

import navia
from navia.cli.main import app
from navia.data.sample import CLASSES, source_images, unseen_images
from navia.data.sources import Domain
from navia.errors import InputError, SpecError
from navia.evaluation.metrics import wilson

CORRUPTIONS = ["gaussian_noise", "contrast"]
COUNT, BATCH = 48, 16


@pytest.fixture(scope="module")
def vit() -> navia.ViT:
    return navia.load("embedded")


@pytest.fixture(scope="module")
def source(vit: navia.ViT) -> navia.SourceStatistics:
    clean = Domain("clean", source_images()).tensors(range(64), vit.preprocessing)
    return navia.SourceStatistics.measure(vit, clean, "tome:16")


@pytest.fixture
def adapter(vit: navia.ViT, source: navia.SourceStatistics) -> navia.Adapter:
    return navia.adapt(vit, "navia", "tome:16", source)


@pytest.fixture(scope="module")
def batch(vit: navia.ViT) -> tuple[Tensor, Tensor]:
    """Noisy images of the sample and their labels."""
    noisy = Domain("noise", unseen_images(), "gaussian_noise", 2)
    return noisy.tensors(range(COUNT), vit.preprocessing), torch.tensor(unseen_images().labels[:COUNT])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of the sample in folders named by class: sorted names are not in the order of the model's classes."""
    root, unseen = tmp_path_factory.mktemp("classes") / "photos", unseen_images()
    assert unseen.labels is not None
    for i in range(60):
        place = root / CLASSES[unseen.labels[i]]
        place.mkdir(parents=True, exist_ok=True)
        unseen.read(i).save(place / f"{i:03}.png")
    return root


# ---- numbers


def test_result_is_that_of_a_loop_written_by_hand(
    adapter: navia.Adapter, source: navia.SourceStatistics, batch: tuple[Tensor, Tensor]
) -> None:
    images, labels = batch
    found = navia.evaluate(adapter, batch, batch_size=BATCH)
    by_hand = navia.adapt(adapter.source_vit, "navia", "tome:16", source)
    logits = torch.cat([by_hand(part) for part in images.split(BATCH)]).detach()
    top1 = multiclass_accuracy(logits, labels, num_classes=10, average="micro").item()
    error = multiclass_calibration_error(logits.softmax(dim=1), labels, num_classes=10, n_bins=15, norm="l1").item()
    assert found.top1 == pytest.approx(top1, abs=1e-6)
    assert found.ece == pytest.approx(error, abs=1e-5)
    assert found.interval == wilson(round(top1 * COUNT), COUNT)
    assert found.images == COUNT
    (row,) = found.domains
    assert (row.name, row.images, row.top1, row.ece, row.updates) == ("data", COUNT, found.top1, found.ece, COUNT // BATCH)
    probabilities = logits.softmax(dim=1)
    assert row.entropy == pytest.approx(-(probabilities * probabilities.log()).sum(dim=1).mean().item(), rel=1e-4)
    assert torch.equal(adapter.predict(images[:4]), by_hand.predict(images[:4]))  # left in the state after the last batch


@pytest.mark.slow
def test_result_is_that_of_the_bench(tmp_path: Path, adapter: navia.Adapter) -> None:
    spec = {
        "models": [{"name": "embedded"}],
        "data": [{"path": "embedded", "corruptions": CORRUPTIONS, "severity": 2, "images": COUNT}],
        "runs": [{"method": "navia", "reduce": "tome:16"}],
        "seeds": [1],
        "batch": BATCH,
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    result = CliRunner().invoke(app, ["bench", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    rows = {row["domain"]: row for row in map(json.loads, (tmp_path / "out" / "rows.jsonl").read_text().splitlines())}
    found = navia.evaluate(adapter, "embedded", corruptions=CORRUPTIONS, severity=2, limit=COUNT, batch_size=BATCH, seed=1)
    assert [row.name for row in found.domains] == CORRUPTIONS
    for row in found.domains:
        bench = rows[row.name]
        assert (row.top1, row.interval) == (bench["top1"], (bench["low"], bench["high"]))
        assert row.ece == pytest.approx(bench["ece"], abs=1e-12)
    assert found.cost.gmacs == rows["contrast"]["gmacs"]
    assert found.top1 == pytest.approx(sum(row.top1 for row in found.domains) / 2)


def test_adapter_is_reset_before_each_domain_unless_told_otherwise(
    adapter: navia.Adapter, batch: tuple[Tensor, Tensor]
) -> None:
    both = {"first": batch, "second": batch}
    first, second = navia.evaluate(adapter, both, batch_size=BATCH).domains
    assert (first.top1, first.ece, first.entropy) == (second.top1, second.ece, second.entropy)
    assert adapter.steps == COUNT // BATCH
    first, second = navia.evaluate(adapter, both, batch_size=BATCH, reset=False).domains
    assert first.entropy != second.entropy
    assert adapter.steps == 3 * COUNT // BATCH


def test_collapsed_predictions_count_as_wrong(vit: navia.ViT, batch: tuple[Tensor, Tensor]) -> None:
    class Collapsed(navia.Adapter):
        def __call__(self, images: Any) -> Tensor:
            return super().__call__(images).index_fill(0, torch.arange(BATCH), torch.nan)

    adapter = navia.adapt(vit, "none")
    whole = navia.evaluate(adapter, (batch[0][BATCH:], batch[1][BATCH:]), batch_size=COUNT)
    adapter.__class__ = Collapsed
    found = navia.evaluate(adapter, batch, batch_size=COUNT)
    assert found.top1 == pytest.approx(whole.top1 * whole.images / COUNT)
    assert found.ece is None
    assert str(found).splitlines()[-3].endswith(" -")


# ---- kinds of data


class Labelled(Dataset[tuple[Tensor, int]]):
    """A map-style dataset without class names."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])


def test_tensors_loaders_and_datasets_agree(vit: navia.ViT, batch: tuple[Tensor, Tensor]) -> None:
    """Without adaptation the order of a dataset, which is shuffled, does not matter."""
    images, labels = batch
    adapter = navia.adapt(vit, "none", "tome:16")
    expected = navia.evaluate(adapter, batch, batch_size=BATCH)
    dicts = [{"pixel_values": x, "labels": y} for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True)]
    dataset = Labelled(images, labels)
    for data in ([images, labels], DataLoader(TensorDataset(images, labels), BATCH), dicts, iter(dicts), dataset):
        found = navia.evaluate(adapter, data, batch_size=BATCH)
        assert (found.top1, found.images) == (expected.top1, COUNT)
        assert found.ece == pytest.approx(expected.ece)


@pytest.mark.slow
def test_folders_are_scored_by_the_names_of_their_classes(vit: navia.ViT, folder: Path) -> None:
    """Also as torchvision's ImageFolder, whose labels are positions among the sorted names."""
    datasets = pytest.importorskip("torchvision.datasets")
    adapter, clean = navia.adapt(vit, "none"), Domain("clean", unseen_images())
    images, labels = clean.tensors(range(60), vit.preprocessing), torch.tensor(unseen_images().labels[:60])
    expected = navia.evaluate(adapter, (images, labels)).top1
    assert expected > 0.6
    pictures = datasets.ImageFolder(folder)
    tensors = datasets.ImageFolder(folder, transform=vit.preprocessing)
    assert pictures.classes == sorted(CLASSES)
    for data in (folder, str(folder), pictures, Subset(pictures, range(60)), DataLoader(tensors, 16, shuffle=True)):
        found = navia.evaluate(adapter, data, batch_size=16)
        assert (found.top1, found.images) == (expected, 60)
    assert found.domains[0].name == "data"
    assert navia.evaluate(adapter, folder).domains[0].name == "photos"


@pytest.mark.slow
def test_hugging_face_datasets_are_scored_by_their_class_names(vit: navia.ViT) -> None:
    datasets = pytest.importorskip("datasets")
    unseen, names = unseen_images(), sorted(CLASSES)
    assert unseen.labels is not None
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {"image": [unseen.read(i) for i in range(20)], "label": [names.index(CLASSES[i]) for i in unseen.labels[:20]]}
    images = Domain("clean", unseen).tensors(range(20), vit.preprocessing)
    adapter = navia.adapt(vit, "none")
    expected = navia.evaluate(adapter, (images, torch.tensor(unseen.labels[:20]))).top1
    assert navia.evaluate(adapter, datasets.Dataset.from_dict(rows, features=features)).top1 == expected


def test_labels_of_folders_become_columns_of_a_class_subset(vit: navia.ViT, folder: Path) -> None:
    classes = list(range(10))[::-1]
    expected = navia.evaluate(navia.adapt(vit, "none"), folder).top1
    assert navia.evaluate(navia.adapt(vit, "none", classes=classes), folder).top1 == expected
    with pytest.raises(InputError, match=r"label \d of 'photos' is not among the 3 classes that the adapter predicts"):
        navia.evaluate(navia.adapt(vit, "none", classes=[0, 1, 2]), folder)


def test_mapping_names_the_domains(adapter: navia.Adapter, batch: tuple[Tensor, Tensor], folder: Path) -> None:
    found = navia.evaluate(adapter, {"noise": batch, "clean": folder}, limit=20)
    assert [(row.name, row.images) for row in found.domains] == [("noise", 20), ("clean", 20)]
    nested = navia.evaluate(adapter, {"sample": "embedded"}, corruptions=CORRUPTIONS, severity=1, limit=8)
    assert [row.name for row in nested.domains] == ["sample/gaussian_noise", "sample/contrast"]


def test_imagenet_c_layout_has_one_domain_per_part(vit: navia.ViT, tmp_path: Path) -> None:
    unseen = unseen_images()
    assert unseen.labels is not None
    for corruption in ("fog", "contrast"):
        for i in range(20):
            place = tmp_path / corruption / "3" / str(unseen.labels[i])
            place.mkdir(parents=True, exist_ok=True)
            unseen.read(i).save(place / f"{i:03}.png")
    found = navia.evaluate(navia.adapt(vit, "tent"), tmp_path)
    assert [(row.name, row.images, row.updates) for row in found.domains] == [("fog/3", 20, 1), ("contrast/3", 20, 1)]


# ---- what comes out


def test_progress_reports_images_and_total(adapter: navia.Adapter, batch: tuple[Tensor, Tensor]) -> None:
    told: list[tuple[int, int | None]] = []
    navia.evaluate(adapter, batch, batch_size=32, progress=lambda done, total: told.append((done, total)))
    assert told == [(32, COUNT), (COUNT, COUNT)]
    told.clear()
    loader = DataLoader(TensorDataset(*batch), 24)
    navia.evaluate(adapter, loader, limit=30, progress=lambda done, total: told.append((done, total)))
    assert told == [(24, None), (30, None)]


def test_result_prints_as_a_table_and_becomes_json(adapter: navia.Adapter, batch: tuple[Tensor, Tensor]) -> None:
    found = navia.evaluate(adapter, {"a long name of a domain": batch, "b": batch})
    lines = str(found).splitlines()
    assert lines[0] == "embedded, navia, reduce tome:16"
    assert [line.split()[0] for line in lines[1:-2]] == ["domain", "a", "b", "all"]
    assert f"{100 * found.top1:.1f}%" in lines[-3]
    assert lines[-1] == "batches adapted to: 100%"
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["top1"] == found.top1
    assert [row["name"] for row in plain["domains"]] == ["a long name of a domain", "b"]
    assert plain["gmacs_step"] == plain["gmacs_forward"] == navia.cost(adapter.source_vit, "tome:16").gmacs
    foa = navia.cost(adapter.source_vit, method="foa", options={"population": 4})
    assert replace(found, cost=foa).gmacs_forward == foa.gmacs / foa.forwards < foa.gmacs


# ---- refusals


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (torch.zeros(4, 1, 28, 28), "'data' has no labels to score with"),
        ([torch.zeros(4, 1, 28, 28)], "'data' has no labels to score with"),
        ((torch.zeros(4, 1, 28, 28), torch.zeros(3, dtype=torch.long)), "'data' has 4 images but 3 labels"),
        ((torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 2, 10])), r"labels of 'data' reach 0\.\.10, but there are 10"),
        ((torch.zeros(4, 1, 28, 28), torch.tensor([0, -1, 2, 3])), r"labels of 'data' reach -1\.\.3"),
        ({}, "mapping of domains is empty"),
        ({"fog": []}, "no images in 'fog'"),
        ("no such folder", "no folder 'no such folder'"),
        (3, "cannot read images from int"),
    ],
)
def test_data_that_cannot_be_scored_is_refused_by_name(vit: navia.ViT, data: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        navia.evaluate(navia.adapt(vit, "none"), data)


def test_unlabelled_folders_are_refused_before_anything_runs(adapter: navia.Adapter, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    Image.new("L", (28, 28)).save(tmp_path / "flat" / "a.png")
    with pytest.raises(InputError, match=r"'flat' of .* has no labels to score with: use class folders"):
        navia.evaluate(adapter, {"first": "embedded", "second": tmp_path / "flat"}, limit=8)
    assert adapter.steps == 0


def test_classes_that_do_not_match_the_model_are_refused(vit: navia.ViT, batch: tuple[Tensor, Tensor]) -> None:
    dataset = Labelled(*batch)
    dataset.classes = ["cat", "dog", "horse"]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="3 class folders do not match the model's 10 classes"):
        navia.evaluate(navia.adapt(vit, "none"), dataset)


def test_corruptions_need_images_that_navia_reads(adapter: navia.Adapter, batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="corruptions need a folder, 'embedded' or 'datasets:NAME', got tuple"):
        navia.evaluate(adapter, batch, corruptions=["fog"])
    with pytest.raises(InputError, match="unknown corruption 'fogg'"):
        navia.evaluate(adapter, "embedded", corruptions=["fogg"])
    with pytest.raises(SpecError, match="batch_size and limit must be at least 1"):
        navia.evaluate(adapter, "embedded", limit=0)
