"""`navia cost`: count multiply-accumulates, tokens and parameters."""

import dataclasses
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import navia
from navia.cli import options
from navia.cli.terminal import method_options, print_result


def cost(
    model: options.Model,
    reduce: options.Reducers = None, method: options.Methods = None, opt: options.Opt = None,
    forwards: Annotated[int | None, typer.Option(help="Forward passes per image, instead of the method's.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Extra tokens, instead of the method's.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure time and peak memory of a whole step.")] = False,
    rounds: Annotated[int, typer.Option(help="Timed rounds of --measure.", min=1)] = 5,
    batch_size: options.BatchSize = 8, device: options.Device = "auto", plugins: options.Plugins = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Count multiply-accumulates, tokens and parameters of a model with token reduction; needs no weights.

    GMACs are forward passes only, all products, attention included, in 1e9. The column "paper" follows the convention of
    the NAVIA paper's table (2^30; without the attention products where nothing is reduced), to compare with its numbers.

    --measure times the whole step of the method (prediction, backward pass, update) on random images: median and quartiles.
    "of dense step" compares it with the same method without reduction: the paper says below 80 % for navia with tome:8.

        navia cost -m timm:vit_base_patch16_224 --method navia -r tome:8 --measure -b 64 --device cuda
    """
    from navia.evaluation.latency import measure_steps
    from navia.models.device import find_device, keep_freed_memory
    from navia.reduction import parse

    vit = navia.load(model, pretrained=False)
    if measure:
        keep_freed_memory()
        vit = vit.to(find_device(device))
    specs = reduce or ["none", "tome:4", "tome:8", "evit:8", "tofu:8"]
    settings = {name: method_options(name, opt) for name in method or ["none"]}
    runs = [(name, given, parse(spec)) for name, given in settings.items() for spec in specs]
    rows = [
        navia.cost(vit, reducer, method=name, options=given, forwards=forwards, prompts=prompts)
        for name, given, reducer in runs
    ]
    if measure:
        timings = measure_steps(vit, runs, batch_size, rounds)
        rows = [dataclasses.replace(row, timing=timing) for row, timing in zip(rows, timings, strict=True)]
    dense = navia.cost(vit, "none", forwards=forwards, prompts=prompts).gmacs
    measured = f"; time and memory on {vit.device}" if measure else ""
    title = Text(f"{vit.name}: {rows[0].parameters / 1e6:.1f} M parameters, per image{measured}")
    table = Table("method", "reduce", title=title, title_justify="left")
    timing = (f"ms/image (batch {batch_size})", "of dense forward", "of dense step", "peak MiB") if measure else ()
    for column in ("GMACs", "of dense", "paper", "tokens in", "out", "trainable", *timing):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [row.method, row.reduce, f"{row.gmacs:.2f}", f"{row.gmacs / dense:.1%}", f"{row.gmacs_paper:.2f}"]
        cells += [str(row.tokens[0]), str(row.tokens[-1]), f"{row.trainable:,}"]
        if took := row.timing:
            cells += [f"{took.ms_per_image:.2f} [{took.low:.2f}, {took.high:.2f}]"]
            cells += [f"{took.of_dense_forward:.1%}", f"{took.of_dense_step:.1%}", f"{took.peak_mib:.0f}"]
        table.add_row(*map(Text, cells))
    forwards_only = [
        f"{row.method} + {row.reduce}" for row in rows if row.timing and row.trainable and not row.timing.updated
    ]
    notes = [f"no update was made, so its time is not in the step: {', '.join(forwards_only)}"] if forwards_only else []
    print_result(as_json, [row.as_dict() for row in rows], table, *notes)
