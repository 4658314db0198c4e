"""`navia doctor`: say what a folder of images is, what is wrong with it, and what to do next."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
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

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("listing", total=None)
        diagnosis = examine(
            folder, model_classes=num_classes, read=None if every else 200,
            progress=lambda what, done, of: progress.update(task, description=what, completed=done, total=of),
        )  # fmt: skip
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        _report(diagnosis)
    if diagnosis.has_errors:
        raise typer.Exit(1)


def _report(diagnosis: "Diagnosis") -> None:
    _line(f"{diagnosis.root}: {diagnosis.title} ({diagnosis.kind})", "bold")
    if diagnosis.images:
        _line(f"  {_counted(diagnosis)}")
    if diagnosis.per_class:
        per = diagnosis.per_class
        _line(f"  images per class: {per.smallest:,} to {per.largest:,}, median {per.median:g}")
        if per.odd:
            more = f" and {len(per.odd) - 5:,} more" if len(per.odd) > 5 else ""
            _line(f"  standing out: {', '.join(per.odd[:5])}{more}")
    if diagnosis.sizes:
        small, large, common = (f"{w}x{h}" for w, h in _three_sizes(diagnosis))
        share = f"{diagnosis.sizes.common_count:,} of {diagnosis.examined:,} examined"
        _line(f"  sizes: {small} to {large} px, most often {common} ({share})")
    for finding in diagnosis.findings:
        console.print(
            Text.assemble((f"{finding.severity:>8}", _COLOURS[finding.severity]), f"  {finding.text}"), soft_wrap=True
        )
    if diagnosis.next_commands:
        _line("next:", "bold")
    for command in diagnosis.next_commands:
        _line(f"  {command}", "green")


def _counted(diagnosis: "Diagnosis") -> str:
    parts = f" in {len(diagnosis.parts)} parts" if len(diagnosis.parts) > 1 else ""
    classes = f", {diagnosis.classes:,} classes" if diagnosis.classes else ", no class folders"
    return f"{diagnosis.images:,} images{parts}{classes}"


def _three_sizes(diagnosis: "Diagnosis") -> tuple[tuple[int, int], ...]:
    assert diagnosis.sizes is not None
    return diagnosis.sizes.smallest, diagnosis.sizes.largest, diagnosis.sizes.common


def _line(text: str, style: str = "") -> None:
    """As it is: no markup in file names, and no break within a command that may be copied."""
    console.print(Text(text, style), soft_wrap=True)
