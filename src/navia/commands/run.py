"""`navia run`: adapt on a folder of images and write down every answer."""

import collections
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from navia import __version__
from navia.commands import completion
from navia.commands.terminal import (
    CheckpointOption,
    CropOnlyOption,
    DeviceOption,
    JsonOption,
    LeanOption,
    MethodOption,
    ModelOption,
    PrecisionOption,
    ReduceOption,
    console,
    errors,
    load_model,
    parse_options,
    print_json,
    source_statistics,
    write,
)
from navia.errors import InputError, SpecError

if TYPE_CHECKING:
    from navia.adapt.adapter import Adapter
    from navia.adapt.statistics import SourceStatistics
    from navia.bench.predictions import Predictions, Score
    from navia.callbacks import Callbacks
    from navia.images.loader import Batch, Loader
    from navia.images.open import Opened
    from navia.vit.vit import ViT


def run(
    images: Annotated[
        str, typer.Argument(help="Folder of images (any layout that `navia doctor` knows), embedded, or datasets:NAME.")
    ],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    method: MethodOption = "navia",
    reduce: ReduceOption = "none",
    source: Annotated[Path | None, typer.Option(help="Clean images (folder), or statistics from `navia stats`.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Of the method, key=value; repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Where the answers go (CSV).")] = Path("predictions.csv"),
    save: Annotated[Path | None, typer.Option(help="Also save what was adapted (.safetensors).")] = None,
    batch: Annotated[int, typer.Option(help="Images per step.", min=1)] = 64,
    stream: Annotated[
        str, typer.Option(help="reset (anew for each part), continual, or mixed.", autocompletion=completion.streams)
    ] = "reset",
    order: Annotated[str, typer.Option(help="auto (by name; random in class folders), names, or a seed.")] = "auto",
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="Corrupt the images on the way, e.g. fog; repeatable.", autocompletion=completion.corruptions),
    ] = None,
    severity: Annotated[int, typer.Option(help="Of the corruption.", min=1, max=5)] = 5,
    label_shift: Annotated[float | None, typer.Option(help="Classes in bursts: Dirichlet concentration, e.g. 0.1.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images of each part.", min=1)] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode images.", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Watch the folder and answer pictures as they arrive.")] = False,
    wait: Annotated[float, typer.Option(help="With --follow: seconds a picture may wait for its batch.")] = 2.0,
    idle: Annotated[float | None, typer.Option(help="With --follow: stop after so many quiet seconds.")] = None,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave out broken images.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start anew even if --out exists.")] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also to tensorboard:DIR, wandb:PROJECT or mlflow:URI; repeatable.", autocompletion=completion.logs
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between saved states: what a kill may cost.", min=0)] = 30.0,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    keep_reduction: Annotated[
        bool, typer.Option("--keep-reduction", help="Reduce even where it costs more time than it saves.")
    ] = False,
    lean: LeanOption = False,
    precision: PrecisionOption = "float32",
    as_json: JsonOption = False,
) -> None:
    """Adapt on a stream of images and write every answer, given before the model adapted to it.

    Stop it with Ctrl-C and start it again with the same arguments: it goes on where it was, and the result is the same.

        navia run field/ --model timm:vit_base_patch16_224 --source clean/ --reduce tome:8

    Under torchrun (torchrun --nproc-per-node 4 --no-python navia run ...) each process takes its share of every batch.
    """
    from navia.adapt.adapter import adapt
    from navia.bench.predictions import Predictions, settings_of
    from navia.bench.together import agree, join, leave, run_together
    from navia.callbacks import Callbacks, named
    from navia.vit.labels import class_names

    rank = join()
    callbacks = Callbacks(named(text) for text in (log or ()) if not rank)
    if rank is not None and follow:
        raise SpecError("--follow runs in one process: start it without torchrun")
    vit = load_model(model, checkpoint, crop_only, device, lean, precision)
    names = class_names(vit)
    opened = None if follow else _open(images, vit, names, corruption, severity)
    asked, before = reduce, {} if restart else settings_of(out)
    if before.get("reduce asked", before.get("reduce")) == asked:  # this run goes on, with what it began with
        reduce = before["reduce"]
    elif rank is None and not keep_reduction:
        reduce = _reduction_that_pays(vit, reduce, batch, source)
    statistics = source_statistics(vit, source, reduce)
    options = parse_options(option)
    adapter = adapt(
        vit, method, reduce, statistics, classes=opened.classes if opened else None, distributed=rank is not None, **options
    )
    shown = [names[i] for i in opened.classes] if names and opened and opened.classes else names
    loader = (
        None if opened is None else _loader(opened, vit, stream, order, label_shift, limit, batch, workers, skip_unreadable)
    )
    what: dict[str, Any] = {"method": method, "options": options, "reduce": reduce, "batch": batch, "images": images}
    what |= {"stream": stream, "order": order, "limit": limit, "label shift": label_shift, "follow": follow}
    what |= {} if reduce == asked else {"reduce asked": asked}
    what |= {} if precision == "float32" else {"precision": precision}
    what |= {"corruption": corruption, "severity": severity if corruption else None}
    settings = {**what, **_fingerprint(vit, statistics, loader)}
    if rank and loader is not None:  # the first process writes; the others take part
        loader.start = agree(adapter, 0)
        collections.deque(run_together(adapter, loader), maxlen=0)
        leave()
        return
    with Predictions(out, settings, shown, every).begin(adapter, restart) as predictions:
        if loader is None:
            batches: Iterable[Batch] = _arriving(Path(images), vit, predictions, batch, wait, idle)
        else:
            loader.start = predictions.progress.batches if rank is None else agree(adapter, predictions.progress.batches)
            batches = loader
        callbacks.start(adapter)
        try:
            _answer(adapter, predictions, batches, loader, callbacks)
        except KeyboardInterrupt:
            done = predictions.progress.batches
            errors.print(f"navia: interrupted after {done} batches, kept in {out}; the same command goes on", markup=False)
            raise
        finally:
            callbacks.finish()
        scores = predictions.finish()
        leave()
    if save:
        write(save, adapter.save)
    if as_json:
        described = {key or "all": dataclasses.asdict(score) for key, score in scores.items()}
        print_json({"out": str(out), "scores": described, **dataclasses.asdict(predictions.progress)})
        return
    _print_summary(vit, predictions, scores, out, save)


def _reduction_that_pays(vit: "ViT", reduce: str, batch: int, source: Path | None) -> str:
    """`reduce`, unless a small batch is answered sooner without it; said on the terminal."""
    from navia.measure.pays import reducer_that_pays

    if source is not None and source.is_file():  # its statistics were measured with the reducer
        return reduce
    chosen, measured = reducer_that_pays(vit, reduce, batch)
    if measured is not None and not measured:
        errors.print(f"navia: {measured}, so it is left out; --keep-reduction insists", markup=False)
        return str(chosen)
    return reduce


def _open(images: str, vit: "ViT", names: Any, corruption: list[str] | None, severity: int) -> "Opened":
    from navia.images.open import open_domains

    return open_domains(images, vit.num_classes, names, corruptions=corruption or (), severity=severity)


def _loader(
    opened: "Opened", vit: "ViT", stream: str, order: str, label_shift: float | None, limit: int | None,
    batch: int, workers: int | None, skip_unreadable: bool,
) -> "Loader":  # fmt: skip
    from navia.images.loader import Loader
    from navia.images.streams import make_stream

    if order not in ("auto", "names") and not order.isdecimal():
        raise SpecError(f"--order is auto, names or a number, not {order!r}")
    sorted_by_class = opened.domains[0].collection.labels is not None
    seed = (0 if sorted_by_class else None) if order == "auto" else None if order == "names" else int(order)
    made = make_stream(opened.domains, stream, seed=seed, limit=limit, concentration=label_shift)
    workers = min(4, (os.cpu_count() or 2) // 2) if workers is None else workers
    return Loader(made, vit.preprocessing, batch, workers, skip_unreadable=skip_unreadable)


def _fingerprint(vit: "ViT", statistics: "SourceStatistics | None", loader: "Loader | None") -> dict[str, Any]:
    """What must be the same for a stopped run to go on: weights, preprocessing, statistics, pictures and their order."""
    from navia.adapt.parameters import fingerprint

    pictures = hashlib.sha256()
    for stretch in loader.stream.stretches if loader else ():
        pictures.update(stretch.name.encode())
        for domain, position in stretch.shots:
            pictures.update(loader.stream.domains[domain].collection.name(position).encode())  # type: ignore[union-attr]
    source = hashlib.sha256(statistics.mean.cpu().numpy().tobytes()).hexdigest()[:16] if statistics else None
    return {
        "model": vit.name,
        "weights": fingerprint(vit)[:16],
        "preprocessing": json.loads(json.dumps(vit.preprocessing.as_dict())),
        "source statistics": source,
        "source images": statistics.provenance.count if statistics else None,
        "pictures": pictures.hexdigest()[:16] if loader else None,
        "version": __version__,
    }


def _arriving(
    root: Path, vit: "ViT", predictions: "Predictions", batch: int, wait: float, idle: float | None
) -> "Iterator[Batch]":
    """Batches of pictures as they come; broken ones are listed and left out, for nobody is there to mend them."""
    from navia.images.domain import Domain
    from navia.images.folder import Folder
    from navia.images.loader import Loader
    from navia.images.streams import make_stream
    from navia.images.watch import arrivals

    if not root.is_dir():
        raise InputError(f"no folder {str(root)!r}")
    known = [*predictions.names(), *(name for name, _ in predictions.progress.unreadable)]
    number = predictions.progress.batches
    for paths in arrivals(root, known, batch, wait=wait, idle=idle):
        stream = make_stream([Domain("arrived", Folder(root, tuple(paths), None))], "continual", seed=None)
        loader = Loader(stream, vit.preprocessing, batch, skip_unreadable=True)
        for loaded in loader:
            yield dataclasses.replace(loaded, number=number, reset=False)
            number += 1
        predictions.progress.unreadable += loader.unreadable


def _answer(
    adapter: "Adapter",
    predictions: "Predictions",
    batches: "Iterable[Batch]",
    loader: "Loader | None",
    callbacks: "Callbacks",
) -> None:
    from navia.bench.run import run as alone
    from navia.bench.together import run_together

    answers = run_together if adapter.method.world.distributed else alone
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    before = list(predictions.progress.unreadable)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        total = None if loader is None else len(loader.plan)
        task = progress.add_task("batches", total=total, completed=predictions.progress.batches)
        for answered in answers(adapter, batches):
            if loader is not None:
                predictions.progress.unreadable = [*before, *loader.unreadable]
            predictions.add(answered)
            # the place in the stream: the adapter's own count starts anew at every reset
            callbacks.step(dataclasses.replace(answered.step, number=answered.batch.number + 1))
            note = f" [yellow]{answered.step.guard}[/yellow]" if answered.step.guard else ""
            progress.update(task, completed=answered.batch.number + 1, description=f"batches{note}")
        if loader is not None:
            predictions.progress.unreadable = [*before, *loader.unreadable]


def _print_summary(vit: "ViT", predictions: "Predictions", scores: "dict[str, Score]", out: Path, save: Path | None) -> None:
    progress = predictions.progress
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False, soft_wrap=True)
    table = Table("part", "images", "top-1", "95 %", "ECE", "mean entropy")
    for name, score in scores.items():
        cells = ["", "", ""]
        if (judged := score.judged) is not None:
            cells = [f"{100 * judged.top1:.1f} %", f"{100 * judged.low:.1f} - {100 * judged.high:.1f}", f"{judged.ece:.3f}"]
        table.add_row(name or "all", f"{score.images:,}", *cells, f"{score.entropy:.3f}")
    console.print(table)
    pace = 1000 * progress.seconds / max(1, scores[""].images)
    console.print(f"{pace:.1f} ms per image for answer and update -> {out}", markup=False, soft_wrap=True)
    for line in progress.guard:
        console.print(f"guard, {line}", markup=False, soft_wrap=True)
    for name, why in progress.unreadable:
        console.print(f"left out: {name} ({why})", markup=False, soft_wrap=True)
    if save:
        console.print(f"adapted state -> {save}", markup=False, soft_wrap=True)
