"""Published layouts in small: what is recognised, what is refused and how, and which classes the folders stand for."""

import os
import subprocess
import sys
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from timm.data import ImageNetInfo
from torchvision.models._meta import _IMAGENET_CATEGORIES

from navia.data import corruptions, imagenet
from navia.data.layouts import ClassMatch, Part, detect_layout, match_classes
from navia.data.sources import ImageSource, open_domains, scan
from navia.errors import InputError

WNIDS = imagenet.wnids()
R = [WNIDS[i] for i in imagenet.r_classes()]
A = [WNIDS[i] for i in imagenet.a_classes()]


def make_image(level: int = 0, size: tuple[int, int] = (32, 32)) -> bytes:
    out = BytesIO()
    Image.new("RGB", size, (level,) * 3).save(out, "PNG")
    return out.getvalue()


def put(path: Path, content: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_image() if content is None else content)
    return path


def fill(root: Path, folders: Iterable[str | int]) -> Path:
    """One image in each folder."""
    content = make_image()
    for folder in folders:
        put(root / str(folder) / "a.png", content)
    return root


def refusal(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        detect_layout(root)
    return str(caught.value)


# ImageNet's classes


def test_classes_are_timms_own() -> None:
    assert list(WNIDS) == ImageNetInfo().label_names()
    assert len(imagenet.names()) == 1000
    assert all(
        isinstance(classes, tuple) and len(classes) == 200 for classes in (imagenet.r_classes(), imagenet.a_classes())
    )


def test_names_are_those_that_torchvision_uses() -> None:
    """Torchvision tells some namesakes apart and spells a few otherwise; an order that is off would agree almost nowhere."""
    same = sum(ours.lower() == theirs.lower() for ours, theirs in zip(imagenet.names(), _IMAGENET_CATEGORIES, strict=True))
    assert same > 900


def test_classes_of_r_and_a_are_what_their_authors_list() -> None:
    """First and last entries of imagenet_r_wnids and imagenet_a_wnids in the authors' code."""
    assert (R[0], R[1], R[-1]) == ("n01443537", "n01484850", "n12267677")
    assert (A[0], A[1], A[-1]) == ("n01498041", "n01531178", "n12267677")


def test_lists_are_read_without_timm() -> None:
    code = "import sys; from navia.data.imagenet import names; print(len(names()), {'timm', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000", "set()"]


# Layouts


def test_flat(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "notes.txt", b"no image")
    layout = detect_layout(tmp_path)
    assert (layout.kind, layout.root, layout.parts) == ("flat", tmp_path, (Part(tmp_path.name, tmp_path),))


@pytest.mark.parametrize(
    ("folders", "kind"),
    [
        (["cat", "dog"], "class folders"),
        (WNIDS[:3], "imagenet"),
        (WNIDS, "imagenet"),
        (R, "imagenet-r"),
        (A, "imagenet-a"),
        (R[:-1], "imagenet"),
        ([*R, WNIDS[0]], "imagenet"),
        ([*WNIDS[:3], "cat"], "class folders"),
        (["n00000001", *WNIDS[:3]], "class folders"),
        (range(1000), "imagenet-v2"),
        (range(0, 1000, 2), "imagenet-v2"),
        (range(12), "class folders"),
        (range(1, 1001), "class folders"),
    ],
)
def test_class_folders_by_their_names(tmp_path: Path, folders: Iterable[str | int], kind: str) -> None:
    layout = detect_layout(fill(tmp_path, folders))
    assert layout.kind == kind
    assert [part.path for part in layout.parts] == [tmp_path]


def test_empty_class_folder_still_tells_the_data_set(tmp_path: Path) -> None:
    (fill(tmp_path, R[1:]) / R[0]).mkdir()
    assert detect_layout(tmp_path).kind == "imagenet-r"


def test_folders_without_images_are_no_classes(tmp_path: Path) -> None:
    put(fill(tmp_path, WNIDS[:3]) / "scripts" / "prepare.sh", b"")
    assert detect_layout(tmp_path).kind == "imagenet"


@pytest.mark.parametrize("grouped", [False, True])
def test_imagenet_c_has_parts_in_the_order_of_the_paper(tmp_path: Path, grouped: bool) -> None:
    for group, members in corruptions.CORRUPTIONS.items():
        for name in members:
            top = tmp_path / group if grouped else tmp_path
            fill(top / name, [f"{severity}/{WNIDS[7]}" for severity in range(1, 6)])
    layout = detect_layout(tmp_path)
    assert layout.kind == "imagenet-c"
    assert [part.name for part in layout.parts] == [f"{n}/{s}" for n in corruptions.names(extra=True) for s in range(1, 6)]
    for part in layout.parts:
        assert part.path.is_dir()
        assert part.path.as_posix().endswith(part.name)
        assert scan(part.path).class_names == (WNIDS[7],)


def test_imagenet_c_is_recognised_from_one_class_folder_per_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, [f"{name}/{severity}/{wnid}" for name in ("fog", "snow") for severity in (1, 5) for wnid in WNIDS[:50]])
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(Path(path).name), scandir(path))[1])
    assert len(detect_layout(tmp_path).parts) == 4
    assert sum(name in WNIDS for name in listed) == 4


def test_pieces_of_imagenet_c(tmp_path: Path) -> None:
    fill(tmp_path, [f"{place}/{WNIDS[0]}" for place in ("fog/5", "fog/2", "gaussian_noise/5", "fog/6")])
    (tmp_path / "snow" / "5").mkdir(parents=True)
    put(tmp_path / "brightness" / "3" / "a.png")
    layout = detect_layout(tmp_path)
    assert [part.name for part in layout.parts] == ["gaussian_noise/5", "fog/2", "fog/5", "brightness/3"]
    inner = detect_layout(tmp_path / "fog")
    assert (inner.kind, [part.name for part in inner.parts]) == ("imagenet-c", ["fog/2", "fog/5"])
    assert detect_layout(tmp_path / "fog" / "5").kind == "imagenet"


def test_one_corruption_from_inside_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "fog", [f"{severity}/{WNIDS[0]}" for severity in (3, 1)])
    monkeypatch.chdir(tmp_path / "fog")
    assert [part.name for part in detect_layout(".").parts] == ["fog/1", "fog/3"]


def test_classes_that_are_called_like_corruptions(tmp_path: Path) -> None:
    assert detect_layout(fill(tmp_path, ["snow", "fog", "frost"])).kind == "class folders"


def test_numbered_folders_inside_a_class_called_snow_are_no_severities(tmp_path: Path) -> None:
    assert detect_layout(fill(tmp_path / "snow", [1, 2, 3])).kind == "class folders"


def test_a_corruption_twice_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, [f"fog/3/{WNIDS[0]}", f"weather/fog/3/{WNIDS[0]}"])
    assert "fog/3 is there twice" in refusal(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").startswith("no folder '")
    assert refusal(put(tmp_path / "a.png")).endswith("a.png' is a file, not a folder")


def test_no_images_says_what_there_is(tmp_path: Path) -> None:
    assert "it is empty" in refusal(tmp_path)
    put(tmp_path / "val.tar", b"")
    (tmp_path / "devkit").mkdir()
    assert "found devkit/, val.tar (looked for .bmp" in refusal(tmp_path)


def test_images_directly_and_in_folders(tmp_path: Path) -> None:
    put(fill(tmp_path / "plain", ["cat"]) / "a.png")
    assert "both directly and in class folders (cat" in refusal(tmp_path / "plain")
    put(fill(tmp_path / "c", [f"fog/1/{WNIDS[0]}"]) / "a.png")
    assert "both directly and in corruption folders (fog/1" in refusal(tmp_path / "c")


def test_one_level_too_high_names_the_folder_to_use(tmp_path: Path) -> None:
    fill(tmp_path / "train", WNIDS[:3])
    assert f"use {str(tmp_path / 'train')!r} (imagenet)" in refusal(tmp_path)
    fill(tmp_path / "val", WNIDS[:3])
    assert f"{str(tmp_path / 'train')!r} (imagenet), {str(tmp_path / 'val')!r} (imagenet)" in refusal(tmp_path)


def test_several_levels_too_high(tmp_path: Path) -> None:
    fill(tmp_path / "data" / "sets" / "ImageNet-C", [f"fog/1/{WNIDS[0]}"])
    assert f"use {str(tmp_path / 'data' / 'sets' / 'ImageNet-C')!r} (imagenet-c)" in refusal(tmp_path)


def test_class_folders_that_wrap_their_images(tmp_path: Path) -> None:
    """As the training set of Tiny ImageNet: wnid/images/*."""
    fill(tmp_path / "tiny", [f"{wnid}/images" for wnid in WNIDS[:3]])
    fill(tmp_path / "own", ["cat/images", "dog/images"])
    assert f"one folder too deep ({WNIDS[0]}/images/...)" in refusal(tmp_path / "tiny")
    assert "one folder too deep (cat/images/...)" in refusal(tmp_path / "own")


def test_imagenet_c_without_its_severities(tmp_path: Path) -> None:
    fill(tmp_path, [f"fog/{wnid}" for wnid in WNIDS[:3]])
    assert f"use {str(tmp_path / 'fog')!r} (imagenet)" in refusal(tmp_path)


# Classes


def test_wnids_are_imagenets_classes() -> None:
    assert match_classes([WNIDS[999], WNIDS[3]], 1000) == ClassMatch((999, 3), None)
    assert match_classes(WNIDS, 1000) == ClassMatch(tuple(range(1000)), None)


@pytest.mark.parametrize(("names", "mask"), [(R, imagenet.r_classes()), (A, imagenet.a_classes())])
def test_r_and_a_come_with_a_mask(names: list[str], mask: tuple[int, ...]) -> None:
    classes = match_classes(names, 1000)
    assert classes.class_indices == mask == tuple(sorted(mask))
    assert [WNIDS[mask[column]] for column in classes.labels] == names
    assert match_classes(names[:-1], 1000) == ClassMatch(mask[:-1], None)


def test_wnids_for_another_model_are_but_names() -> None:
    assert match_classes(R, 200) == ClassMatch(tuple(range(200)), None)
    with pytest.raises(InputError, match="3 class folders do not match the model's 10 classes"):
        match_classes(WNIDS[:3], 10)


def test_numbers_are_class_numbers() -> None:
    assert match_classes(["0", "2", "10", "007"], 11) == ClassMatch((0, 2, 10, 7), None)
    with pytest.raises(InputError, match=r"1 of 3 \(10\) are none of the model's 10 classes: they must go from 0 to 9"):
        match_classes(["1", "2", "10"], 10)


def test_names_of_the_model_in_any_case() -> None:
    assert match_classes(["Dog", "cat"], 3, ["bird", "Cat", "dog"]) == ClassMatch((2, 1), None)


def test_as_many_folders_as_classes_are_taken_in_sorted_order() -> None:
    assert match_classes(["b", "a", "c"], 3) == ClassMatch((1, 0, 2), None)
    assert match_classes(["auto", "bird", "cat"], 3, ["automobile", "Bird", "cat"]) == ClassMatch((0, 1, 2), None)


def test_sorted_order_against_the_names_is_refused() -> None:
    """By order "cat" would be class 2, by name it is class 0."""
    with pytest.raises(InputError, match=r"2 are unknown or ambiguous \(auto, bird\)"):
        match_classes(["auto", "bird", "cat"], 3, ["cat", "airplane", "automobile"])


def test_a_name_of_two_classes_is_refused() -> None:
    with pytest.raises(InputError, match=r"ambiguous \(crane\)"):
        match_classes(["crane", "tench"], 1000, imagenet.names())


def test_unmatched_folders_are_told_with_numbers_examples_and_a_remedy() -> None:
    with pytest.raises(InputError) as caught:
        match_classes(["cat", "dog", "emu", "fox"], 1000, imagenet.names())
    for part in (
        "4 class folders",
        "1000 classes",
        "4 are unknown",
        "cat, dog, emu, ...",
        "wnids",
        "tench, goldfish",
        "0 to 999",
    ):
        assert part in str(caught.value)


def test_labelled_folder_is_a_collection(tmp_path: Path) -> None:
    """Twelve numbers, sorted as numbers and not as text."""
    for number in range(12):
        put(tmp_path / str(number) / "a.png", make_image(level=number * 20))
    images: ImageSource = open_domains(tmp_path, 12).domains[0].images
    assert list(images.labels or ()) == list(range(12))
    assert len(images) == 12
    for position in range(12):
        assert images.name(position) == f"{position}/a.png"
        assert np.asarray(images.read(position)).max() == position * 20


def test_labels_go_through_the_classes(tmp_path: Path) -> None:
    put(fill(tmp_path, [R[5], R[9]]) / R[9] / "b.png")
    assert open_domains(tmp_path, 1000).domains[0].images.labels == (WNIDS.index(R[5]), *[WNIDS.index(R[9])] * 2)


def test_real_folder(imagenet: Path) -> None:
    layout = detect_layout(imagenet)
    assert layout.kind == "imagenet"
    images = open_domains(imagenet, 1000).domains[0].images
    assert images.labels is not None
    for position in (0, len(images) // 2, len(images) - 1):
        assert WNIDS[images.labels[position]] == images.name(position).split("/")[0]
