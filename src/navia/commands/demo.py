"""`navia demo`: The demonstration."""

from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from navia.commands.terminal import JsonOption, console, errors, print_json


def demo(
    reduce: Annotated[str, typer.Option("--reduce", "-r", help="Token reducer of the merged rows.")] = "tome:2",
    as_json: JsonOption = False,
) -> None:
    """Adapt the embedded model to two shifts of the embedded images, and compare methods. Needs no network."""
    from navia.bench.demo import RUNS, run_demo

    rows: list[dict[str, Any]] = []
    hidden = as_json or not errors.is_terminal
    with Progress(console=errors, transient=True, disable=hidden) as progress:
        task = progress.add_task("adapting", total=len(RUNS))
        for row in run_demo(reduce):
            rows.append(row)
            progress.advance(task)
    if as_json:
        print_json(rows)
        return
    console.print("A small ViT (12 blocks, 50 tokens) that knows clean clothing pictures (82.5 %) meets shifted ones.")
    domains = list(rows[0]["top1"])
    table = Table("method", "reduce")
    for column in (*domains, "MMACs/image", "ms/image"):
        table.add_column(column, justify="right")
    for row in rows:
        shown = [f"{100 * row['top1'][d]:.1f} %" for d in domains]
        table.add_row(row["method"], row["reduce"], *shown, f"{1000 * row['gmacs']:.0f}", f"{row['ms_per_image']:.2f}")
    console.print(table)
    console.print("192 images per shift, batches of 32: one standard error is about 3.5 points.")
    console.print("Next: navia stats, then ten lines of Python (see the README) on your own model and images.")
