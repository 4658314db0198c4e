"""`navia choose`: Choose NAVIA's settings without labels."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from navia.commands import completion
from navia.commands.terminal import (
    CheckpointOption,
    CropOnlyOption,
    DeviceOption,
    ImportOption,
    JsonOption,
    ModelOption,
    console,
    errors,
    load_model,
    print_json,
)


def choose(
    images: Annotated[Path, typer.Argument(help="Folder of target images; labels are never read.")],
    source: Annotated[Path, typer.Option(help="Source statistics from `navia stats`.")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    reduce: Annotated[
        str, typer.Option("--reduce", "-r", help="As for the statistics.", autocompletion=completion.reducers)
    ] = "none",
    batches: Annotated[int, typer.Option(help="How many batches to try each setting on.", min=2)] = 8,
    batch: Annotated[int, typer.Option(help="Batch size.", min=1)] = 64,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose NAVIA's layers and learning rates by its loss on unlabelled target images."""
    from navia.adapt.choose import choose as pick
    from navia.adapt.statistics import SourceStatistics

    vit = load_model(model, checkpoint, crop_only, device)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("settings", total=None)
        choice = pick(
            vit, images, SourceStatistics.load(source), reduce=reduce, batches=batches, batch=batch,
            progress=lambda done, of: progress.update(task, completed=done, total=of),
        )  # fmt: skip
    if as_json:
        print_json(dataclasses.asdict(choice))
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    table = Table(*choice.table[0][0], "Eq. 7 over the last half")
    for options, score in sorted(choice.table, key=lambda row: row[1]):
        table.add_row(*(f"{value:g}" for value in options.values()), f"{score:.4f}")
    console.print(table)
    cost_line = f"{choice.steps} steps on {choice.images} images, {choice.seconds:.0f} s"
    console.print(f"chosen: {', '.join(f'{k}={v:g}' for k, v in choice.options.items())} ({cost_line})", markup=False)
