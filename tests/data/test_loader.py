"""The loader: batches in the stream's order, the same whatever the workers, the batch size or the place where it starts."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from navia.data.loader import Batch, Loader, SampleIndex, Shard, batch_images, iterate_batches
from navia.data.preprocessing import Preprocessing, open_image
from navia.data.sources import ArrayImages, DatasetImages, Domain, corrupted, scan
from navia.data.streams import Segment, Stream, make_stream
from navia.errors import InputError, SpecError

PLAIN = Preprocessing((32, 32), (0.0,) * 3, (1.0,) * 3)


def pixels(count: int, prefix: str = "image") -> ArrayImages:
    """Images that can be told apart by their brightness."""
    levels = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return ArrayImages(np.broadcast_to(levels, (count, 32, 32, 3)).copy(), [i % 3 for i in range(count)], prefix)


def domains(*counts: int) -> list[Domain]:
    return [Domain(f"domain {i}", pixels(count, f"d{i}")) for i, count in enumerate(counts)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images, 00.png to 11.png."""
    for i in range(12):
        Image.new("RGB", (32, 32), (i,) * 3).save(tmp_path / f"{i:02}.png")
    return tmp_path


def spoil(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"{number:02}.png").write_text("no image")


def same(first: list[Batch], second: list[Batch]) -> bool:
    def key(batch: Batch) -> tuple[Any, ...]:
        return batch.names, batch.domains, batch.number, batch.reset

    return [key(b) for b in first] == [key(b) for b in second] and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in zip(first, second, strict=True)
    )


def names(batches: list[Batch]) -> list[str]:
    return [name for batch in batches for name in batch.names]


def test_batches_follow_the_stream() -> None:
    stream = make_stream(domains(7, 5), seed=0)
    batches = list(Loader(stream, PLAIN, 3))
    assert [len(batch.names) for batch in batches] == [3, 3, 1, 3, 2]
    assert [batch.number for batch in batches] == [0, 1, 2, 3, 4]
    assert [set(batch.domains) for batch in batches] == [{"domain 0"}] * 3 + [{"domain 1"}] * 2
    assert [batch.reset for batch in batches] == [True, False, False, True, False]
    indices = [(int(domain), int(position)) for segment in stream.segments for domain, position in segment.indices]
    assert names(batches) == [f"d{domain}/{position:05}" for domain, position in indices]
    for batch in batches:
        positions = [int(name[-5:]) for name in batch.names]
        assert batch.images.shape == (len(positions), 3, 32, 32)
        assert torch.equal((batch.images.mean(dim=(1, 2, 3)) * 255).round(), torch.tensor(positions).float())
        assert batch.labels.tolist() == [position % 3 for position in positions]


@pytest.mark.parametrize("kind", ["reset", "continual", "mixed"])
def test_the_same_batches_whatever_the_workers(kind: str) -> None:
    stream = make_stream(domains(7, 5, 1), kind, seed=1)
    alone, helped = (list(Loader(stream, PLAIN, 3, workers)) for workers in (0, 2))
    assert same(alone, helped)
    assert len(names(alone)) == len(set(names(alone))) == 13


def test_a_mixed_batch_says_where_each_image_is_from() -> None:
    batches = list(Loader(make_stream(domains(20, 20), "mixed", seed=0), PLAIN, 10))
    assert [batch.reset for batch in batches] == [True, False, False, False]
    for batch in batches:
        assert batch.domains == tuple(f"domain {name[1]}" for name in batch.names)
        assert len(set(batch.domains)) == 2


def test_a_continual_stream_resets_once() -> None:
    batches = list(Loader(make_stream(domains(4, 4), "continual", seed=0), PLAIN, 2))
    assert [batch.reset for batch in batches] == [True, False, False, False]


def test_batches_of_one() -> None:
    batches = list(Loader(make_stream(domains(3, 2), seed=None), PLAIN, 1))
    assert names(batches) == ["d0/00000", "d0/00001", "d0/00002", "d1/00000", "d1/00001"]
    assert [batch.images.shape[0] for batch in batches] == [1] * 5
    assert [batch.reset for batch in batches] == [True, False, False, True, False]


def test_a_batch_larger_than_everything() -> None:
    batches = list(Loader(make_stream(domains(3, 2), seed=0), PLAIN, 100))
    assert [len(batch.names) for batch in batches] == [3, 2]


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("workers", [0, 2])
def test_start_goes_on_with_the_same_batches(start: int, workers: int) -> None:
    stream = make_stream(domains(7, 5), seed=0)
    whole = list(Loader(stream, PLAIN, 3))
    loader = Loader(stream, PLAIN, 3, workers, start=start)
    assert len(loader) == len(whole) - start
    assert same(list(loader), whole[start:])


@pytest.mark.parametrize("start", [-1, 6])
def test_starts_outside_the_stream_are_refused(start: int) -> None:
    loader = Loader(make_stream(domains(7, 5), seed=0), PLAIN, 3)
    loader.start = start
    with pytest.raises(SpecError, match=r"start.* 5 batches"):
        list(loader)


class Half(Shard):
    """The first or second half of every batch; the other half is as readable as this one."""

    def __init__(self, second: bool) -> None:
        self.second = second

    def select(self, indices: list[SampleIndex]) -> list[SampleIndex]:
        middle = len(indices) // 2
        return indices[middle:] if self.second else indices[:middle]

    def gather(self, reasons: list[str | None]) -> list[str | None]:
        return reasons * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_decode_their_shares_and_know_the_whole_batch(workers: int) -> None:
    stream = make_stream(domains(8, 4), seed=3)
    whole, first, second = (list(Loader(stream, PLAIN, 4, workers, shard=s)) for s in (None, Half(False), Half(True)))
    assert [len(batch.images) for batch in first] == [2, 2, 2]
    for all_of_it, one, other in zip(whole, first, second, strict=True):
        assert torch.equal(all_of_it.images, torch.cat([one.images, other.images]))
        assert all_of_it.names == one.names == other.names
        assert torch.equal(all_of_it.labels, one.labels)


def test_a_loader_can_be_walked_again() -> None:
    loader = Loader(make_stream(domains(5), seed=0), PLAIN, 2)
    assert same(list(loader), list(loader))


def test_numbers_that_are_none_are_refused() -> None:
    stream = make_stream(domains(3))
    for batch, workers in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(SpecError, match="batch_size must be at least 1 and workers at least 0"):
            Loader(stream, PLAIN, batch, workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_fatal_by_name(folder: Path, workers: int) -> None:
    spoil(folder, 5)
    answers = iter(Loader(make_stream([Domain("all", scan(folder))], seed=None), PLAIN, 4, workers))
    assert next(answers).names == ("00.png", "01.png", "02.png", "03.png")
    with pytest.raises(InputError, match=r"cannot read image '.*05\.png'.*--skip-unreadable"):
        next(answers)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_can_be_skipped(folder: Path, workers: int) -> None:
    spoil(folder, 5, 8, 9, 10, 11)
    loader = Loader(make_stream([Domain("all", scan(folder))], seed=None), PLAIN, 4, workers, skip_unreadable=True)
    batches = list(loader)
    assert [batch.names for batch in batches] == [
        ("00.png", "01.png", "02.png", "03.png"),
        ("04.png", "06.png", "07.png"),
    ]
    assert torch.equal((batches[1].images.mean(dim=(1, 2, 3)) * 255).round(), torch.tensor([4.0, 6.0, 7.0]))
    assert [name for name, _ in loader.unreadable] == ["05.png", "08.png", "09.png", "10.png", "11.png"]
    assert all("cannot read image" in reason and name in reason for name, reason in loader.unreadable)
    list(loader)
    assert len(loader.unreadable) == 5  # listed anew, not twice


def test_a_image_smaller_than_the_crop_is_named(folder: Path) -> None:
    Image.new("RGB", (8, 9)).save(folder / "03.png")
    stream = make_stream([Domain("all", scan(folder))], seed=None)
    with pytest.raises(InputError, match=r"03\.png: image of 8x9 px is smaller than the crop"):
        list(Loader(stream, PLAIN, 4))
    loader = Loader(stream, PLAIN, 4, skip_unreadable=True)
    assert len(names(list(loader))) == 11
    assert loader.unreadable[0][0] == "03.png"


def test_a_segment_whose_first_batch_is_lost_resets_at_the_next_one(folder: Path) -> None:
    spoil(folder, 0, 1, 2)
    collection = scan(folder)
    stream = make_stream([Domain("first", pixels(3)), Domain("second", collection)], seed=None)
    batches = list(Loader(stream, PLAIN, 3, skip_unreadable=True))
    assert [batch.number for batch in batches] == [0, 2, 3, 4]
    assert [batch.reset for batch in batches] == [True, True, False, False]


def test_a_reset_is_not_lost_with_its_whole_segment(folder: Path) -> None:
    """The only reset of a continual stream belongs to its first segment, of which nothing can be read here."""
    spoil(folder, *range(12))
    stream = make_stream([Domain("first", scan(folder)), Domain("second", pixels(4))], "continual", seed=None)
    batches = list(Loader(stream, PLAIN, 2, skip_unreadable=True))
    assert [(set(batch.domains), batch.reset) for batch in batches] == [({"second"}, True), ({"second"}, False)]


def test_a_segment_that_ends_unreadable_does_not_reset_twice(folder: Path) -> None:
    spoil(folder, 9, 10, 11)
    stream = make_stream([Domain("all", scan(folder)), Domain("second", pixels(3))], "continual", seed=None)
    batches = list(Loader(stream, PLAIN, 3, skip_unreadable=True))
    assert [batch.reset for batch in batches] == [True, False, False, False]


def test_a_stream_of_nothing_readable_is_empty(folder: Path) -> None:
    spoil(folder, *range(12))
    loader = Loader(make_stream([Domain("all", scan(folder))], seed=0), PLAIN, 5, skip_unreadable=True)
    assert list(loader) == []
    assert len(loader.unreadable) == 12


def test_an_empty_segment_is_passed_over() -> None:
    nothing = Segment("nothing", np.empty((0, 2), dtype=int))
    stream = make_stream(domains(2))
    padded = Stream(stream.domains, (nothing, *stream.segments, nothing))
    assert [(set(b.domains), b.reset) for b in Loader(padded, PLAIN, 2)] == [({"domain 0"}, True)]


def test_corruption_does_not_depend_on_batches_workers_or_order() -> None:
    made = corrupted(pixels(6), ["gaussian_noise", "fog"], severity=4, seed=3)
    answers: list[dict[tuple[str, str], torch.Tensor]] = []
    for kind, seed, batch, workers in (("reset", None, 1, 0), ("reset", 5, 4, 2), ("mixed", 1, 5, 0)):
        loader = Loader(make_stream(made, kind, seed=seed), PLAIN, batch, workers)
        found = [((b.domains[i], b.names[i]), b.images[i]) for b in loader for i in range(len(b.names))]
        assert len(found) == 12
        answers.append(dict(found))
    for other in answers[1:]:
        assert other.keys() == answers[0].keys()
        assert all(torch.equal(other[key], answers[0][key]) for key in other)
    clean = torch.zeros(3, 32, 32)
    assert not torch.equal(answers[0]["gaussian_noise", "image/00000"], clean)


def test_the_global_random_state_stays() -> None:
    before = torch.get_rng_state()
    list(Loader(make_stream(domains(5), seed=0), PLAIN, 2, 2))
    assert torch.equal(torch.get_rng_state(), before)


FEW_OPEN_FILES = """
import resource
import numpy as np
from navia.data.sources import Domain, ArrayImages
from navia.data.loader import Loader
from navia.data.preprocessing import Preprocessing
from navia.data.streams import make_stream

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
stream = make_stream([Domain("all", ArrayImages(np.zeros((600, 32, 32, 3), np.uint8)))])
print([len(batch.names) for batch in Loader(stream, Preprocessing((32, 32), (0.0,) * 3, (1.0,) * 3), 250, 2)])
"""


def test_large_batches_from_workers_do_not_use_up_the_open_files() -> None:
    """A tensor from another process holds a file open. One per image, instead of one per batch, is too many."""
    command = [sys.executable, "-c", FEW_OPEN_FILES]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.stdout == "[250, 250, 100]\n", answer.stderr


def write_huge(path: Path, side: int) -> None:
    """A PNG whose header promises side x side pixels, all black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [30_000, 11_000])  # Pillow itself refuses the first and warns of the second
def test_huge_images_are_refused_at_once(tmp_path: Path, side: int) -> None:
    write_huge(tmp_path / "huge.png", side)
    Image.new("RGB", (32, 32)).save(tmp_path / "small.png")
    with pytest.raises(InputError, match=r"huge\.png' is too large|huge\.png': Image size .* exceeds limit"):
        open_image(tmp_path / "huge.png")
    loader = Loader(make_stream([Domain("all", scan(tmp_path))], seed=0), PLAIN, 2, skip_unreadable=True)
    assert names(list(loader)) == ["small.png"]
    assert loader.unreadable[0][0] == "huge.png"


class TestDatasets:
    """Images from a Hugging Face data set."""

    @staticmethod
    def dataset(tmp_path: Path, **columns: list[Any]) -> Any:
        datasets = pytest.importorskip("datasets")
        paths = []
        for i in range(4):
            Image.new("RGB", (32, 32), (i * 10,) * 3).save(tmp_path / f"{i}.png")
            paths.append(str(tmp_path / f"{i}.png"))
        made = datasets.Dataset.from_dict({"image": paths, **columns})
        return made.cast_column("image", datasets.Image())

    @pytest.mark.parametrize("workers", [0, 2])
    def test_batches(self, tmp_path: Path, workers: int) -> None:
        collection = DatasetImages(self.dataset(tmp_path, label=[2, 0, 1, 2]))
        assert len(collection) == 4
        assert collection.labels == [2, 0, 1, 2]
        batches = list(Loader(make_stream([Domain("all", collection)], seed=None), PLAIN, 3, workers))
        assert [batch.labels.tolist() for batch in batches] == [[2, 0, 1], [2]]
        levels = torch.cat([batch.images for batch in batches]).mean(dim=(1, 2, 3)) * 255
        assert torch.equal(levels.round(), torch.tensor([0.0, 10.0, 20.0, 30.0]))
        assert len(set(names(batches))) == 4

    def test_without_labels(self, tmp_path: Path) -> None:
        collection = DatasetImages(self.dataset(tmp_path))
        assert collection.labels is None
        (batch,) = Loader(make_stream([Domain("all", collection)]), PLAIN, 4)
        assert batch.labels.tolist() == [-1] * 4

    def test_labels_under_another_name(self, tmp_path: Path) -> None:
        made = self.dataset(tmp_path, fine=[5, 6, 7, 8])
        assert DatasetImages(made, label="fine").labels == [5, 6, 7, 8]

    def test_a_missing_column_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no column 'img'; it has image, label"):
            DatasetImages(self.dataset(tmp_path, label=[0] * 4), image="img")

    @pytest.mark.parametrize("labels", [["cat", "dog", "cat", "cow"], [0, 1, None, 2], [0.5, 1.0, 2.0, 3.0]])
    def test_labels_that_are_no_numbers_are_refused(self, tmp_path: Path, labels: list[Any]) -> None:
        with pytest.raises(InputError, match="column 'label' of the dataset holds"):
            DatasetImages(self.dataset(tmp_path, label=labels))

    def test_a_column_of_other_things_is_refused(self, tmp_path: Path) -> None:
        collection = DatasetImages(self.dataset(tmp_path, text=list("abcd")), image="text")
        with pytest.raises(InputError, match=r"0000000: column 'text' of the dataset holds str, not images"):
            list(Loader(make_stream([Domain("all", collection)], seed=None), PLAIN, 4))

    def test_unreadable_images_are_named_or_skipped(self, tmp_path: Path) -> None:
        made = self.dataset(tmp_path, label=[0, 1, 2, 3])
        (tmp_path / "1.png").write_text("no image")
        write_huge(tmp_path / "2.png", 30_000)
        stream = make_stream([Domain("all", DatasetImages(made))], seed=None)
        with pytest.raises(InputError, match="cannot read image 1 of the dataset"):
            list(Loader(stream, PLAIN, 4))
        loader = Loader(stream, PLAIN, 4, skip_unreadable=True)
        (batch,) = loader
        assert batch.labels.tolist() == [0, 3]
        assert [name for name, _ in loader.unreadable] == ["0000001", "0000002"]


class Squares(torch.utils.data.Dataset[Any]):
    """Twelve samples whose brightness is their index; `make` turns (Pillow image, label) into the sample."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.make(Image.new("RGB", (32, 32), (index,) * 3), index % 3)


def levels(images: torch.Tensor) -> list[int]:
    return [int(level) for level in (images.mean(dim=(1, 2, 3)) * 255).round()]


class TestAnyData:
    """Batches of whatever a user has."""

    @pytest.mark.parametrize("batch", [lambda x: x, lambda x: (x, 1), lambda x: [x], lambda x: {"pixel_values": x},
                                       lambda x: {"label": 0, "image": x}, lambda x: {"images": x}])  # fmt: skip
    def test_images_of_the_usual_batches(self, batch: Any) -> None:
        images = torch.zeros(2, 3, 32, 32)
        assert batch_images(batch(images)) is images

    @pytest.mark.parametrize(
        ("batch", "complaint"),
        [
            ((), "empty tuple"),
            ({"x": 1}, "pixel_values, images or image; it has x"),
            ("text", "got str: give a tensor"),
            ([Image.new("RGB", (3, 3))], r"got Image: .*preprocessing\.batch"),
            ((np.zeros((1, 3, 8, 8)), 1), "got ndarray"),
        ],
    )
    def test_other_batches_are_refused(self, batch: Any, complaint: str) -> None:
        with pytest.raises(InputError, match=complaint):
            batch_images(batch)

    @pytest.mark.parametrize(
        "make",
        [
            lambda image, label: (image, label),
            lambda image, label: (PLAIN(image), torch.tensor(label)),
            lambda image, label: {"image": image, "label": label},
            lambda image, label: (np.asarray(image), np.int64(label)),
        ],
    )
    def test_map_style_datasets(self, make: Any) -> None:
        batches = list(iterate_batches(Squares(make), PLAIN, 5, seed=1))
        assert [len(images) for images, _ in batches] == [5, 5, 2]
        order = [level for images, _ in batches for level in levels(images)]
        assert order != sorted(order)
        assert sorted(order) == list(range(12))
        assert [int(label) for _, labels in batches for label in labels] == [level % 3 for level in order]
        (short, labels), *rest = iterate_batches(Squares(make), PLAIN, 5, limit=3, seed=1)
        assert (levels(short), len(labels), rest) == (order[:3], 3, [])

    def test_workers_and_the_global_random_state(self) -> None:
        before = torch.get_rng_state()
        data = Squares(pair)
        alone, helped = (list(iterate_batches(data, PLAIN, 5, workers=workers)) for workers in (0, 2))
        assert all(torch.equal(a[0], b[0]) for a, b in zip(alone, helped, strict=True))
        assert torch.equal(torch.get_rng_state(), before)

    def test_datasets_without_labels_and_with_other_labels(self) -> None:
        ((_, labels),) = iterate_batches(Squares(lambda image, label: image), PLAIN)
        assert labels is None
        with pytest.raises(InputError, match="label 'cat', not a class index"):
            list(iterate_batches(Squares(lambda image, label: (image, "cat")), PLAIN))

    def test_loaders_tensors_and_streams_keep_their_order(self) -> None:
        stream = make_stream(domains(7, 5), seed=None)
        images = torch.cat([batch.images for batch in Loader(stream, PLAIN, 4)])
        targets = torch.arange(12) % 3
        dataset = torch.utils.data.TensorDataset(images, targets)
        for data in (images, torch.utils.data.DataLoader(dataset, 4), stream, Loader(stream, PLAIN, 4)):
            found = list(iterate_batches(data, PLAIN, 4, limit=10))
            assert torch.equal(torch.cat([x for x, _ in found]), images[:10])
        assert found[0][1] is not None
        assert next(iterate_batches(images, PLAIN))[1] is None

    def test_folders(self, folder: Path) -> None:
        ((images, labels),) = iterate_batches(folder, PLAIN)
        assert (levels(images), labels) == (list(range(12)), None)
        for i in range(12):
            (folder / f"class{i % 3}").mkdir(exist_ok=True)
            (folder / f"{i:02}.png").rename(folder / f"class{i % 3}" / f"{i:02}.png")
        ((images, labels),) = iterate_batches(str(folder), PLAIN, seed=3)
        assert labels is not None
        assert levels(images) != list(range(12))
        assert labels.tolist() == [level % 3 for level in levels(images)]
        ((_, named),) = iterate_batches(folder, PLAIN, seed=3, num_classes=3, class_names=["class2", "class1", "class0"])
        assert named is not None
        assert named.tolist() == [2 - level % 3 for level in levels(images)]

    def test_torchvision_image_folder(self, folder: Path) -> None:
        datasets = pytest.importorskip("torchvision.datasets")
        (folder / "only").mkdir()
        for path in folder.glob("*.png"):
            path.rename(folder / "only" / path.name)
        ((images, labels),) = iterate_batches(datasets.ImageFolder(str(folder)), PLAIN)
        assert sorted(levels(images)) == list(range(12))
        assert labels is not None
        assert labels.tolist() == [0] * 12

    def test_other_data_is_refused(self) -> None:
        for data in (3, None, {"images": torch.zeros(1)}):
            with pytest.raises(InputError, match=f"cannot read images from {type(data).__name__}: give a folder"):
                next(iterate_batches(data, PLAIN))
        with pytest.raises(InputError, match="2 images but 1 labels"):
            next(iterate_batches([(torch.zeros(2, 3, 32, 32), torch.tensor([1]))], PLAIN))
        for numbers in ({"batch_size": 0}, {"limit": 0}, {"workers": -1}):
            with pytest.raises(SpecError, match="at least"):
                next(iterate_batches(torch.zeros(1, 3, 32, 32), PLAIN, **numbers))


def pair(image: Image.Image, label: int) -> tuple[Image.Image, int]:
    return image, label
