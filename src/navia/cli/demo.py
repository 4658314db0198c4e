"""`navia demo`: the whole story on the embedded model, or on the user's own."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import (
    console,
    errors,
    file_to_write,
    load_model,
    print_json,
    print_wide,
)
from navia.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from navia.bench.demo import Row
    from navia.data.sources import Domain, ImageSource, OpenedData
    from navia.models.base import ViT

SHIFTS = ("gaussian_noise", "contrast", "brightness")  # those that need numpy alone


def demo(
    model: options.Model = "embedded",
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    data: Annotated[str, options.option("--data", options.IMAGES, "Your own clean images in class folders.")] = "embedded",
    corruption: options.Corruptions = None,
    severity: options.Severity = 2,
    reduce: options.Reduce = "tome:24",
    limit: options.Limit = 512,
    batch_size: options.BatchSize = 16,
    seed: options.Seed = 0,
    out: options.Out = Path("navia-demo.html"),
    crop_only: options.CropOnly = False,
    device: options.Device = "auto",
    plugins: options.Plugins = None,
    as_json: options.Json = False,
) -> None:
    """Show what a shift does to a model, what adaptation gives back, and what merging tokens costs. Needs no network.

    Every number is computed here and now. With --model and --data the same story is told on your own ViT:

        navia demo --model timm:deit_tiny_patch16_224 --data imagenet/val -r tome:8 --severity 5 -b 64
    """
    from navia.bench.demo import PLAIN, run_demo
    from navia.report.files import save_text

    out = file_to_write(out, "navia-demo.html")
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    source, opened = _pictures(data, vit)
    clean, classes = opened.domains[0].images, opened.classes
    domains = _shifts(clean, corruption or SHIFTS, severity)
    shown = min(limit, len(clean))
    steps = len(domains) * len(PLAIN) * -(-shown // batch_size)
    rows: list[Row] = []
    started = time.perf_counter()
    progress = Progress(TextColumn("adapting"), BarColumn(), TimeRemainingColumn(), console=errors)
    task = progress.add_task("", total=steps)
    if not as_json:
        console.print(_opening(vit, len(domains), shown, severity))
    live = Live(console=errors, transient=True, refresh_per_second=4) if errors.is_terminal and not as_json else None
    if live:
        live.start()
    try:
        advance = {"on_batch": lambda: progress.advance(task)}
        for rows in run_demo(
            vit, source, domains, reduce, classes=classes, images=limit, batch=batch_size, seed=seed, **advance
        ):
            if live:
                live.update(Group(_table(rows, domains), progress))
    finally:
        if live:
            live.stop()
    seconds = time.perf_counter() - started
    page = _page(vit, rows, domains, opened, shown, batch_size, seed, _next_steps(model, data))
    save_text(out, page)
    if as_json:
        print_json([_as_dict(row, domains) for row in rows])
        return
    print_wide(_table(rows, domains))
    for line in _closing(rows, domains, shown):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{seconds:.0f} s. Pictures, plots and the protocol: {out}", markup=False, highlight=False, soft_wrap=True)
    for sentence, command in _next_steps(model, data):
        console.print(f"{sentence}\n    {command}", markup=False, highlight=False, soft_wrap=True)


def _pictures(images: str, vit: "ViT") -> "tuple[Tensor, OpenedData]":
    """Clean source images as a tensor, and the labelled rest that the shifts are made from."""
    from navia.data.sources import leave_out_source, open_domains
    from navia.models.labels import class_names

    opened = open_domains(images, vit.num_classes, class_names(vit))
    if len(opened.domains) > 1 or opened.domains[0].images.labels is None:
        raise InputError(f"the demo needs clean images in class folders, and {images!r} is {opened.kind!r}")
    opened, clean = leave_out_source(opened)
    return clean.tensors(range(len(clean.images)), vit.preprocessing), opened


def _shifts(clean: "ImageSource", corruptions: Sequence[str], severity: int) -> "list[Domain]":
    from navia.data.sources import corrupted

    return corrupted(clean, corruptions, severity)


def _opening(vit: "ViT", shifts: int, images: int, severity: int) -> Text:
    """The model's name may be that of a folder: no markup."""
    tokens = vit.grid[0] * vit.grid[1] + vit.num_prefix_tokens
    story = f"It knows clean pictures and meets {shifts} shifts of severity {severity}, {images} images each."
    return Text(f"{vit.name}: {vit.depth} blocks, {tokens} tokens. {story}")


def _table(rows: "Sequence[Row]", domains: "Sequence[Domain]") -> Table:
    from navia.report.words import readable

    table = Table("method", "reduce")
    for column in (*(readable(domain.name) for domain in domains), "mean", "MMACs/image", "ms/image"):
        table.add_column(Text(column), justify="right")
    for row in rows:
        cells = [f"{100 * row.top1(d.name):.1f} %" if d.name in row.right else "..." for d in domains]
        whole = len(row.right) == len(domains)
        mean, pace = (f"{100 * row.mean:.1f} %", f"{row.ms_per_image:.1f}") if whole else ("", "")
        table.add_row(row.method, Text(row.reduce), *cells, mean, f"{1000 * row.gmacs:.0f}", pace)
    return table


def _closing(rows: "Sequence[Row]", domains: "Sequence[Domain]", images: int) -> list[str]:
    """What can be said of the numbers, with their spread."""
    from navia.bench.demo import paired

    none, _, _, align, navia = rows
    low, high = none.interval(domains[0].name)
    lines = ["Top-1 accuracy, each answer given before the model adapted to it;"]
    lines[0] += f" {images} images per shift leave about ±{50 * (high - low):.1f} points per cell."
    for one, other, text in ((navia, none, "no adaptation"), (navia, align, f"align + {align.reduce}")):
        gap = paired(one, other)
        spread = f"{gap.points:+.1f} points [{gap.low:+.1f}, {gap.high:+.1f}]"
        lines.append(f"navia + {one.reduce} against {text} on the same images: {spread}.")
    return lines + [f"guard: {row.method} + {row.reduce}, {event}" for row in rows for event in row.guard]


def _next_steps(model: str, images: str) -> list[tuple[str, str]]:
    if images != "embedded":
        command = (
            f"navia run FOLDER --model {model} --source {images} --method navia --reduce tome:8 --save delta.safetensors"
        )
        return [("Adapt on a real stream and keep the result:", command)]
    own = "--model timm:vit_base_patch16_224"
    return [
        (
            "The same on your own model and clean images in class folders:",
            f"navia demo {own} --data FOLDER --reduce tome:8 --severity 5 -b 64",
        ),
        (
            "Adapt on a folder of images from the field:",
            f"navia run FIELD {own} --source CLEAN --method navia --reduce tome:8",
        ),
    ]


def _page(
    vit: "ViT", rows: "Sequence[Row]", domains: "Sequence[Domain]", opened: "OpenedData",
    images: int, batch: int, seed: int, next_steps: Sequence[tuple[str, str]],
) -> str:  # fmt: skip
    from navia.report.demo_page import demo_page
    from navia.report.demo_story import demo_story

    names, classes = opened.names, opened.classes
    names = names if names is None or classes is None else tuple(names[i] for i in classes)
    story = {"images": images, "batch": batch, "seed": seed, "names": names, "next_steps": next_steps}
    return demo_page(demo_story(vit, rows, domains, **story))  # type: ignore[arg-type]


def _as_dict(row: "Row", domains: "Sequence[Domain]") -> dict[str, Any]:
    return {
        "method": row.method,
        "reduce": row.reduce,
        "top1": {d.name: row.top1(d.name) for d in domains},
        "interval": {d.name: row.interval(d.name) for d in domains},
        "mean": row.mean,
        "gmacs": row.gmacs,
        "ms_per_image": row.ms_per_image,
        "guard": row.guard,
    }
