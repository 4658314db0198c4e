"""`navia doctor`: say what a folder of images is, what is wrong with it, and what to do next."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from navia.cli import options
from navia.cli.options import option
from navia.cli.terminal import console, errors, print_json

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
        found = examine(
            folder, model_classes=num_classes, read=None if every else 200,
            progress=lambda stage, done, total: status.update(f"{stage}: {done:,}" + (f" of {total:,}" if total else "")),
        )  # fmt: skip
    lines = [Text(f"{found.root}: {found.title} ({found.kind})", "bold")]  # Text: no markup in file names
    if found.images:
        parts = f" in {len(found.parts)} parts" if len(found.parts) > 1 else ""
        classes = f"{found.classes:,} classes" if found.classes else "no class folders"
        lines += [Text(f"  {found.images:,} images{parts}, {classes}")]
    if per := found.per_class:
        lines += [Text(f"  images per class: {per.smallest:,} to {per.largest:,}, median {per.median:g}")]
        more = f" and {len(per.odd) - 5:,} more" if len(per.odd) > 5 else ""
        lines += [Text(f"  standing out: {', '.join(per.odd[:5])}{more}")] if per.odd else []
    if sizes := found.sizes:
        small, large, common = (f"{width}x{height}" for width, height in (sizes.smallest, sizes.largest, sizes.common))
        share = f"{sizes.common_count:,} of {found.examined:,} examined"
        lines += [Text(f"  sizes: {small} to {large} px, most often {common} ({share})")]
    for finding in found.findings:
        lines += [Text.assemble((f"{finding.severity:>8}", _COLOURS[finding.severity]), f"  {finding.text}")]
    lines += [Text("next:", "bold")] if found.next_commands else []
    lines += [Text(f"  {command}", "green") for command in found.next_commands]
    if as_json:
        print_json(found.as_dict())
    for line in () if as_json else lines:
        console.print(line, soft_wrap=True)  # no line break inside a command
    if found.has_errors:
        raise typer.Exit(1)
