"""The command line: `navia COMMAND`. Prints results to stdout, problems to stderr; exit code 0 done, 1 refused, 2 misuse."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from navia import __version__
from navia.errors import NaviaError

app = typer.Typer(
    name="navia",
    help="Efficient test-time adaptation of Vision Transformers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

ModelArgument = Annotated[str, typer.Option("--model", "-m", help="timm:NAME, hf:ORG/NAME, hf:FOLDER or torchvision:NAME.")]
CheckpointOption = Annotated[Path | None, typer.Option(help="Local weights (.safetensors or .pth); nothing is downloaded.")]
ReduceOption = Annotated[
    list[str] | None,
    typer.Option("--reduce", "-r", help="none, tome:8, evit:8, tofu:8, tome:8,-1, tome:[8,4]; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(asked: bool) -> None:
    if asked:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Efficient test-time adaptation of Vision Transformers."""


@app.command()
def cost(
    model: Annotated[str, typer.Argument(help="timm:NAME, hf:ORG/NAME, hf:FOLDER or torchvision:NAME.")],
    reduce: ReduceOption = None,
    forwards: Annotated[int, typer.Option(help="Forward passes per image (FOA: 28).")] = 1,
    prompts: Annotated[int, typer.Option(help="Extra prompt tokens (FOA: 3).")] = 0,
    measure: Annotated[bool, typer.Option("--measure", help="Also time real forwards and their peak memory.")] = False,
    batch: Annotated[int, typer.Option(help="Batch size for --measure.")] = 8,
    rounds: Annotated[int, typer.Option(help="Timed rounds for --measure.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Count multiply-accumulates, tokens and parameters of a model under token reduction. Needs no weights.

    GMACs: all products, attention included, in 1e9. Paper: the convention of the NAVIA paper's table (2^30; without
    the attention products where nothing is reduced), for comparing with its numbers only.
    """
    from navia.measure.cost import cost as count
    from navia.vit.load import load

    vit = load(model, pretrained=False)
    options: dict[str, Any] = {
        "forwards": forwards,
        "prompts": prompts,
        "measure": measure,
        "batch": batch,
        "rounds": rounds,
    }
    rows = [count(vit, spec, **options) for spec in reduce or ["none", "tome:4", "tome:8", "evit:8", "tofu:8"]]
    if as_json:
        _print_json([row.as_dict() for row in rows])
        return
    table = Table(title=f"{vit.name}: {rows[0].parameters / 1e6:.1f} M parameters", title_justify="left")
    for column in ("reduce", "GMACs", "of dense", "paper", "tokens in", "tokens out"):
        table.add_column(column, justify="left" if column == "reduce" else "right")
    if measure:
        table.add_column(f"ms/image (batch {batch})", justify="right")
        table.add_column("peak MiB", justify="right")
    dense = count(vit, "none", forwards=forwards, prompts=prompts).gmacs
    for row in rows:
        cells = [row.reduce, f"{row.gmacs:.2f}", f"{row.gmacs / dense:.1%}", f"{row.gmacs_paper:.2f}"]
        cells += [str(row.tokens[0]), str(row.tokens[-1])]
        if row.timing is not None:
            spread = f"{row.timing.ms_per_image:.2f} [{row.timing.low:.2f}, {row.timing.high:.2f}]"
            cells += [spread, f"{row.timing.peak_mib:.0f}"]
        table.add_row(*cells)
    console.print(table)


@app.command()
def tokens(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    model: ModelArgument = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k",
    checkpoint: CheckpointOption = None,
    reduce: ReduceOption = None,
    out: Annotated[Path, typer.Option(help="Where the drawing goes.")] = Path("tokens.png"),
    scale: Annotated[int, typer.Option(help="Enlargement of the drawing.", min=1, max=8)] = 2,
    as_json: JsonOption = False,
) -> None:
    """Draw a picture beside the groups that its patches were merged into (grey: dropped)."""
    from navia.images.folder import open_image
    from navia.reduce import parse
    from navia.report.groups import draw
    from navia.vit.load import load

    reducers = [parse(spec) for spec in reduce or ["tome:8"]]
    picture = open_image(image)
    vit = load(model, checkpoint=checkpoint)
    drawing = draw(vit, picture, reducers, scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawing.save(out)
    if as_json:
        described = vit.preprocessing.as_dict()
        _print_json({"out": str(out), "reduce": [str(r) for r in reducers], "preprocessing": described})
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    console.print(f"image, {', '.join(str(r) for r in reducers)} -> {out}", markup=False)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the token reducers."""
    from navia.reduce import REDUCERS

    found = {name: (REDUCERS.get(name).__doc__ or "").strip().splitlines()[0] for name in REDUCERS.names()}
    if as_json:
        _print_json({"reducers": sorted(found)})
        return
    table = Table("reducer", "what it does")
    for name, text in found.items():
        table.add_row(name, text)
    console.print(table)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def main() -> None:
    try:
        app()
    except NaviaError as error:
        errors.print(f"navia: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("navia: interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
