"""`navia corrupt`: write corrupted copies of clean images."""

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from navia.cli import completion
from navia.cli.terminal import JsonOption, console, errors, folder_to_write, print_json

if TYPE_CHECKING:
    from navia.data.corrupt_tree import Progress, Summary


def corrupt(
    images: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of clean images, with or without class folders.")],
    out: Annotated[Path, typer.Argument(metavar="DST", help="Where DST/corruption/severity/name.JPEG go.")],
    corruption: Annotated[
        list[str] | None, typer.Option(help="Repeatable; all 15 by default.", autocompletion=completion.corruptions)
    ] = None,
    severity: Annotated[list[int] | None, typer.Option(help="Repeatable; 1 to 5 by default.")] = None,
    extra: Annotated[bool, typer.Option("--extra", help="Add the 4 corruptions that ImageNet-C holds out.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
    size: Annotated[int, typer.Option(help="Side of the centre crop.")] = 224,
    resize: Annotated[int, typer.Option(help="Length of the shorter side before the crop.")] = 256,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep the size of every image.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes; half of the cores by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave out what cannot be read.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a tree like that of ImageNet-C. If interrupted, the same command continues from there."""
    out = folder_to_write(out)
    try:
        from navia.data.corrupt_tree import write_corrupted

        with _progress() as progress:
            summary = write_corrupted(
                images, out, corruptions=_select_corruptions(corruption, extra), severities=severity or range(1, 6),
                seed=seed, size=size, resize=resize, as_is=as_is, limit=limit, skip_unreadable=skip_unreadable,
                workers=_half_of_the_cores() if workers is None else workers, progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt as interrupt:
        how_far = str(interrupt) or "nothing was written"
        errors.print(f"navia: interrupted: {how_far}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    _print_summary(summary, out, as_json)


def _select_corruptions(corruptions: list[str] | None, extra: bool) -> list[str]:
    from navia.data.corruptions import CORRUPTIONS, names

    return [*(corruptions or names()), *(CORRUPTIONS["extra"] if extra else ())]


def _half_of_the_cores() -> int:
    return max(1, (os.cpu_count() or 1) // 2)


@contextmanager
def _progress() -> Iterator["Progress"]:
    if not errors.is_terminal:
        yield _LogProgress()
        return
    columns = (TextColumn("files"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("files", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _LogProgress:
    """A line every tenth of the way, for logs."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.tenths = -1

    def __call__(self, done: int, total: int) -> None:
        tenths = done * 10 // total
        if tenths == self.tenths:
            return
        now = time.perf_counter()
        self.tenths = tenths
        self.first = self.first or (now, done)
        began, before = self.first
        left = f", {(now - began) / (done - before) * (total - done):.0f} s left" if before < done < total else ""
        errors.print(f"{done} of {total} files{left}", markup=False, highlight=False)


def _print_summary(summary: "Summary", out: Path, as_json: bool) -> None:
    for _, reason in summary.unreadable:
        errors.print(f"left out: {reason}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    kept = f", {summary.kept} were there already" if summary.kept else ""
    left_out = f", {len(summary.unreadable)} images left out" if summary.unreadable else ""
    console.print(
        f"{summary.written} files written in {summary.seconds:.0f} s{kept}{left_out} -> {out}", markup=False, soft_wrap=True
    )
