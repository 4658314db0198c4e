"""`navia export`: write an adapted, reduced model as a file for other programs."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated

import navia
from navia.cli import options
from navia.cli.options import ADAPTATION, OUTPUT, choice, option
from navia.cli.terminal import errors, file_to_write, folder_to_write, load_model, print_result
from navia.errors import InputError

COMPARISON = "Comparison"
FORMATS = ("onnx", "torch", "checkpoint")
FORMAT, FORMAT_HELP = choice("format", lambda: FORMATS), "onnx, torch or checkpoint; by the suffix of --out."


def export(
    model: options.Model, out: options.Out, checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None, labels: options.Labels = None,
    delta: Annotated[Path | None, option("--delta", ADAPTATION, "Adapted state from `navia run --save`.")] = None,
    reduce: options.ReduceOrNone = None, source: options.Source = None, plugins: options.Plugins = None,
    classes: Annotated[str | None, option("--classes", ADAPTATION, "Only these classes: 0,3,7 or a file.")] = None,
    data: Annotated[Path | None, option("--data", COMPARISON, "Images, instead of random ones.")] = None,
    limit: options.Limit = 64, crop_only: options.CropOnly = False,
    tolerance: Annotated[float, option("--tolerance", COMPARISON, "Largest difference of a logit.", min=0)] = 1e-4,
    format_name: Annotated[str | None, option("--format -f", OUTPUT, FORMAT_HELP, **FORMAT)] = None,
    force: Annotated[bool, option("--force", OUTPUT, "Replace an existing file.")] = False,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Write an adapted, reduced model for other programs, and check that the file predicts as navia does.

        navia export -m timm:vit_base_patch16_224 --delta d.safetensors -o m.onnx

    onnx and torch (torch.export, .pt2) contain everything: reducer, adapted state and class selection, for any batch size.
    checkpoint is a file of timm or torchvision, or a folder of transformers, with weights only. The reducer is that of the
    delta unless --reduce is given; --source is for a delta with an activation shift (foa, foa_bp).
    """
    import torch

    from navia.adaptation.delta import read_delta
    from navia.adaptation.statistics import image_batches, open_source_statistics
    from navia.export import export as write
    from navia.export import open_delta, read_metadata

    out = _check_target(out, format_name, model, force)
    vit = load_model(model, checkpoint, crop_only, num_classes=num_classes, labels=labels)
    indices = None if classes is None else _class_indices(classes)
    if delta is None:
        adapter = navia.adapt(vit, "none", reduce, classes=indices, guard=False)
    else:
        used = reduce or read_delta(delta)[1].get("reduce", "none")
        statistics = None if source is None else open_source_statistics(vit, source, used)
        adapter = open_delta(vit, delta, statistics, reduce=reduce, classes=indices)
    images = None if data is None else torch.cat(list(image_batches(vit, data, 16, limit)))
    with errors.status("preparing") as status:
        parity = write(adapter, out, format_name, tolerance=tolerance, images=images, force=force, progress=status.update)
    metadata = read_metadata(out)
    compared = {**dataclasses.asdict(parity), "difference": parity.difference}
    print_result(
        as_json, {"out": str(out), "parity": compared, "metadata": metadata.model_dump(mode="json")},
        f"{vit.name}: {vit.preprocessing.describe()}", parity.describe(),
        f"method {metadata.method}, {metadata.steps} steps, reducer {metadata.reduce} -> {out}",
    )  # fmt: skip


def _check_target(out: Path, format_name: str | None, model: str, force: bool) -> Path:
    """Return the file or folder to write, refused before any work if it cannot be written. A folder gets a file in it,
    unless the folder itself is written (transformers)."""
    from navia.export import FORMATS, check_target, find_format

    library = {"hf": "transformers", "torchvision": "torchvision"}.get(model.partition(":")[0], "timm")
    writes_folder = library == "transformers" and format_name in (None, "checkpoint")
    if out.is_dir() and format_name in FORMATS and not writes_folder:
        out = out / f"model{FORMATS[format_name].suffix}"
    find_format(out, format_name, library)
    check_target(out, force)
    return folder_to_write(out) if writes_folder and not out.suffix else file_to_write(out, out.name)


def _class_indices(classes: str) -> list[int]:
    """Parse numbers between commas or spaces, from the option or from the file that it names."""
    try:
        text = Path(classes).read_text() if Path(classes).is_file() else classes
        return [int(number) for number in re.split(r"[\s,]+", text.strip())]
    except (OSError, ValueError):
        raise InputError(f"--classes takes numbers such as 0,3,7 or a file of them, not {classes!r}") from None
