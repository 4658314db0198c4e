"""`navia export`: an adapted, reduced model as a file for other programs."""

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from navia.cli import completion
from navia.cli.terminal import (
    MODEL_HELP,
    CheckpointOption,
    CropOnlyOption,
    ImportOption,
    JsonOption,
    LabelsOption,
    NumClassesOption,
    console,
    errors,
    file_to_write,
    folder_to_write,
    load_model,
    print_json,
)
from navia.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from navia.adaptation.adapter import Adapter
    from navia.models.base import ViT


def export(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=completion.models)],
    out: Annotated[Path, typer.Option(help="Where it goes: .onnx, .pt2, .safetensors, or a folder (transformers).")],
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    labels: LabelsOption = None,
    delta: Annotated[
        Path | None, typer.Option(help="What was adapted (`navia run --save`); without: the model itself.")
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option(
            "--reduce",
            "-r",
            help="Token reducer: none, tome:8, evit:8, tofu:8; that of the delta if not given.",
            autocompletion=completion.reducers,
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Clean images or statistics, for a delta with an activation shift (foa, foa_bp).")
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", "-f", help="onnx, torch or checkpoint; if not given, by the suffix of --out.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Answer with these classes only: their numbers, or a file of them.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Images for the comparison, instead of random ones.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many of --images.", min=1)] = 64,
    tolerance: Annotated[float, typer.Option(help="Largest difference of a logit that is let pass.", min=0)] = 1e-4,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    crop_only: CropOnlyOption = False,
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an adapted, reduced model for other programs, and check that the file answers as navia does.

        navia export timm:deit_tiny_patch16_224 --delta delta.safetensors --out model.onnx

    onnx and torch (torch.export, .pt2) hold everything: reducer, what was adapted, class mask; batches may be of any size.
    checkpoint is a plain file of timm or torchvision, or a folder of transformers: weights alone, for what folds into them.
    """
    from navia.export import export as write
    from navia.export import read_metadata

    out = _target(out, format_name, model, force)
    vit = load_model(model, checkpoint, crop_only, num_classes=num_classes, labels=labels)
    adapter = _adapter(vit, delta, reduce, source, _numbers(classes))
    shown = None if images is None else _pictures(vit, images, limit)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("looking")
        parity = write(
            adapter, out, format_name, tolerance=tolerance, images=shown, force=force,
            progress=lambda stage: progress.update(task, description=stage),
        )  # fmt: skip
    metadata = read_metadata(out)
    if as_json:
        compared = {**dataclasses.asdict(parity), "difference": parity.difference}
        print_json({"out": str(out), "parity": compared, "metadata": metadata.model_dump(mode="json")})
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False, soft_wrap=True)
    console.print(parity.describe(), markup=False, soft_wrap=True)
    made = f"method {metadata.method}, {metadata.steps} steps, reducer {metadata.reduce}"
    console.print(f"{made} -> {out}", markup=False, soft_wrap=True)


def _target(out: Path, format_name: str | None, model: str, force: bool) -> Path:
    """Where the file goes, refused before any work where it cannot. A folder gets a file of the format's, unless the folder
    itself is what is written (transformers)."""
    from navia.export import FORMATS, check_target, find_format

    library = {"hf": "transformers", "torchvision": "torchvision"}.get(model.partition(":")[0], "timm")
    writes_folder = library == "transformers" and format_name in (None, "checkpoint")
    if out.is_dir() and format_name in FORMATS and not writes_folder:
        out = out / f"model{FORMATS[format_name].suffix}"
    find_format(out, format_name, library)
    check_target(out, force)
    return folder_to_write(out) if writes_folder and not out.suffix else file_to_write(out, out.name)


def _adapter(vit: "ViT", delta: Path | None, reduce: str | None, source: str | None, classes: list[int] | None) -> "Adapter":
    from navia.adaptation.adapter import adapt
    from navia.adaptation.delta import read_delta
    from navia.adaptation.statistics import open_source_statistics
    from navia.export import open_delta

    if delta is None:
        return adapt(vit, "none", reduce, classes=classes, guard=False)
    reducer = reduce or read_delta(delta)[1].get("reduce", "none")
    statistics = None if source is None else open_source_statistics(vit, source, reducer)
    return open_delta(vit, delta, statistics, reduce=reduce, classes=classes)


def _pictures(vit: "ViT", folder: Path, limit: int) -> "Tensor":
    import torch

    from navia.adaptation.statistics import image_batches

    return torch.cat(list(image_batches(vit, folder, 16, limit)))


def _numbers(classes: str | None) -> list[int] | None:
    """Numbers between commas or spaces, of the option itself or of the file that it names."""
    if classes is None:
        return None
    try:
        text = Path(classes).read_text() if Path(classes).is_file() else classes
        return [int(number) for number in re.split(r"[\s,]+", text.strip())]
    except (OSError, ValueError):
        raise InputError(f"--classes takes numbers such as 0,3,7 or a file of them, not {classes!r}") from None
