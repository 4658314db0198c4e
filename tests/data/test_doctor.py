"""What the doctor finds: every finding is provoked by a tree that has just this fault, and missing from one that has not."""

import itertools
import json
import shlex
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from navia.cli.doctor import doctor
from navia.cli.main import app
from navia.data import corruptions, imagenet
from navia.data.doctor import MODEL, Diagnosis, Sizes, examine
from navia.errors import InputError

WNIDS = imagenet.wnids()
R = [WNIDS[i] for i in imagenet.r_classes()]
A = [WNIDS[i] for i in imagenet.a_classes()]
_levels = itertools.count()


def make_image(size: tuple[int, int] = (40, 30), mode: str = "RGB", form: str = "PNG", **options: Any) -> bytes:
    """No two have the same pixels."""
    out = BytesIO()
    pixels = np.random.default_rng(next(_levels)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, form, **options)
    return out.getvalue()


def put(path: Path, content: bytes | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_image() if content is None else content)
    return path


def fill(root: Path, folders: Iterable[str | int], each: int = 1, prefix: str = "image_") -> Path:
    """`each` images in every folder, all with the same bytes: for counts, where nothing is read."""
    content = make_image()
    for folder in folders:
        for number in range(each):
            put(root / str(folder) / f"{prefix}{number}.png", content)
    return root


def texts(diagnosis: Diagnosis, severity: str) -> str:
    return "\n".join(finding.text for finding in diagnosis.findings if finding.severity == severity)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    for name in ("cat/a.png", "cat/b.png", "dog/a.png", "dog/b.png"):
        put(tmp_path / name)
    return tmp_path


def test_healthy_folder_has_no_findings(healthy: Path) -> None:
    diagnosis = examine(healthy)
    assert diagnosis.findings == ()
    assert not diagnosis.has_errors
    assert (diagnosis.kind, diagnosis.images, diagnosis.classes, diagnosis.examined) == ("class folders", 4, 2, 4)
    assert diagnosis.per_class is not None
    assert (diagnosis.per_class.smallest, diagnosis.per_class.median, diagnosis.per_class.largest) == (2, 2, 2)
    assert diagnosis.per_class.empty == diagnosis.per_class.odd == ()
    assert diagnosis.next_commands == (
        f"navia run {healthy} --model hf:MODEL_FOLDER --source CLEAN_DIR --method navia --reduce tome:8",
    )


def test_truncated_and_alien_files_are_errors(healthy: Path) -> None:
    whole = (healthy / "cat" / "a.png").read_bytes()
    put(healthy / "cat" / "cut.png", whole[: len(whole) // 2])
    put(healthy / "dog" / "text.jpg", b"no image")
    put(healthy / "dog" / "zero.jpg", b"")
    diagnosis = examine(healthy)
    assert diagnosis.has_errors
    errors = texts(diagnosis, "error")
    assert errors.startswith("3 images of 7 examined cannot be read: cat/cut.png (")
    assert "dog/text.jpg (unknown image format)" in errors
    assert diagnosis.next_commands[0] == f"navia doctor {healthy} --all"


def test_images_to_read_are_spread_and_always_the_same(tmp_path: Path) -> None:
    """The middle of ten equal segments: of 100 files in 4 folders every tenth from 5 on."""
    whole = make_image()
    for position in range(100):
        put(tmp_path / f"class{position // 25}" / f"{position:03}.png", b"broken" if position % 10 == 5 else whole)
    assert texts(examine(tmp_path, read=10), "error").startswith("10 images of 10 examined cannot be read")
    assert examine(tmp_path, read=10) == examine(tmp_path, read=10)
    assert texts(examine(tmp_path, read=None), "error").startswith("10 images of 100 examined cannot be read")
    assert examine(tmp_path, read=0).examined == 0
    assert "10 of 100 images were decoded" in texts(examine(tmp_path, read=10), "note")
    with pytest.raises(InputError, match="must not be negative"):
        examine(tmp_path, read=-1)


def test_sizes_and_small_images(healthy: Path) -> None:
    put(healthy / "cat" / "tiny.png", make_image((27, 90)))
    put(healthy / "cat" / "large.png", make_image((200, 100)))
    put(healthy / "cat" / "enough.png", make_image((28, 28)))
    diagnosis = examine(healthy)
    assert diagnosis.sizes == Sizes((28, 28), (200, 100), (40, 30), 4)
    assert texts(diagnosis, "warning") == "1 image of 7 examined below 28 px on a side: cat/tiny.png"


def test_modes_and_frames_are_notes(healthy: Path) -> None:
    put(healthy / "cat" / "grey.png", make_image(mode="L"))
    put(healthy / "cat" / "print.jpg", make_image(mode="CMYK", form="JPEG"))
    frames = [Image.new("RGB", (40, 30), (level, 0, 0)) for level in (0, 100)]
    put(healthy / "cat" / "moving.webp", make_image(form="WEBP", save_all=True, append_images=frames))
    Image.fromarray(np.full((40, 40), 40_000, np.uint16)).save(healthy / "dog" / "deep.png")
    diagnosis = examine(healthy)
    for text in (
        "1 image of 8 examined greyscale",
        "1 image of 8 examined CMYK",
        "1 image of 8 examined with several frames",
    ):
        assert text in texts(diagnosis, "note")
    assert texts(diagnosis, "warning") == "1 image of 8 examined with more than 8 bits, cut to 8 bits"


def test_duplicates_are_of_equal_bytes_not_of_equal_length(healthy: Path) -> None:
    flat = [make_image(form="BMP"), make_image(form="BMP")]
    assert len(flat[0]) == len(flat[1])
    put(healthy / "cat" / "one.bmp", flat[0])
    put(healthy / "cat" / "other.bmp", flat[1])
    assert examine(healthy).findings == ()
    put(healthy / "dog" / "copy.bmp", flat[0])
    warning = texts(examine(healthy), "warning")
    assert warning == "1 group of identical files among 7 examined: cat/one.bmp = dog/copy.bmp"


def test_strange_files_and_folders(healthy: Path) -> None:
    put(healthy / "README.md", b"")
    put(healthy / "cat" / "labels.csv", b"")
    put(healthy / "dog" / "b.gif", b"")
    (healthy / "dog" / "gone.jpg").symlink_to(healthy / "nowhere.jpg")
    (healthy / ".cache").mkdir()
    (healthy / "logs" / "today").mkdir(parents=True)
    diagnosis = examine(healthy)
    assert diagnosis.images == 4
    assert texts(diagnosis, "note") == "not images, ignored: 2 files, README.md, cat/labels.csv"
    warnings = texts(diagnosis, "warning")
    assert "1 image in formats that are not read, ignored: dog/b.gif" in warnings
    assert "1 image behind broken links, ignored: dog/gone.jpg" in warnings
    assert "2 folders not part of the layout, ignored: .cache, logs" in warnings
    assert "without images" not in warnings


def test_attributes_left_by_macos_are_errors_even_if_not_read(healthy: Path) -> None:
    put(healthy / "cat" / "._a.png", b"Mac OS X")
    assert "1 file named ._* have an image suffix" in texts(examine(healthy, read=0), "error")


def test_empty_and_odd_class_folders(tmp_path: Path) -> None:
    fill(tmp_path, [f"class{i:02}" for i in range(20)], each=3)
    put(tmp_path / "class07" / "more.png")
    (tmp_path / "empty").mkdir()
    diagnosis = examine(tmp_path, read=0)
    assert diagnosis.per_class is not None
    assert diagnosis.per_class.empty == ("empty",)
    assert diagnosis.per_class.odd == ("class07 (4)",)
    assert diagnosis.per_class.largest == 4
    assert "1 class folder without images: empty" in texts(diagnosis, "warning")


def test_numbers_that_vary_stand_out_when_far_away(tmp_path: Path) -> None:
    for folder, each in (("a", 20), ("b", 25), ("c", 30), ("d", 1)):
        fill(tmp_path, [folder], each=each)
    diagnosis = examine(tmp_path, read=0)
    assert diagnosis.per_class is not None
    assert diagnosis.per_class.odd == ("d (1)",)


# Nesting


def test_too_high_names_the_folder_and_the_next_command(tmp_path: Path) -> None:
    fill(tmp_path / "my data" / "val", WNIDS[:3])
    diagnosis = examine(tmp_path / "my data")
    assert (diagnosis.kind, diagnosis.has_errors) == ("unknown", True)
    assert str(tmp_path / "my data" / "val") in texts(diagnosis, "error")
    assert diagnosis.next_commands == (f"navia doctor '{tmp_path / 'my data' / 'val'}'",)


def test_wrapped_class_folders(tmp_path: Path) -> None:
    diagnosis = examine(fill(tmp_path, [f"{wnid}/images" for wnid in WNIDS[:3]]))
    assert "one folder too deep" in texts(diagnosis, "error")
    assert diagnosis.next_commands == ()


def test_images_directly_and_in_folders(healthy: Path) -> None:
    put(healthy / "a.png")
    diagnosis = examine(healthy)
    assert "both directly and in class folders" in texts(diagnosis, "error")
    assert diagnosis.next_commands == ()


def test_images_left_out_deeper(healthy: Path) -> None:
    fill(healthy / "train", WNIDS[:3])
    put(healthy / "cat" / "more" / "a.png")
    warnings = texts(examine(healthy), "warning")
    assert f"images in 1 folder are too deep and not read: {str(healthy / 'train')!r} (imagenet)" in warnings
    assert "images in 1 folder inside class folders are not read: cat/more" in warnings
    assert "not part of the layout" not in warnings


def test_a_cover_image_above_the_data(tmp_path: Path) -> None:
    """One image directly inside makes the folder flat; what lies deeper must not go unseen."""
    fill(tmp_path / "val", WNIDS[:3])
    put(tmp_path / "cover.png")
    diagnosis = examine(tmp_path)
    assert (diagnosis.kind, diagnosis.images) == ("flat", 1)
    assert str(tmp_path / "val") in texts(diagnosis, "warning")


def test_one_class_folder_by_itself(tmp_path: Path) -> None:
    fill(tmp_path, WNIDS[:3])
    assert f"use its parent folder, {str(tmp_path)!r}" in texts(examine(tmp_path / WNIDS[1]), "warning")


def test_splits_are_no_classes(tmp_path: Path) -> None:
    fill(tmp_path, ["train", "val"])
    assert f"train, val are splits, not classes: use {str(tmp_path / 'val')!r}" in texts(examine(tmp_path), "warning")


def test_validation_set_as_downloaded(tmp_path: Path) -> None:
    put(tmp_path / "ILSVRC2012_val_00000001.JPEG", make_image(form="JPEG"))
    assert "sort its files into wnid folders" in texts(examine(tmp_path), "warning")


# Published data sets


def test_subset_of_the_validation_set(tmp_path: Path) -> None:
    fill(tmp_path, WNIDS, each=2, prefix="ILSVRC2012_val_")
    diagnosis = examine(tmp_path, read=1)
    assert (diagnosis.kind, diagnosis.title) == ("imagenet", "ImageNet validation set")
    assert "a subset: 2,000 of 50,000 images, 2 of 50 per class" in texts(diagnosis, "note")
    assert texts(diagnosis, "warning") == ""
    assert diagnosis.next_commands == (
        f"navia stats {tmp_path} -o stats.safetensors --model {MODEL} --reduce tome:8",
        f"navia run {tmp_path} --model {MODEL} --source stats.safetensors --method navia --reduce tome:8 --corruption fog",
        f"navia corrupt {tmp_path} -o OUT",
    )


def test_cropped_validation_images_are_not_cropped_again(tmp_path: Path) -> None:
    for wnid in WNIDS[:2]:
        put(tmp_path / wnid / "ILSVRC2012_val_1.JPEG", make_image((224, 224), form="JPEG"))
    stats, run, corrupt = examine(tmp_path).next_commands
    assert stats.endswith(" --crop-only")
    assert " --crop-only " in run
    assert corrupt == f"navia corrupt {tmp_path} -o OUT --as-is"


def test_unfinished_validation_set(tmp_path: Path) -> None:
    fill(tmp_path, WNIDS[:600], each=2, prefix="ILSVRC2012_val_")
    put(tmp_path / WNIDS[0] / "ILSVRC2012_val_9.png")
    warnings = texts(examine(tmp_path, read=0), "warning")
    assert "400 class folders of 1,000 missing" in warnings
    assert "1,201 of the published 50,000 images: a subset, or an incomplete copy" in warnings


def test_sketch_and_training_set_by_their_file_names(tmp_path: Path) -> None:
    sketch = examine(fill(tmp_path / "sketch", WNIDS[:3], prefix="sketch_"))
    assert sketch.title == "ImageNet-Sketch"
    assert "3 of 50,889 images" in texts(sketch, "note")
    assert sketch.next_commands[0].startswith(f"navia run {tmp_path / 'sketch'} --model {MODEL} --source CLEAN_DIR")
    training = examine(fill(tmp_path / "train", WNIDS[:3], prefix=f"{WNIDS[0]}_"))
    assert training.title == "ImageNet training set"
    assert examine(fill(tmp_path / "other", WNIDS[:3])).title == "images of ImageNet's classes"


def test_complete_imagenet_a(tmp_path: Path) -> None:
    fill(tmp_path, A[:100], each=37)
    fill(tmp_path, A[100:], each=38)
    diagnosis = examine(tmp_path, model_classes=1000, read=0)
    assert diagnosis.title == "ImageNet-A"
    assert "complete: 7,500 images, as published" in texts(diagnosis, "note")
    assert "200 class folders match a model of 1,000 classes, predictions limited to 200 classes" in texts(diagnosis, "note")
    put(tmp_path / A[0] / "more.png")
    assert "7,501 images are more than the published 7,500" in texts(examine(tmp_path, read=0), "warning")


def test_imagenet_r_with_a_class_folder_empty_or_missing(tmp_path: Path) -> None:
    fill(tmp_path, R[1:])
    missing = examine(tmp_path, read=0)
    assert missing.kind == "imagenet"
    assert f"all are classes of ImageNet-R, but 1 of its 200 are missing ({R[0]})" in texts(missing, "warning")
    (tmp_path / R[0]).mkdir()
    empty = examine(tmp_path, read=0)
    assert (empty.kind, empty.title) == ("imagenet-r", "ImageNet-R")
    assert f"1 class folder without images: {R[0]}; until they are filled, predictions are not limited" in texts(
        empty, "warning"
    )


def test_imagenet_v2(tmp_path: Path) -> None:
    diagnosis = examine(fill(tmp_path, range(999)), read=0)
    assert diagnosis.title == "ImageNet-V2"
    assert "1 class folder of 1,000 missing" in texts(diagnosis, "warning")
    assert "999 of 10,000 images, 1 of 10 per class" in texts(diagnosis, "note")


def test_numbers_are_told_as_such(tmp_path: Path) -> None:
    diagnosis = examine(fill(tmp_path, range(12)), model_classes=11)
    assert "class folders are numbers (0, 1, 2 and 9 more)" in texts(diagnosis, "note")
    assert "they must go from 0 to 10" in texts(diagnosis, "error")
    assert not examine(tmp_path, model_classes=12).has_errors


def test_wnids_mixed_with_others(tmp_path: Path) -> None:
    diagnosis = examine(fill(tmp_path, [*WNIDS[:3], "cat"]))
    assert diagnosis.kind == "class folders"
    assert "3 of 4 class folders are ImageNet's, the others are not: cat" in texts(diagnosis, "warning")


def test_model_that_does_not_match(healthy: Path) -> None:
    assert "2 class folders do not match the model's 3 classes" in texts(examine(healthy, model_classes=3), "error")
    assert texts(examine(healthy, model_classes=2), "note") == "2 class folders match a model of 2 classes"
    assert not examine(fill(healthy / "named", ["tench", "goldfish"]), model_classes=1000).has_errors
    assert "accuracy is unknown" in texts(examine(healthy / "cat", model_classes=3), "note")


# ImageNet-C


def imagenet_c(root: Path, size: tuple[int, int] = (224, 224)) -> Path:
    """15 corruptions, severities 3 and 5, two classes."""
    content = make_image(size)
    for name, severity, wnid in itertools.product(corruptions.names(), (3, 5), WNIDS[:2]):
        put(root / name / str(severity) / wnid / "ILSVRC2012_val_1.png", content)
    return root


def test_imagenet_c_in_order(tmp_path: Path) -> None:
    diagnosis = examine(imagenet_c(tmp_path), read=20)
    assert (diagnosis.title, diagnosis.images, diagnosis.classes, len(diagnosis.parts)) == ("ImageNet-C", 60, 2, 30)
    assert [(part.name, part.images, part.classes) for part in diagnosis.parts[:2]] == [
        ("gaussian_noise/3", 2, 2),
        ("gaussian_noise/5", 2, 2),
    ]
    assert texts(diagnosis, "error") == ""
    assert "severities 3, 5 only" in texts(diagnosis, "note")
    assert "each of 30 parts: a subset: 2 of 50,000 images, 1 of 50 per class" in texts(diagnosis, "note")
    assert "each of 30 parts: 998 class folders of 1,000 missing" in texts(diagnosis, "warning")
    for absent in ("lacks", "corruptions are missing", "parts differ", "not part of the layout"):
        assert absent not in texts(diagnosis, "warning")
    assert "all examined images are 224x224 px" in texts(diagnosis, "note")
    assert diagnosis.next_commands == (
        f"navia stats CLEAN_DIR -o stats.safetensors --model {MODEL} --reduce tome:8",
        f"navia run {tmp_path} --model {MODEL} --source stats.safetensors --method navia --reduce tome:8 --crop-only",
    )


def test_imagenet_c_with_holes(tmp_path: Path) -> None:
    imagenet_c(tmp_path)
    for folder in ("fog", "snow"):
        (tmp_path / folder).rename(tmp_path / f"{folder}_old")
    (tmp_path / "frost" / "3").rename(tmp_path / "frost" / "three")
    put(tmp_path / "contrast" / "5" / WNIDS[0] / "more.png")
    put(tmp_path / "contrast" / "checksums.txt", b"")
    (tmp_path / "spatter" / "5").mkdir(parents=True)
    fill(tmp_path / "saturate", [f"5/{WNIDS[0]}"])
    diagnosis = examine(tmp_path, read=0)
    warnings = texts(diagnosis, "warning")
    assert "2 of 15 corruptions are missing: snow, fog" in warnings
    assert "frost lacks severity 3" in warnings
    assert "saturate lacks severity 3" in warnings
    assert "parts differ: most hold 2 images, but contrast/5 (3), saturate/5 (1)" in warnings
    assert "4 folders not part of the layout, ignored: fog_old, snow_old, spatter and 1 more" in warnings
    assert "1 of the 4 extra corruptions: saturate" in texts(diagnosis, "note")
    assert "contrast/checksums.txt" in texts(diagnosis, "note")


def test_parts_of_imagenet_c_are_not_taken_for_clean_images(tmp_path: Path) -> None:
    imagenet_c(tmp_path)
    severity = examine(tmp_path / "fog" / "5")
    assert (severity.kind, severity.title) == ("imagenet", "one part of ImageNet-C")
    assert str(tmp_path) in texts(severity, "note")
    assert not any("corrupt" in command or f"stats {tmp_path}" in command for command in severity.next_commands)
    assert f"one corruption of ImageNet-C; the dataset is {str(tmp_path)!r}" in texts(examine(tmp_path / "fog"), "note")


def test_part_with_images_directly_and_in_folders(tmp_path: Path) -> None:
    put(imagenet_c(tmp_path) / "fog" / "5" / "a.png")
    assert f"fog/5 holds images both directly and in class folders ({WNIDS[0]}" in texts(examine(tmp_path, read=0), "error")


def test_own_images_in_the_layout_of_imagenet_c(tmp_path: Path) -> None:
    diagnosis = examine(fill(tmp_path, ["fog/5/cat", "fog/5/dog"]))
    assert (diagnosis.kind, diagnosis.title) == ("imagenet-c", "corrupted images in ImageNet-C's layout")
    assert "50,000" not in texts(diagnosis, "note") + texts(diagnosis, "warning")
    assert "hf:MODEL_FOLDER" in diagnosis.next_commands[-1]


def test_squares_of_other_sizes_are_not_cropped(tmp_path: Path) -> None:
    """Neither photographs made square, nor CIFAR: cutting out 224 px would give other pixels, or none."""
    for side in (512, 32):
        root = imagenet_c(tmp_path / str(side), (side, side))
        diagnosis = examine(root, read=4)
        assert "--crop-only" not in " ".join([*diagnosis.next_commands, texts(diagnosis, "note")])


# The command


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(doctor)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def test_command_on_a_healthy_folder(healthy: Path) -> None:
    result = invoke(str(healthy), "--num-classes", "2")
    assert result.exit_code == 0
    assert "images in class folders (class folders)" in result.stdout
    assert "4 images, 2 classes" in result.stdout
    assert "images per class: 2 to 2, median 2" in result.stdout
    assert "sizes: 40x30 to 40x30 px, most often 40x30 (4 of 4 examined)" in result.stdout
    for command in examine(healthy).next_commands:
        assert f"  {command}\n" in result.stdout  # whole, whatever the width


def test_command_exits_with_1_on_errors_only(healthy: Path) -> None:
    put(healthy / "cat" / "[red]cut.png", b"broken")
    result = invoke(str(healthy))
    assert result.exit_code == 1
    assert "error  1 image of 5 examined cannot be read: cat/[red]cut.png (unknown image format)" in result.stdout
    (healthy / "cat" / "[red]cut.png").unlink()
    (healthy / "empty").mkdir()
    result = invoke(str(healthy))
    assert result.exit_code == 0
    assert "warning  1 class folder without images: empty" in result.stdout


def test_command_reads_all_on_request(tmp_path: Path) -> None:
    fill(tmp_path, ["cat"], each=300)
    assert "200 of 300 images were decoded: --all decodes every one" in invoke(str(tmp_path)).stdout
    every = invoke(str(tmp_path), "--all", "--json")
    assert every.exit_code == 0
    assert json.loads(every.stdout)["examined"] == 300


def test_command_as_json(healthy: Path) -> None:
    put(healthy / "cat" / "cut.png", b"broken")
    result = invoke(str(healthy), "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown == json.loads(json.dumps(examine(healthy).as_dict()))
    assert shown["root"] == str(healthy)
    assert shown["parts"] == [{"name": healthy.name, "path": str(healthy), "images": 5, "classes": 2}]
    assert shown["findings"][0]["severity"] == "error"


def test_suggested_commands_are_valid(tmp_path: Path) -> None:
    """The parser of the program accepts every suggestion."""
    for wnid in WNIDS[:2]:
        put(tmp_path / "val" / wnid / "ILSVRC2012_val_1.JPEG", make_image((224, 224), form="JPEG"))
    put(tmp_path / "val" / WNIDS[0] / "cut.JPEG", b"broken")
    imagenet_c(tmp_path / "c")
    suggested = [*examine(tmp_path / "val").next_commands, *examine(tmp_path / "c", read=2).next_commands]
    program: Any = typer.main.get_command(app)
    for command in suggested:
        navia, name, *arguments = shlex.split(command)
        assert navia == "navia"
        program.commands[name].make_context(name, arguments)
    assert {command.split()[1] for command in suggested} == {"doctor", "stats", "run", "corrupt"}


def test_command_refuses_what_is_no_folder(tmp_path: Path) -> None:
    result = invoke(str(tmp_path / "nowhere"))
    assert isinstance(result.exception, InputError)
    assert "no folder" in str(result.exception)


def test_real_folder(imagenet: Path) -> None:
    diagnosis = examine(imagenet, model_classes=1000, read=40)
    assert (diagnosis.kind, diagnosis.classes, diagnosis.examined) == ("imagenet", 1000, 40)
    assert not diagnosis.has_errors
    assert diagnosis.next_commands[0].startswith(f"navia stats {imagenet} ")
