"""`navia cost`: Count multiply-accumulates, tokens and parameters."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from navia.cli import completion
from navia.cli.terminal import (
    MODEL_HELP,
    ImportOption,
    JsonOption,
    ReduceOptions,
    parse_options,
    print_json,
    print_wide,
)


def cost(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=completion.models)],
    reduce: ReduceOptions = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Adaptation method; repeatable.", autocompletion=completion.methods),
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Of the method, key=value; repeatable.")] = None,
    forwards: Annotated[int | None, typer.Option(help="Forward passes per image, if not the method's own.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Extra tokens, if not the method's own.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also time real forwards and their peak memory.")] = False,
    batch: Annotated[int, typer.Option(help="Batch size for --measure.")] = 8,
    rounds: Annotated[int, typer.Option(help="Timed rounds for --measure.")] = 5,
    device: Annotated[str, typer.Option(help="For --measure: cpu, cuda, ...; auto: a GPU where there is one.")] = "auto",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count multiply-accumulates, tokens and parameters of a model under token reduction. Needs no weights.

    GMACs: forward passes only, all products, attention included, in 1e9. Paper: the convention of the NAVIA paper's table
    (2^30; without the attention products where nothing is reduced), for comparing with its numbers only.
    """
    from navia.evaluation.cost import cost as count
    from navia.models.device import find_device
    from navia.models.load import load

    vit = load(model, pretrained=False)
    if measure:
        vit = vit.to(find_device(device))
    specs = reduce or ["none", "tome:4", "tome:8", "evit:8", "tofu:8"]
    options = parse_options(option)
    counted: dict[str, Any] = {"forwards": forwards, "prompts": prompts}
    timed: dict[str, Any] = {"measure": measure, "batch_size": batch, "rounds": rounds}
    names = method or ["none"]
    rows = [count(vit, spec, method=name, options=options, **counted, **timed) for name in names for spec in specs]
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    dense = count(vit, "none", **counted).gmacs
    measured = f"; time and memory on {vit.device}" if measure else ""
    title = Text(f"{vit.name}: {rows[0].parameters / 1e6:.1f} M parameters, per image{measured}")
    table = Table(title=title, title_justify="left")
    for column in ("method", "reduce", "GMACs", "of dense", "paper", "tokens in", "out", "trainable"):
        table.add_column(column, justify="left" if column in ("method", "reduce") else "right")
    if measure:
        table.add_column(f"ms/image (batch {batch})", justify="right")
        table.add_column("peak MiB", justify="right")
    for row in rows:
        cells = [row.method, row.reduce, f"{row.gmacs:.2f}", f"{row.gmacs / dense:.1%}", f"{row.gmacs_paper:.2f}"]
        cells += [str(row.tokens[0]), str(row.tokens[-1]), f"{row.trainable:,}"]
        if row.timing is not None:
            cells += [f"{row.timing.ms_per_image:.2f} [{row.timing.low:.2f}, {row.timing.high:.2f}]"]
            cells += [f"{row.timing.peak_mib:.0f}"]
        table.add_row(*map(Text, cells))
    print_wide(table)
