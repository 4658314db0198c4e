"""`navia stats`: Measure source statistics."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from navia.cli import completion
from navia.cli.terminal import (
    CheckpointOption,
    CropOnlyOption,
    DeviceOption,
    ImportOption,
    JsonOption,
    ModelOption,
    NumClassesOption,
    console,
    file_to_write,
    load_model,
    print_json,
    write,
)
from navia.data import SOURCE_IMAGES


def stats(
    images: Annotated[Path, typer.Argument(help="Folder of clean, unlabelled images.")],
    out: Annotated[Path, typer.Argument(help="Where the statistics go (.safetensors).")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    reduce: Annotated[
        str, typer.Option("--reduce", "-r", help="The reducer that adaptation will use.", autocompletion=completion.reducers)
    ] = "none",
    limit: Annotated[
        int, typer.Option(help="Use at most so many images, drawn at random but always the same.", min=1)
    ] = SOURCE_IMAGES,
    fisher: Annotated[
        bool, typer.Option("--fisher", help="Also measure what EATA needs (its authors took --limit 2000).")
    ] = False,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the source statistics that align, navia, foa and foa_bp need."""
    from navia.adaptation.statistics import open_source_statistics

    out = file_to_write(out, "statistics.safetensors")
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes)
    source = open_source_statistics(vit, images, reduce, limit=limit, fisher=fisher)
    write(out, source.save)
    if as_json:
        print_json(dataclasses.asdict(source.provenance))
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False, soft_wrap=True)
    console.print(
        f"{source.provenance.count} images, reducer {source.provenance.reduce} -> {out}", markup=False, soft_wrap=True
    )
