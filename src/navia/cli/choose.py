"""`navia choose`: Choose NAVIA's settings without labels."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from navia.cli import completion
from navia.cli.terminal import (
    CheckpointOption,
    CorruptionOption,
    CropOnlyOption,
    DeviceOption,
    ImportOption,
    JsonOption,
    LabelsOption,
    ModelOption,
    NumClassesOption,
    SeverityOption,
    console,
    errors,
    load_model,
    print_json,
)
from navia.errors import InputError

if TYPE_CHECKING:
    from navia.data.loader import Loader
    from navia.models.base import ViT


def choose(
    images: Annotated[
        str, typer.Argument(help="Target images, as for `navia run`; labels only tell which classes there are.")
    ],
    source: Annotated[Path, typer.Option(help="Source statistics from `navia stats`.")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    labels: LabelsOption = None,
    reduce: Annotated[
        str, typer.Option("--reduce", "-r", help="As for the statistics.", autocompletion=completion.reducers)
    ] = "none",
    batches: Annotated[int, typer.Option(help="How many batches to try each setting on.", min=2)] = 8,
    batch: Annotated[int, typer.Option(help="Batch size.", min=1)] = 64,
    corruption: CorruptionOption = None,
    severity: SeverityOption = 5,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose NAVIA's layers and learning rates by its loss on unlabelled target images."""
    from navia.adaptation.selection import choose as pick
    from navia.adaptation.statistics import open_source_statistics

    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    loader, classes = _first_images(images, vit, corruption, severity, batches, batch)
    statistics = open_source_statistics(vit, source, reduce)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("settings", total=None)
        choice = pick(
            vit, loader, statistics, reduce=reduce, batches=batches, batch=batch, classes=classes,
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


def _first_images(
    images: str, vit: "ViT", corruption: str | None, severity: int, batches: int, batch: int
) -> "tuple[Loader, tuple[int, ...] | None]":
    """The images that `navia run` sees first, and the classes that it answers with (None: all)."""
    from navia.data.loader import Loader
    from navia.data.sources import open_domains
    from navia.data.streams import make_stream
    from navia.models.labels import class_names

    made = [corruption] if corruption else ()
    opened = open_domains(images, vit.num_classes, class_names(vit), corruptions=made, severity=severity)
    if len(opened.domains) > 1:
        names = ", ".join(domain.name for domain in opened.domains[:3])
        raise InputError(
            f"{images!r} has {len(opened.domains)} parts ({names}, ...): choose on one of them, give its folder"
        )
    seed = None if opened.domains[0].images.labels is None else 0  # as `run --order auto`
    stream = make_stream(opened.domains, seed=seed, limit=batches * batch)
    return Loader(stream, vit.preprocessing, batch), opened.classes
