"""`navia doctor`: say what a folder of images is, what is wrong with it, and what to do next."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from navia.cli import options
from navia.cli.options import option
from navia.cli.terminal import console, errors, print_json

if TYPE_CHECKING:
    from navia.data.doctor import Diagnosis

_COLOURS = {"note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of images in any layout.")],
    num_classes: Annotated[int | None, option("--num-classes", options.MODEL, "Classes of the model.", min=1)] = None,
    every: Annotated[bool, option("--all", options.IMAGES, "Decode every image instead of 200.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show what a folder of images is, what is wrong with it, and what to do next; exit code 1 if a run would fail."""
    from navia.data.doctor import examine

    with errors.status("listing") as status:
        diagnosis = examine(
            folder, model_classes=num_classes, read=None if every else 200,
            progress=lambda stage, done, total: status.update(f"{stage}: {done:,}" + (f" of {total:,}" if total else "")),
        )  # fmt: skip
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        for line in _lines(diagnosis):
            console.print(line, soft_wrap=True)  # Text: no markup in file names; no line break inside a command
    if diagnosis.has_errors:
        raise typer.Exit(1)


def _lines(diagnosis: "Diagnosis") -> Iterator[Text]:
    yield Text(f"{diagnosis.root}: {diagnosis.title} ({diagnosis.kind})", "bold")
    if diagnosis.images:
        parts = f" in {len(diagnosis.parts)} parts" if len(diagnosis.parts) > 1 else ""
        classes = f"{diagnosis.classes:,} classes" if diagnosis.classes else "no class folders"
        yield Text(f"  {diagnosis.images:,} images{parts}, {classes}")
    per = diagnosis.per_class
    if per:
        yield Text(f"  images per class: {per.smallest:,} to {per.largest:,}, median {per.median:g}")
        if per.odd:
            more = f" and {len(per.odd) - 5:,} more" if len(per.odd) > 5 else ""
            yield Text(f"  unusual numbers: {', '.join(per.odd[:5])}{more}")
    sizes = diagnosis.sizes
    if sizes:
        small, large, common = (f"{width}x{height}" for width, height in (sizes.smallest, sizes.largest, sizes.common))
        share = f"{sizes.common_count:,} of {diagnosis.examined:,} examined"
        yield Text(f"  sizes: {small} to {large} px, most often {common} ({share})")
    for finding in diagnosis.findings:
        yield Text.assemble((f"{finding.severity:>8}", _COLOURS[finding.severity]), f"  {finding.text}")
    if diagnosis.next_commands:
        yield Text("next:", "bold")
    yield from (Text(f"  {command}", "green") for command in diagnosis.next_commands)
