"""Look a folder over: what it is, what was found, and which commands to run next."""

import shlex
from pathlib import Path

from navia.data.doctor.diagnosis import Diagnosis, Finding, PartCount
from navia.data.doctor.findings import findings_of
from navia.data.doctor.listing import Told, class_counts, list_parts
from navia.data.doctor.published import TRAINING, VALIDATION, Published, plain_title, published_as
from navia.data.doctor.reading import Seen, cropped_side, read_some
from navia.data.layouts import Layout, class_wrapper, has_images, recognise, usable_below
from navia.errors import InputError

MODEL = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
_MODEL_SIDE = 224


def examine(
    root: str | Path, *, model_classes: int | None = None, read: int | None = 200, progress: Told | None = None
) -> Diagnosis:
    """Look a folder over. model_classes: how many classes the model has, to check the class folders against.
    read: how many images to decode, spread evenly over the folder, the same ones each time; None: all."""
    root = Path(root)
    if read is not None and read < 0:
        raise InputError(f"the number of images to read must not be negative, got {read}")
    try:
        layout = recognise(root)
    except InputError as refusal:
        if not root.is_dir():
            raise
        return _unrecognised(root, refusal)
    told = progress or (lambda what, done, of: None)
    listed = list_parts(layout, told)
    seen = read_some([place for part in listed for place in part.holders], read, told)
    published = published_as(layout, listed)
    return Diagnosis(
        layout.kind,
        published.title if published else plain_title(layout.kind),
        root,
        tuple(PartCount(part.part.name, part.part.path, part.images, len(part.class_names)) for part in listed),
        sum(part.images for part in listed),
        len({name for part in listed for name in part.class_names}),
        class_counts(root, listed),
        seen.count,
        seen.summary(),
        findings_of(layout, listed, seen, published, model_classes),
        _next_commands(layout, published, seen),
    )


def _unrecognised(root: Path, refusal: InputError) -> Diagnosis:
    below = usable_below(root)
    wrapped = class_wrapper(root, below) or has_images(root)
    commands = () if wrapped else tuple(f"navia doctor {_quoted(layout.root)}" for layout in below[:4])
    return Diagnosis("unknown", "no known layout", root, findings=(Finding("error", str(refusal)),), next_commands=commands)


def _next_commands(layout: Layout, published: Published | None, seen: Seen) -> tuple[str, ...]:
    folder, reduce = _quoted(layout.root), "--reduce tome:8"
    model = f"--model {MODEL if published or layout.kind == 'imagenet' else 'hf:MODEL_FOLDER'}"
    crop = " --crop-only" if cropped_side(seen) == _MODEL_SIDE else ""
    again = (f"navia doctor {folder} --all",) if seen.broken else ()
    if published in (VALIDATION, TRAINING):
        return (
            *again,
            f"navia stats {folder} stats.safetensors {model} {reduce}{crop}",
            f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop} --corruption fog",
            f"navia corrupt {folder} OUT{' --as-is' if crop else ''}",  # a second crop would cut off the margins
        )
    if crop:  # clean images are usually not cropped yet: their statistics are measured by a command of their own
        return (
            *again,
            f"navia stats CLEAN_DIR stats.safetensors {model} {reduce}",
            f"navia run {folder} {model} --source stats.safetensors --method navia {reduce}{crop}",
        )
    return (*again, f"navia run {folder} {model} --source CLEAN_DIR --method navia {reduce}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
