"""`navia run`: adapt on a folder of images and write every prediction."""

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

import navia
from navia.cli import options
from navia.cli.options import ADAPTATION, IMAGES, OUTPUT, choice, option, suggest
from navia.cli.terminal import errors, file_to_write, load_model, method_options, print_line, print_result, progress, write
from navia.errors import SpecError

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter
    from navia.adaptation.callbacks import Callbacks
    from navia.bench.predictions import Observed, Predictions, Score
    from navia.bench.predictions import Progress as RunProgress
    from navia.data.loader import Batch, Loader
    from navia.models.base import ViT

FOLLOW = "Follow a folder"
STREAMS = ("reset", "continual", "mixed")
LOGS = ("tensorboard:", "wandb:", "mlflow:")
STREAM, ORDER = choice("stream", lambda: STREAMS), choice("order", lambda: ("auto", "names"))
LOG = {"autocompletion": suggest(*LOGS)}


def run(
    data: options.Data,
    model: options.Model, checkpoint: options.Checkpoint = None, num_classes: options.NumClasses = None,
    labels: options.Labels = None, method: options.Method = "navia", reduce: options.Reduce = "none",
    keep_reduction: Annotated[bool, option("--keep-reduction", ADAPTATION, "Reduce even if it takes more time.")] = False,
    source: options.Source = None, opt: options.Opt = None, adapt_every: options.AdaptEvery = "1",
    plugins: options.Plugins = None,
    corruption: options.Corruptions = None, severity: options.Severity = 5,
    stream: Annotated[str, option("--stream", IMAGES, "reset (for each domain), continual or mixed.", **STREAM)] = "reset",
    order: Annotated[str, option("--order", IMAGES, "names, or auto (shuffled in class folders).", **ORDER)] = "auto",
    seed: options.SeedOrNone = None,
    label_shift: Annotated[float | None, option("--label-shift", IMAGES, "Dirichlet concentration, e.g. 0.1.")] = None,
    limit: options.LimitOrNone = None, batch_size: options.BatchSize = 64, crop_only: options.CropOnly = False,
    skip_unreadable: options.SkipUnreadable = False,
    follow: Annotated[bool, option("--follow", FOLLOW, "Watch the folder and predict new images.")] = False,
    wait: Annotated[float, option("--wait", FOLLOW, "Seconds that an image may wait for its batch.")] = 2.0,
    idle: Annotated[float | None, option("--idle", FOLLOW, "Stop after this many seconds without images.")] = None,
    workers: options.WorkersOrNone = None, device: options.Device = "auto",
    grad_checkpointing: options.GradCheckpointing = False, precision: options.Precision = "float32",
    tf32: options.TF32 = False, deterministic: options.Deterministic = False,
    out: options.Out = Path("predictions.csv"),
    save: Annotated[Path | None, option("--save", OUTPUT, "Also save the adapted state (.safetensors).")] = None,
    save_every: Annotated[float, option("--save-every", OUTPUT, "Seconds between saved states.", min=0)] = 30.0,
    restart: Annotated[bool, option("--restart", OUTPUT, "Start again even if --out exists.")] = False,
    compare: Annotated[int, option("--compare", OUTPUT, "Batches to compare with the source model.", min=0)] = 8,
    log: Annotated[list[str] | None, option("--log", OUTPUT, f"{', '.join(LOGS)} and where; repeatable.", **LOG)] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Adapt on a stream of images and write every prediction, made before the model adapts to its batch.

    Stop it with Ctrl-C and start it again with the same arguments: it continues, and the result is the same.

        navia run field/ -m timm:vit_base_patch16_224 --source clean/ -r tome:8

    With torchrun (torchrun --nproc-per-node 4 --no-python navia run ...) each process takes its share of every batch.
    """
    from navia.adaptation.callbacks import Callbacks
    from navia.adaptation.statistics import open_source_statistics
    from navia.bench.predictions import Predictions, fingerprint_of, settings_of
    from navia.bench.run import ProcessShard, broadcast_state, close_distributed, init_distributed, predict_and_adapt
    from navia.data.loader import Loader
    from navia.data.sources import open_domains
    from navia.data.streams import make_stream
    from navia.data.watch import watch_batches
    from navia.integrations.loggers import from_spec
    from navia.models.labels import class_names

    rank = init_distributed()
    distributed = rank is not None
    if follow:
        given = {"corruption": corruption, "severity": severity != 5, "stream": stream != "reset", "order": order != "auto",
                 "seed": seed is not None, "label-shift": label_shift, "limit": limit}  # fmt: skip
        unused = ["torchrun"] * distributed + [f"--{name}" for name, value in given.items() if value]
        if unused:
            raise SpecError(f"--follow predicts every image when it arrives: leave out {', '.join(unused)}")
    out = file_to_write(out, "predictions.csv")
    save = save and file_to_write(save, "delta.safetensors")
    callbacks = Callbacks(from_spec(text) for text in (log or ()) if not rank)
    settings = method_options(method, opt)
    vit = load_model(
        model, checkpoint, crop_only, device, grad_checkpointing=grad_checkpointing, precision=precision,
        num_classes=num_classes, labels=labels,
    )  # fmt: skip
    names, classes, loader, labelled = class_names(vit), None, None, False
    order = order if seed is None else str(seed)
    if not follow:
        opened = open_domains(data, vit.num_classes, names, corruptions=corruption or (), severity=severity)
        names, classes = opened.names, opened.classes
        labelled = any(domain.images.labels is not None for domain in opened.domains)
        if order == "auto" and opened.domains[0].images.labels is not None:
            seed = 0  # class folders are not a stream
        images = make_stream(opened.domains, stream, seed=seed, limit=limit, concentration=label_shift)
        workers = min(4, (os.cpu_count() or 2) // 2) if workers is None else workers
        shard = ProcessShard() if distributed else None
        loader = Loader(
            images, vit.preprocessing, batch_size, workers, skip_unreadable=skip_unreadable, shard=shard,
            device=vit.device,
        )  # fmt: skip
    before = {} if restart else settings_of(out)
    used = _reducer(vit, reduce, batch_size, source, before, keep_reduction or distributed)
    statistics = None if source is None else open_source_statistics(vit, source, used, method=method)
    adapter = navia.adapt(
        vit, method, used, statistics, classes=classes, distributed=distributed, adapt_every=adapt_every, **settings
    )
    described = {
        "method": method, "options": settings, "batch": batch_size, "images": data, "stream": stream, "order": order,
        "limit": limit, "label shift": label_shift, "follow": follow, "corruption": corruption,
        "severity": severity if corruption else None, "reduce": used,
        **({} if used == reduce else {"reduce asked": reduce}),
        **({} if precision == "float32" else {"precision": precision}),
        **({"tf32": True} if tf32 else {}),
        **({} if adapt_every == 1 else {"adapt every": adapt_every}),
        **fingerprint_of(vit, statistics, None if loader is None else loader.stream),
    }  # fmt: skip
    if rank and loader is not None:  # the first process writes, the others compute their share
        loader.start = broadcast_state(adapter, 0)
        for batch in loader:
            predict_and_adapt(adapter, batch, distributed=True)
        close_distributed()
        return
    shown = [names[i] for i in classes] if names and classes else names
    with Predictions(out, described, shown, save_every, labelled).begin(adapter, restart) as predictions:
        state = predictions.progress
        if loader is None:
            seen = [*predictions.names(), *(name for name, _ in state.unreadable)]
            batches: Iterable[Batch] = watch_batches(
                Path(data), vit.preprocessing, batch_size, seen=seen, first=state.batches, unreadable=state.unreadable,
                wait=wait, idle=idle,
            )  # fmt: skip
        else:
            loader.start = broadcast_state(adapter, state.batches) if distributed else state.batches
            batches = loader
        _predict(adapter, predictions, batches, loader, callbacks, compare, distributed)
        scores = predictions.finish()
        effective_classes = predictions.effective_classes()
        close_distributed()
    if save:
        write(save, adapter.save)
    by_domain = {name or "all": score for name, score in scores.items()}
    observed = {
        "effective_classes": effective_classes, "guard_verdicts": len(state.guard),
        "update_share": state.updates / max(1, state.batches), **state.observed.as_dict(),
    }  # fmt: skip
    print_result(
        as_json, {"out": str(out), "scores": by_domain, **vars(state), "observed": observed},
        f"{vit.name}: {vit.preprocessing.describe()}", _table(scores, state.observed),
        *_summary(state, scores[""].images, effective_classes, out, save),
    )  # fmt: skip


def _reducer(vit: "ViT", reduce: str, batch_size: int, source: str | None, before: dict[str, Any], keep: bool) -> str:
    """Return `reduce`, unless a small batch is faster without it. before: settings of the run that is continued."""
    from navia.evaluation.latency import faster_reducer

    if before.get("reduce asked", before.get("reduce")) == reduce:
        return str(before["reduce"])
    if keep or (source is not None and Path(source).is_file()):  # its statistics were measured with the reducer
        return reduce
    chosen, measured = faster_reducer(vit, reduce, batch_size)
    if measured is None or measured.saves_time:
        return reduce
    print_line(f"navia: {measured}, so it is left out; --keep-reduction insists", errors)
    return str(chosen)


def _predict(
    adapter: "Adapter", predictions: "Predictions", batches: "Iterable[Batch]", loader: "Loader | None",
    callbacks: "Callbacks", compare: int, distributed: bool,
) -> None:  # fmt: skip
    """Predict and adapt batch by batch. Ctrl-C takes effect after a batch, when its rows are written."""
    from navia.bench.predictions import source_model
    from navia.bench.run import BatchResult, predict_and_adapt

    total = None if loader is None else len(loader.plan)
    predict_by_source = source_model(adapter, total, 0 if distributed else compare)  # a process has only its share
    state = predictions.progress
    before = list(state.unreadable)

    def note_unreadable() -> None:
        if loader is not None:
            state.unreadable = [*before, *loader.unreadable]

    def predict(batch: "Batch") -> BatchResult:
        return dataclasses.replace(predict_and_adapt(adapter, batch, distributed), source=predict_by_source(batch))

    again = "Ctrl-C again ends at once, and what came after the last saved state will be predicted again"
    announce = functools.partial(print_line, f"navia: stops after this batch; {again}", errors)
    callbacks.start(adapter)
    try:
        with progress("batches") as show:
            for batch in batches:
                note_unreadable()
                step = predictions.take(functools.partial(predict, batch), announce).step
                callbacks.step(dataclasses.replace(step, number=batch.number + 1))  # the adapter's own restarts at a reset
                show(batch.number + 1, total, step.guard or "")
            note_unreadable()
    except KeyboardInterrupt:
        whole = f"after {state.batches} batches, kept in {predictions.path}; the same command continues"
        within = "within a batch; the same command continues from the last saved state"
        print_line(f"navia: interrupted {within if predictions.within_batch else whole}", errors)
        raise
    finally:
        callbacks.finish()


def _table(scores: "dict[str, Score]", observed: "Observed") -> Table:
    """Only columns with known values."""
    accuracy = ("top-1", "95 %", "ECE") if scores[""].judged else ()
    discrepancy = ("first discrepancy", "last discrepancy") if observed.discrepancy() else ()
    table = Table("domain", "images", *accuracy, "mean entropy", *discrepancy)
    for name, score in scores.items():
        own, cells = score.judged, ["" for _ in accuracy]
        if own is not None:
            cells = [f"{100 * own.top1:.1f} %", f"{100 * own.low:.1f} - {100 * own.high:.1f}", f"{own.ece:.3f}"]
        cells += [f"{score.entropy:.3f}", *(f"{value:.4f}" for value in observed.discrepancy(name) or ())]
        table.add_row(Text(name or "all"), f"{score.images:,}", *cells)
    return table


def _summary(
    state: "RunProgress", images: int, effective_classes: float | None, out: Path, save: Path | None
) -> Iterator[str]:
    """Lines after the table; most of them help to judge a run without labels."""
    if effective_classes is not None:
        yield f"predicted classes (effective number): {effective_classes:.1f}"
    compared = state.observed.comparison()
    if compared is not None:
        count, changed, own, of_source = compared.values()
        yield (
            f"against the source model, on {count:,} of {images:,} images: {100 * changed:.1f} % of the predictions"
            f" changed; effective classes {own:.1f}, source model {of_source:.1f}"
        )
    yield f"adapted to {state.updates:,} of {state.batches:,} batches"
    verdicts = len(state.guard)
    yield f"guard: {verdicts or 'no'} verdict{'' if verdicts == 1 else 's'}"
    yield f"{1000 * state.seconds / max(1, images):.1f} ms per image for prediction and update -> {out}"
    yield from (f"guard, {line}" for line in state.guard)
    yield from (f"left out: {name} ({why})" for name, why in state.unreadable)
    if save:
        yield f"adapted state -> {save}"
