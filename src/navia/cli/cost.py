"""`navia cost`: count multiply-accumulates, tokens and parameters."""

import functools
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
    measure: Annotated[bool, typer.Option("--measure", help="Also measure time and peak memory of real forwards.")] = False,
    rounds: Annotated[int, typer.Option(help="Timed rounds of --measure.")] = 5,
    batch_size: options.BatchSize = 8, device: options.Device = "auto", plugins: options.Plugins = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Count multiply-accumulates, tokens and parameters of a model with token reduction; needs no weights.

    GMACs are forward passes only, all products, attention included, in 1e9. The column "paper" follows the convention of
    the NAVIA paper's table (2^30; without the attention products where nothing is reduced), to compare with its numbers.
    """
    from navia.models.device import find_device

    vit = navia.load(model, pretrained=False)
    if measure:
        vit = vit.to(find_device(device))
    specs = reduce or ["none", "tome:4", "tome:8", "evit:8", "tofu:8"]
    count = functools.partial(navia.cost, vit, forwards=forwards, prompts=prompts)
    timed = functools.partial(count, measure=measure, batch_size=batch_size, rounds=rounds)
    settings = {name: method_options(name, opt) for name in method or ["none"]}
    rows = [timed(spec, method=name, options=given) for name, given in settings.items() for spec in specs]
    dense = count("none").gmacs
    measured = f"; time and memory on {vit.device}" if measure else ""
    title = Text(f"{vit.name}: {rows[0].parameters / 1e6:.1f} M parameters, per image{measured}")
    table = Table("method", "reduce", title=title, title_justify="left")
    timing = (f"ms/image (batch {batch_size})", "peak MiB") if measure else ()
    for column in ("GMACs", "of dense", "paper", "tokens in", "out", "trainable", *timing):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [row.method, row.reduce, f"{row.gmacs:.2f}", f"{row.gmacs / dense:.1%}", f"{row.gmacs_paper:.2f}"]
        cells += [str(row.tokens[0]), str(row.tokens[-1]), f"{row.trainable:,}"]
        if took := row.timing:
            cells += [f"{took.ms_per_image:.2f} [{took.low:.2f}, {took.high:.2f}]", f"{took.peak_mib:.0f}"]
        table.add_row(*map(Text, cells))
    print_result(as_json, [row.as_dict() for row in rows], table)
