"""`navia corrupt`: write corrupted copies of clean images."""

import os
from pathlib import Path
from typing import Annotated

import typer

from navia.cli import options
from navia.cli.options import IMAGES, option
from navia.cli.terminal import errors, folder_to_write, print_line, print_result, progress


def corrupt(
    images: Annotated[Path, typer.Argument(metavar="DATA", help="Folder of clean images.")],
    out: options.Out, corruption: options.Corruptions = None,
    severity: Annotated[list[int] | None, option("--severity", IMAGES, "1 to 5; repeatable, all by default.")] = None,
    extra: Annotated[bool, option("--extra", IMAGES, "Add the 4 extra corruptions of ImageNet-C.")] = False,
    seed: options.Seed = 0,
    size: Annotated[int, option("--size", IMAGES, "Size of the centre crop.")] = 224,
    resize: Annotated[int, option("--resize", IMAGES, "Length of the shorter side before the crop.")] = 256,
    as_is: Annotated[bool, option("--as-is", IMAGES, "Keep the size of every image.")] = False,
    limit: options.LimitOrNone = None, skip_unreadable: options.SkipUnreadable = False,
    workers: options.WorkersOrNone = None, as_json: options.Json = False,
) -> None:  # fmt: skip
    """Write corrupted copies of clean images to OUT/corruption/severity/, as in ImageNet-C; all 15 corruptions by default.

    When it is stopped, the same command continues.
    """
    out = folder_to_write(out)
    try:
        from navia.data.corrupt_tree import write_corrupted
        from navia.data.corruptions import CORRUPTIONS, names

        with progress("files") as show:
            summary = write_corrupted(
                images, out, corruptions=[*(corruption or names()), *(CORRUPTIONS["extra"] if extra else ())],
                severities=severity or range(1, 6), seed=seed, size=size, resize=resize, as_is=as_is, limit=limit,
                skip_unreadable=skip_unreadable, progress=show,
                workers=max(1, (os.cpu_count() or 1) // 2) if workers is None else workers,
            )  # fmt: skip
    except KeyboardInterrupt as interrupt:
        print_line(f"navia: interrupted: {str(interrupt) or 'nothing was written'}", errors)
        raise typer.Exit(130) from None
    for _, reason in summary.unreadable:
        print_line(f"left out: {reason}", errors)
    kept = f", {summary.kept} were there already" if summary.kept else ""
    left_out = f", {len(summary.unreadable)} images left out" if summary.unreadable else ""
    print_result(as_json, summary, f"{summary.written} files written in {summary.seconds:.0f} s{kept}{left_out} -> {out}")
