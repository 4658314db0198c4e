"""`navia run`: adapt on a folder of images and write down every answer."""

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from navia.cli import completion
from navia.cli.terminal import (
    CheckpointOption,
    CropOnlyOption,
    DeviceOption,
    ImportOption,
    JsonOption,
    LabelsOption,
    LeanOption,
    MethodOption,
    ModelOption,
    NumClassesOption,
    PrecisionOption,
    ReduceOption,
    SeverityOption,
    SourceOption,
    console,
    errors,
    file_to_write,
    load_model,
    method_options,
    print_json,
    write,
)
from navia.errors import SpecError

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter
    from navia.bench.predictions import Observed, Predictions, Score
    from navia.bench.predictions import Progress as RunProgress
    from navia.data.loader import Batch, Loader
    from navia.data.sources import OpenedData
    from navia.integrations.loggers import Callbacks
    from navia.models.base import ViT


def run(
    images: Annotated[
        str, typer.Argument(help="Folder of images (any layout that `navia doctor` knows), embedded, or datasets:NAME.")
    ],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    labels: LabelsOption = None,
    method: MethodOption = "navia",
    reduce: ReduceOption = "none",
    source: SourceOption = None,
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
    severity: SeverityOption = 5,
    label_shift: Annotated[float | None, typer.Option(help="Classes in bursts: Dirichlet concentration, e.g. 0.1.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images of each part.", min=1)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images; by default half of the cores, 4 at most.", min=0)
    ] = None,
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
    compare: Annotated[
        int, typer.Option(help="Batches on which the source model predicts too, to count what changed; 0: none.", min=0)
    ] = 8,
    every: Annotated[float, typer.Option(help="Seconds between saved states: what a kill may cost.", min=0)] = 30.0,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    keep_reduction: Annotated[
        bool, typer.Option("--keep-reduction", help="Reduce even where it costs more time than it saves.")
    ] = False,
    lean: LeanOption = False,
    precision: PrecisionOption = "float32",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt on a stream of images and write every answer, given before the model adapted to it.

    Stop it with Ctrl-C and start it again with the same arguments: it goes on where it was, and the result is the same.

        navia run field/ --model timm:vit_base_patch16_224 --source clean/ --reduce tome:8

    Under torchrun (torchrun --nproc-per-node 4 --no-python navia run ...) each process takes its share of every batch.
    """
    from navia.adaptation.adapter import adapt
    from navia.adaptation.statistics import open_source_statistics
    from navia.bench.predictions import Predictions, fingerprint_of, settings_of
    from navia.bench.run import close_distributed, init_distributed
    from navia.integrations.loggers import Callbacks, from_spec
    from navia.models.labels import class_names

    rank = init_distributed()
    if follow:
        _check_follow(rank, corruption=corruption, severity=severity != 5, stream=stream != "reset", order=order != "auto",
                      label_shift=label_shift, limit=limit)  # fmt: skip
    out = file_to_write(out, "predictions.csv")
    save = save and file_to_write(save, "delta.safetensors")
    callbacks = Callbacks(from_spec(text) for text in (log or ()) if not rank)
    options = method_options(method, option)
    vit = load_model(model, checkpoint, crop_only, device, lean, precision, num_classes=num_classes, labels=labels)
    opened = None if follow else _open(images, vit, class_names(vit), corruption, severity)
    names = opened.names if opened else class_names(vit)
    used = _reducer(vit, reduce, batch, source, {} if restart else settings_of(out), keep_reduction or rank is not None)
    statistics = None if source is None else open_source_statistics(vit, source, used, method=method)
    classes = opened.classes if opened else None
    adapter = adapt(vit, method, used, statistics, classes=classes, distributed=rank is not None, **options)
    shown = [names[i] for i in classes] if names and classes else names
    loader = None if opened is None else _loader(
        opened, vit, stream, order, label_shift, limit, batch, workers, skip_unreadable, rank is not None
    )  # fmt: skip
    settings = _settings(
        reduce, used, precision, method=method, options=options, batch=batch, images=images, stream=stream, order=order,
        limit=limit, label_shift=label_shift, follow=follow, corruption=corruption,
        severity=severity if corruption else None,
    ) | fingerprint_of(vit, statistics, None if loader is None else loader.stream)  # fmt: skip
    if rank and loader is not None:  # the first process writes; the others take part
        _take_part(adapter, loader)
        return
    labelled = opened is not None and any(domain.images.labels is not None for domain in opened.domains)
    with Predictions(out, settings, shown, every, labelled).begin(adapter, restart) as predictions:
        if loader is None:
            batches: Iterable[Batch] = _arriving(images, vit, predictions, batch, wait, idle)
        else:
            batches = _remaining(adapter, predictions, loader)
        _write_answers(adapter, predictions, batches, loader, callbacks, compare)
        scores = predictions.finish()
        classes_predicted = predictions.effective_classes()
        close_distributed()
    if save:
        write(save, adapter.save)
    if as_json:
        described = {key or "all": dataclasses.asdict(score) for key, score in scores.items()}
        observed = predictions.progress.observed.as_dict()
        observed |= {"effective_classes": classes_predicted, "guard_verdicts": len(predictions.progress.guard)}
        progress = dataclasses.asdict(predictions.progress) | {"observed": observed}
        print_json({"out": str(out), "scores": described, **progress})
        return
    _print_summary(vit, predictions, scores, classes_predicted, out, save)


def _check_follow(rank: int | None, **given: Any) -> None:
    """given: options that --follow has no use for, and whether they were given."""
    if rank is not None:
        raise SpecError("--follow runs in one process: start it without torchrun")
    useless = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if useless:
        raise SpecError(f"--follow answers every picture as it is and when it comes: leave out {', '.join(useless)}")


def _reducer(vit: "ViT", asked: str, batch: int, source: str | None, before: dict[str, Any], insist: bool) -> str:
    """`asked`, unless a small batch is answered sooner without it (said on the terminal). before: settings of the run that
    goes on, which keeps what it began with."""
    from navia.evaluation.latency import faster_reducer

    if before.get("reduce asked", before.get("reduce")) == asked:
        return str(before["reduce"])
    if insist or (source is not None and Path(source).is_file()):  # its statistics were measured with the reducer
        return asked
    chosen, measured = faster_reducer(vit, asked, batch)
    if measured is not None and not measured.saves_time:
        errors.print(f"navia: {measured}, so it is left out; --keep-reduction insists", markup=False)
        return str(chosen)
    return asked


def _settings(asked: str, used: str, precision: str, **given: Any) -> dict[str, Any]:
    """What the user said, as it is compared when a run goes on."""
    said = {name.replace("_", " "): value for name, value in given.items()} | {"reduce": used}
    said |= {} if used == asked else {"reduce asked": asked}
    return said | ({} if precision == "float32" else {"precision": precision})


def _open(images: str, vit: "ViT", names: Any, corruption: list[str] | None, severity: int) -> "OpenedData":
    from navia.data.sources import open_domains

    return open_domains(images, vit.num_classes, names, corruptions=corruption or (), severity=severity)


def _loader(
    opened: "OpenedData", vit: "ViT", stream: str, order: str, label_shift: float | None, limit: int | None,
    batch: int, workers: int | None, skip_unreadable: bool, together: bool,
) -> "Loader":  # fmt: skip
    from navia.bench.run import ProcessShare
    from navia.data.loader import Loader
    from navia.data.streams import make_stream

    if order not in ("auto", "names") and not order.isdecimal():
        raise SpecError(f"--order is auto, names or a number, not {order!r}")
    sorted_by_class = opened.domains[0].images.labels is not None
    seed = (0 if sorted_by_class else None) if order == "auto" else None if order == "names" else int(order)
    made = make_stream(opened.domains, stream, seed=seed, limit=limit, concentration=label_shift)
    workers = min(4, (os.cpu_count() or 2) // 2) if workers is None else workers
    share = ProcessShare() if together else None
    return Loader(made, vit.preprocessing, batch, workers, skip_unreadable=skip_unreadable, shard=share)


def _take_part(adapter: "Adapter", loader: "Loader") -> None:
    from navia.bench.run import broadcast_state, close_distributed, predict_and_adapt

    loader.start = broadcast_state(adapter, 0)
    for batch in loader:
        predict_and_adapt(adapter, batch, distributed=True)
    close_distributed()


def _arriving(
    images: str, vit: "ViT", predictions: "Predictions", batch: int, wait: float, idle: float | None
) -> "Iterator[Batch]":
    from navia.data.watch import watch_batches

    progress = predictions.progress
    seen = [*predictions.names(), *(name for name, _ in progress.unreadable)]
    return watch_batches(
        Path(images), vit.preprocessing, batch, seen=seen, first=progress.batches, unreadable=progress.unreadable,
        wait=wait, idle=idle,
    )  # fmt: skip


def _remaining(adapter: "Adapter", predictions: "Predictions", loader: "Loader") -> "Loader":
    from navia.bench.run import broadcast_state

    done = predictions.progress.batches
    loader.start = broadcast_state(adapter, done) if adapter.method.distributed.enabled else done
    return loader


def _write_answers(
    adapter: "Adapter",
    predictions: "Predictions",
    batches: "Iterable[Batch]",
    loader: "Loader | None",
    callbacks: "Callbacks",
    compare: int,
) -> None:
    callbacks.start(adapter)
    try:
        _answer(adapter, predictions, batches, loader, callbacks, compare)
    except KeyboardInterrupt:
        done = f"after {predictions.progress.batches} batches, kept in {predictions.path}; the same command goes on"
        if predictions.within_batch:
            done = "within a batch; the same command goes on from the last saved state"
        errors.print(f"navia: interrupted {done}", markup=False, highlight=False, soft_wrap=True)
        raise
    finally:
        callbacks.finish()


def _answer(
    adapter: "Adapter",
    predictions: "Predictions",
    batches: "Iterable[Batch]",
    loader: "Loader | None",
    callbacks: "Callbacks",
    compare: int,
) -> None:
    from navia.bench.predictions import source_model
    from navia.bench.run import BatchResult, predict_and_adapt

    together = adapter.method.distributed.enabled
    total = None if loader is None else len(loader.plan)
    # not where each process has only its share of the images
    predict_by_source = source_model(adapter, total, 0 if together else compare)
    before = list(predictions.progress.unreadable)

    def answer_next(batch: "Batch") -> BatchResult:
        note_unreadable()
        return dataclasses.replace(predict_and_adapt(adapter, batch, together), source=predict_by_source(batch))

    def note_unreadable() -> None:
        if loader is not None:
            predictions.progress.unreadable = [*before, *loader.unreadable]

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("batches", total=total, completed=predictions.progress.batches)
        for batch in batches:
            answered = predictions.take(functools.partial(answer_next, batch), _say_that_it_waits)
            # the place in the stream: the adapter's own count starts anew at every reset
            callbacks.step(dataclasses.replace(answered.step, number=batch.number + 1))
            note = f" [yellow]{answered.step.guard}[/yellow]" if answered.step.guard else ""
            progress.update(task, completed=batch.number + 1, description=f"batches{note}")
        note_unreadable()


def _say_that_it_waits() -> None:
    again = "Ctrl-C again ends at once, and what came after the last saved state will be answered anew"
    errors.print(f"navia: stops after this batch; {again}", markup=False, highlight=False, soft_wrap=True)


def _print_summary(
    vit: "ViT",
    predictions: "Predictions",
    scores: "dict[str, Score]",
    classes_predicted: float | None,
    out: Path,
    save: Path | None,
) -> None:
    progress = predictions.progress
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False, soft_wrap=True)
    console.print(_table(scores, progress.observed))
    for line in _without_labels(progress, scores[""].images, classes_predicted):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    pace = 1000 * progress.seconds / max(1, scores[""].images)
    console.print(f"{pace:.1f} ms per image for answer and update -> {out}", markup=False, soft_wrap=True)
    for line in progress.guard:
        console.print(f"guard, {line}", markup=False, soft_wrap=True)
    for name, why in progress.unreadable:
        console.print(f"left out: {name} ({why})", markup=False, soft_wrap=True)
    if save:
        console.print(f"adapted state -> {save}", markup=False, soft_wrap=True)


def _table(scores: "dict[str, Score]", observed: "Observed") -> Table:
    """Only columns that something is known for."""
    judged = scores[""].judged is not None
    table = Table("part", "images", *(("top-1", "95 %", "ECE") if judged else ()), "mean entropy")
    measured = observed.discrepancy() is not None
    if measured:
        table.add_column("first discrepancy")
        table.add_column("last discrepancy")
    for name, score in scores.items():
        cells = [f"{score.images:,}"]
        if score.judged is not None:
            own = score.judged
            cells += [f"{100 * own.top1:.1f} %", f"{100 * own.low:.1f} - {100 * own.high:.1f}", f"{own.ece:.3f}"]
        elif judged:
            cells += ["", "", ""]
        cells.append(f"{score.entropy:.3f}")
        if measured:
            pair = observed.discrepancy(name)
            cells += [f"{value:.4f}" for value in pair] if pair else ["", ""]
        table.add_row(Text(name or "all"), *cells)
    return table


def _without_labels(progress: "RunProgress", images: int, classes_predicted: float | None) -> Iterator[str]:
    """What helps to judge a run whether or not labels are known."""
    if classes_predicted is not None:
        yield f"predicted classes (effective number): {classes_predicted:.1f}"
    compared = progress.observed.comparison()
    if compared is not None:
        number, changed, ours, theirs = compared.values()
        yield (
            f"against the source model, on {number:,} of {images:,} images: {100 * changed:.1f} % of the "
            f"predictions changed; effective classes {ours:.1f}, source model {theirs:.1f}"
        )
    count = len(progress.guard)
    yield f"guard: {'no verdicts' if not count else '1 verdict' if count == 1 else f'{count} verdicts'}"
