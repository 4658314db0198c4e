"""The command line: `navia COMMAND`. Prints results to stdout, problems to stderr; exit code 0 done, 1 refused, 2 misuse."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from navia import __version__
from navia.errors import InputError, NaviaError

if TYPE_CHECKING:
    from navia.vit.vit import ViT

app = typer.Typer(
    name="navia",
    help="Efficient test-time adaptation of Vision Transformers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)

ModelArgument = Annotated[
    str, typer.Option("--model", "-m", help="timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded.")
]
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
    model: Annotated[str, typer.Argument(help="timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded.")],
    reduce: ReduceOption = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="Adaptation method; repeatable.")] = None,
    forwards: Annotated[int | None, typer.Option(help="Forward passes per image, if not the method's own.")] = None,
    prompts: Annotated[int | None, typer.Option(help="Extra tokens, if not the method's own.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also time real forwards and their peak memory.")] = False,
    batch: Annotated[int, typer.Option(help="Batch size for --measure.")] = 8,
    rounds: Annotated[int, typer.Option(help="Timed rounds for --measure.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Count multiply-accumulates, tokens and parameters of a model under token reduction. Needs no weights.

    GMACs: forward passes only, all products, attention included, in 1e9. Paper: the convention of the NAVIA paper's table
    (2^30; without the attention products where nothing is reduced), for comparing with its numbers only.
    """
    from navia.measure.cost import cost as count
    from navia.vit.load import load

    vit = load(model, pretrained=False)
    specs = reduce or ["none", "tome:4", "tome:8", "evit:8", "tofu:8"]
    counted: dict[str, Any] = {"forwards": forwards, "prompts": prompts}
    timed: dict[str, Any] = {"measure": measure, "batch": batch, "rounds": rounds}
    rows = [count(vit, spec, method=name, **counted, **timed) for name in method or ["none"] for spec in specs]
    if as_json:
        _print_json([row.as_dict() for row in rows])
        return
    dense = count(vit, "none", **counted).gmacs
    table = Table(title=f"{vit.name}: {rows[0].parameters / 1e6:.1f} M parameters, per image", title_justify="left")
    for column in ("method", "reduce", "GMACs", "of dense", "paper", "tokens in", "out", "trainable"):
        table.add_column(column, justify="left" if column in ("method", "reduce") else "right")
    if measure:
        table.add_column(f"ms/forward (batch {batch})", justify="right")
        table.add_column("peak MiB", justify="right")
    for row in rows:
        cells = [row.method, row.reduce, f"{row.gmacs:.2f}", f"{row.gmacs / dense:.1%}", f"{row.gmacs_paper:.2f}"]
        cells += [str(row.tokens[0]), str(row.tokens[-1]), f"{row.trainable:,}"]
        if row.timing is not None:
            cells += [f"{row.timing.ms_per_image:.2f} [{row.timing.low:.2f}, {row.timing.high:.2f}]"]
            cells += [f"{row.timing.peak_mib:.0f}"]
        table.add_row(*cells)
    _print_wide(table)


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
    _write(out, drawing.save)
    if as_json:
        described = vit.preprocessing.as_dict()
        _print_json({"out": str(out), "reduce": [str(r) for r in reducers], "preprocessing": described})
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    console.print(f"image, {', '.join(str(r) for r in reducers)} -> {out}", markup=False)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List adaptation methods with their options, and token reducers."""
    from navia.adapt.method import METHODS
    from navia.reduce import REDUCERS

    options = {name: {f.name: f.default for f in dataclasses.fields(METHODS.get(name).Options)} for name in METHODS.names()}
    if as_json:
        _print_json({"methods": options, "reducers": REDUCERS.names()})
        return
    table = Table("method", "what it does", "options and defaults")
    for name, defaults in options.items():
        text = (sys.modules[METHODS.get(name).__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        table.add_row(name, text, ", ".join(f"{key}={value}" for key, value in defaults.items()))
    console.print(table)
    table = Table("reducer", "what it does")
    for name in REDUCERS.names():
        text = (sys.modules[REDUCERS.get(name).__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        table.add_row(name, text)
    console.print(table)


@app.command()
def stats(
    images: Annotated[Path, typer.Argument(help="Folder of clean, unlabelled images (64 are enough).")],
    out: Annotated[Path, typer.Argument(help="Where the statistics go (.safetensors).")],
    model: ModelArgument,
    checkpoint: CheckpointOption = None,
    reduce: Annotated[str, typer.Option("--reduce", "-r", help="The reducer that adaptation will use.")] = "none",
    limit: Annotated[int | None, typer.Option(help="Use at most so many images.")] = None,
    fisher: Annotated[bool, typer.Option("--fisher", help="Also measure what EATA needs.")] = False,
    crop_only: Annotated[bool, typer.Option("--crop-only", help="The images are already resized.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the source statistics that align, navia, foa and foa_bp need."""
    from navia.adapt.statistics import SourceStatistics

    vit = _load(model, checkpoint, crop_only)
    source = SourceStatistics.measure(vit, images, reduce, limit=limit, fisher=fisher)
    _write(out, source.save)
    if as_json:
        _print_json(dataclasses.asdict(source.provenance))
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    console.print(f"{source.provenance.count} images, reducer {source.provenance.reduce} -> {out}", markup=False)


@app.command()
def choose(
    images: Annotated[Path, typer.Argument(help="Folder of target images; labels are never read.")],
    source: Annotated[Path, typer.Option(help="Source statistics from `navia stats`.")],
    model: ModelArgument,
    checkpoint: CheckpointOption = None,
    reduce: Annotated[str, typer.Option("--reduce", "-r", help="As for the statistics.")] = "none",
    batches: Annotated[int, typer.Option(help="How many batches to try each setting on.")] = 8,
    batch: Annotated[int, typer.Option(help="Batch size.")] = 64,
    crop_only: Annotated[bool, typer.Option("--crop-only", help="The images are already resized.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose NAVIA's layers and learning rates by its loss on unlabelled target images."""
    from navia.adapt.choose import choose as pick
    from navia.adapt.statistics import SourceStatistics

    vit = _load(model, checkpoint, crop_only)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("settings", total=None)
        choice = pick(
            vit, images, SourceStatistics.load(source), reduce=reduce, batches=batches, batch=batch,
            progress=lambda done, of: progress.update(task, completed=done, total=of),
        )  # fmt: skip
    if as_json:
        _print_json(dataclasses.asdict(choice))
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    table = Table(*choice.table[0][0], "Eq. 7 over the last half")
    for options, score in sorted(choice.table, key=lambda row: row[1]):
        table.add_row(*(f"{value:g}" for value in options.values()), f"{score:.4f}")
    console.print(table)
    cost_line = f"{choice.steps} steps on {choice.images} images, {choice.seconds:.0f} s"
    console.print(f"chosen: {', '.join(f'{k}={v:g}' for k, v in choice.options.items())} ({cost_line})", markup=False)


@app.command()
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
        _print_json(rows)
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


def _print_wide(table: Table) -> None:
    """In full, even where the terminal is narrower: a number or reducer cut short would mislead."""
    width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(width, console.width)).print(table)


def _write(out: Path, save: Callable[[Path], None]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save(out)
    except NaviaError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(out)!r}: {error}") from error


def _load(model: str, checkpoint: Path | None, crop_only: bool) -> "ViT":
    from navia.vit.load import load

    vit = load(model, checkpoint=checkpoint)
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


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
