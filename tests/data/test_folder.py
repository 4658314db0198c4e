"""Folders of images: order, labels, decoding, and what is refused by the file's name."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from navia.data.preprocessing import Preprocessing, open_image
from navia.data.sources import Domain, scan
from navia.errors import InputError

PLAIN = Preprocessing((4, 6), (0.0,) * 3, (1.0,) * 3)


def put(path: Path, level: int = 0, size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path)
    return path


def test_class_folders_give_labels_in_sorted_order(tmp_path: Path) -> None:
    for name in ("n02/b.png", "n02/a.PNG", "n01/c.png", "n10/d.webp"):
        put(tmp_path / name)
    (tmp_path / "n01" / "notes.txt").write_text("not a image")
    (tmp_path / "empty").mkdir()
    folder = scan(tmp_path)
    assert folder.class_names == ("n01", "n02", "n10")
    assert [path.name for path in folder.paths] == ["c.png", "a.PNG", "b.png", "d.webp"]
    assert folder.labels == [0, 1, 1, 2]


def test_numbered_class_folders_sort_as_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0, 1):
        put(tmp_path / str(number) / "a.png")
    assert scan(tmp_path).class_names == ("0", "1", "2", "10")


def test_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for name in ("b.png", "a.bmp"):
        put(tmp_path / name)
    folder = scan(tmp_path)
    assert [path.name for path in folder.paths] == ["a.bmp", "b.png"]
    assert folder.class_names is None
    assert folder.labels is None


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder '.*nowhere'"):
        scan(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no images in"):
        scan(tmp_path)
    put(tmp_path / "a.png")
    put(tmp_path / "n01" / "b.png")
    with pytest.raises(InputError, match=r"both directly and in class folders \(n01"):
        scan(tmp_path)


def test_images_come_upright(tmp_path: Path) -> None:
    """A photograph whose file says that the camera was turned."""
    image = Image.new("RGB", (20, 10))
    image.paste((255, 255, 255), (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter clockwise
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    opened = open_image(tmp_path / "a.jpg")
    assert opened.size == (10, 20)
    assert np.asarray(opened)[:10].mean() > 250
    assert np.asarray(opened)[10:].mean() < 5


def test_files_that_are_no_images_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    whole = put(tmp_path / "whole.png", size=(200, 200)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    for name, complaint in (
        ("text.png", "cannot read image"),
        ("cut.png", "cannot read image"),
        ("no.png", "no image file"),
    ):
        with pytest.raises(InputError, match=f"{complaint} '.*{name}'"):
            open_image(tmp_path / name)


def test_a_image_that_cannot_be_used_is_named_once(tmp_path: Path) -> None:
    put(tmp_path / "fine.png")
    put(tmp_path / "small.png", size=(3, 3))
    (tmp_path / "text.png").write_text("no image")
    images = Domain("clean", scan(tmp_path))
    with pytest.raises(InputError, match=r"^small\.png: image of 3x3 px is smaller than the crop of 6x4 px"):
        images.tensors([0, 1], PLAIN)
    with pytest.raises(InputError, match=r"^cannot read image '[^']*text\.png': unknown image format$"):
        images.tensors([2], PLAIN)
