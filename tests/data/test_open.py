"""From what a user types to domains and source images: whose labels they have, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from navia.data import imagenet, sample
from navia.data.sources import leave_out_source, open_domains, open_source
from navia.errors import InputError

WNIDS = imagenet.wnids()
R = [WNIDS[i] for i in imagenet.r_classes()]


def fill(root: Path, *folders: str, count: int = 1) -> Path:
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (32, 32), (i % 256,) * 3).save(root / folder / f"{i:03}.png")
    return root


def test_parts_of_different_classes_are_refused(tmp_path: Path) -> None:
    """Labels of the first part would be read as columns of the last one's classes."""
    fill(tmp_path, *(f"fog/5/{wnid}" for wnid in WNIDS[:3]), *(f"snow/5/{wnid}" for wnid in R))
    with pytest.raises(InputError, match=r"the parts of .* have different classes: complete them"):
        open_domains(tmp_path, 1000)


@pytest.mark.parametrize("folders", [R, [f"fog/5/{wnid}" for wnid in WNIDS[:3]]])
def test_shifted_images_are_no_source(tmp_path: Path, folders: list[str]) -> None:
    opened = open_domains(fill(tmp_path / "shifted", *folders, count=1), 1000)
    with pytest.raises(InputError, match="is shifted itself: give a folder of clean images as the source"):
        leave_out_source(opened, 2)


def test_the_embedded_source_is_what_the_sample_keeps_for_it() -> None:
    source = open_source("embedded", 64).images
    assert len(source) == 64
    for position in (0, 63):
        assert np.array_equal(np.asarray(source.read(position)), sample.source_images().images[position])
    assert len(open_source("embedded").images) == 64
    assert len(open_source("embedded", None).images) == 256
    with pytest.raises(InputError, match="'embedded' has 256 images, but 300 are wanted as the source"):
        open_source("embedded", 300)
    with pytest.raises(InputError, match="300 are wanted"):
        leave_out_source(open_domains("embedded", 10), 300)


def test_a_source_needs_no_classes_of_the_model_but_enough_clean_images(tmp_path: Path) -> None:
    own = fill(tmp_path / "own", "parrots", "boats", count=5)
    names = {open_source(own, 8).images.name(i) for i in range(8)}
    assert len(names) == 8
    with pytest.raises(InputError, match="has 10 images, but 11 are wanted"):
        open_source(own, 11)
    assert len(open_source(own, 11, allow_fewer=True).images) == 10
    with pytest.raises(InputError, match="holds corrupted images"):
        open_source(fill(tmp_path / "c", f"fog/5/{WNIDS[0]}"), 1)


class TestDatasets:
    """Labels of a Hugging Face dataset become the model's by their names."""

    @staticmethod
    def opened(
        tmp_path: Path, labels: list[int], names: list[str] | None, model: list[str], count: int | None = None
    ) -> Any:
        datasets = pytest.importorskip("datasets")
        fill(tmp_path, "images", count=len(labels))
        paths = sorted(map(str, (tmp_path / "images").iterdir()))
        made = datasets.Dataset.from_dict({"image": paths, "label": labels}).cast_column("image", datasets.Image())
        if names is not None:
            made = made.cast_column("label", datasets.ClassLabel(names=names))
        made.save_to_disk(str(tmp_path / "saved"))
        return open_domains(f"datasets:{tmp_path / 'saved'}", count or len(model), model)

    def test_names_that_the_model_knows_decide(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path, [0, 1, 1], ["dog", "cat"], ["bird", "cat", "dog"])
        assert opened.domains[0].images.labels == (2, 1, 1)

    def test_wnids_of_imagenet_r_come_with_their_mask(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path, [3, 0], list(reversed(R)), [], count=1000)
        assert opened.classes == imagenet.r_classes()
        assert opened.domains[0].images.labels == (196, 199)

    def test_unknown_names_keep_their_numbers_and_are_not_sorted(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path, [0, 1, 2], ["zebra", "ant", "Cat"], ["a zebra", "an ant", "cat"])
        assert opened.domains[0].images.labels == (0, 1, 2)

    def test_names_that_speak_against_their_numbers_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"dataset '.*saved': 3 class folders do not match the model's 3 classes"):
            self.opened(tmp_path, [0, 1, 2], ["zebra", "cat", "ant"], ["a zebra", "an ant", "cat"])

    def test_numbers_without_names_are_the_models(self, tmp_path: Path) -> None:
        assert self.opened(tmp_path, [2, 0], None, ["a", "b", "c"]).domains[0].images.labels == [2, 0]

    def test_labels_that_are_kept_back_are_none(self, tmp_path: Path) -> None:
        opened = self.opened(tmp_path, [-1, -1], ["dog", "cat"], ["cat", "dog"])
        assert opened.domains[0].images.labels is None
