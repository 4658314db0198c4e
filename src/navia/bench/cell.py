"""One cell of a benchmark: model, domain (or a whole stream), method, reducer and seed -> one row and its trace."""

import functools
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from navia import __version__
from navia.adaptation.adapter import adapt
from navia.adaptation.selection import choose
from navia.adaptation.statistics import SourceStatistics, open_source_statistics
from navia.bench.digests import FileStamps, checkpoint_digest, model_digest, names_and_sizes
from navia.bench.row import ChosenOptions, Row, Settings
from navia.bench.run import BatchResult, adapt_then_score, run_realtime, run_stream, select_images, step_ratios, tsne_panels
from navia.bench.spec import PreprocessingSpec
from navia.data.cache import PixelCache
from navia.data.loader import Loader
from navia.data.preprocessing import Preprocessing
from navia.data.sources import (
    SHIFTED_LAYOUTS,
    Domain,
    Folder,
    OpenedData,
    leave_out_source,
    open_domains,
    open_source,
    scan,
    shifted_message,
)
from navia.data.streams import Stream, make_stream
from navia.errors import InputError, SourceError
from navia.evaluation.cost import cost
from navia.evaluation.latency import peak_memory
from navia.evaluation.metrics import accuracy, confidence_and_correctness, nll, top_k
from navia.io import expand_user, to_bytes
from navia.methods.base import METHODS
from navia.methods.parameters import fingerprint
from navia.models.base import ViT
from navia.models.device import find_device
from navia.models.labels import class_names
from navia.models.load import load

Trace = dict[str, Any]  # per batch and image, for the report; see `_trace`

_PATHS = {"model": "model", "checkpoint": "checkpoint", "data": "data", "source": "source_path"}  # by the names of digests
_LAST_IMAGES = 5  # of the stream, whose predictions the report shows


class Cell(Settings):
    """One combination of a grid.

    A finished cell is recognised by its key, a digest of the settings. Where there are local files, their digest stands for
    the path in the key: it is the same however a path is written and wherever the files are, and another one once they have
    changed. What has no local files (a name on a hub, the embedded sample) counts by its name.
    """

    @property
    def key(self) -> str:
        values = self.model_dump() | {"options": json.dumps(self.options, sort_keys=True)}
        del values["label"], values["dataset"], values["times_digest"]
        if self.tsne is not None and self.tsne.groups is None:  # older rows lack it
            del values["tsne"]["groups"]
        for name, path in _PATHS.items():
            if values[f"{name}_digest"] is not None:
                del values[path]
        for name, field in Settings.model_fields.items():  # what older rows lack counts only if it is not the default
            if not field.is_required() and values.get(name) == field.default:
                values.pop(name, None)
        if self.data_digest is not None and not self.corrupted:  # it holds the names of parts; others are paths
            del values["domain"], values["domains"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        return f"{self.model} {self.setting}"

    @property
    def setting(self) -> str:
        """What tells the cells of one model apart: 'contrast navia+tome:8 (budget=4) seed 1'."""
        more = [f"{name}={value}" for name, value in self.options.items()] + ["chosen"] * (self.choose is not None)
        more += [f"adapt_every={self.adapt_every}"] * (self.adapt_every != 1)
        more += [self.precision] * (self.precision != "float32")
        more += ["in real time"] * self.realtime + ["without guard"] * (not self.guarded)
        more += [f"{self.adapt_for} batches"] * (self.adapt_for is not None)
        extra = f" ({', '.join(more)})" if more else ""
        return f"{self.domain or self.stream} {self.method}+{self.reduce}{extra} seed {self.seed}"

    def work(self, images: float = 1) -> float:
        """Rough cost in dense forwards of one image. images: per domain, where the cell has no limit."""
        own = METHODS.get(self.method).relative_cost
        chosen = 0 if self.choose is None else self.choose.batches * self.batch * self.choose.settings
        return own * ((self.images or images) * len(self.domains) + chosen)


def run_cell(cell: Cell, workers: int = 0, vit: ViT | None = None, cache: PixelCache | None = None) -> tuple[Row, Trace]:
    """Run one cell from scratch. workers: processes that decode images. vit: the cell's model, if it is loaded already.
    cache: of corrupted images."""
    if vit is None:
        vit = _load_model(cell.model, cell.checkpoint, cell.crop_only, cell.model_digest, cell.checkpoint_digest)
    if cell.precision != vit.precision:
        vit = load(vit, precision=cell.precision)
    opened, clean = _open_data(cell, vit)
    shift = cell.label_shift
    stream = make_stream(opened.domains, cell.stream, seed=cell.seed, limit=cell.images, concentration=shift)
    preprocessing = _preprocessing(vit, cell.preprocessing)
    if cache is not None and (cell.data_digest is not None or cell.data == "embedded"):  # a hub's images may change unseen
        stream = cache.stream(stream, preprocessing, (cell.data_digest, cell.times_digest))
    loader = Loader(stream, preprocessing, cell.batch, workers, device=vit.device)
    started = time.time()
    source = _measure_source(cell, vit, clean, workers)
    choice = None if cell.choose is None else _choose(cell, vit, loader, source, opened)
    options = {**cell.options, **(choice.options if choice else {}), "adapt_every": cell.adapt_every}
    options |= {"classes": opened.classes, "guard": cell.guarded, "seed": 2020 + cell.seed}
    try:
        adapter = adapt(vit, cell.method, cell.reduce, source, **options)
    except SourceError as error:
        if source is None:
            raise InputError(f"method {cell.method!r} needs a source, and {shifted_message(opened)}") from error
        raise
    held_out, shown = (None, {}) if cell.tsne is None else select_images(cell.tsne, vit, opened, loader)
    ratio = skip_ratio = None
    if cell.realtime:
        ratio, skip_ratio = step_ratios(vit, adapter, next(iter(loader)).images)
        batches = run_realtime(adapter, loader, ratio, skip_ratio)
    elif cell.adapt_for is not None:
        batches = adapt_then_score(adapter, loader, cell.adapt_for)
    else:
        batches = run_stream(adapter, loader)
    results: list[BatchResult] = []
    peak_mib = peak_memory(lambda: results.extend(map(_without_images, batches)), vit.device)
    scores, trace = _scores(results, loader)
    if cell.tsne is not None and held_out is not None:
        images = Loader(held_out, preprocessing, cell.batch, workers, device=vit.device)
        panels = tsne_panels(adapter, cell.tsne.blocks, images, shown["labels"])
        trace["tsne"] = {**shown, "panels": panels}
    counted = cost(vit, cell.reduce, method=cell.method, options=cell.options | (choice.options if choice else {}))
    values = {
        "key": cell.key,
        **cell.model_dump(),
        "realtime_ratio": ratio,
        "skip_ratio": skip_ratio,
        "update_share": sum(r.step.updated for r in results) / len(results),
        "choice": None if choice is None else choice.model_dump(),
        **scores,
        "gmacs": counted.gmacs,
        "gmacs_paper": counted.gmacs_paper,
        "trainable": counted.trainable,
        "ms_per_image": _ms_per_image(results, sparse=cell.adapt_every != 1),
        "peak_mib": peak_mib,
        "guard": [f"batch {r.batch.number}: {r.step.guard}" for r in results if r.step.guard],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        "wall_seconds": time.time() - started,
        "fingerprint": _fingerprint(vit, cell, opened, stream, source),
    }
    if choice is None:
        del values["choice"]
    return Row.model_validate(_finite(values)), _finite(trace)


def _preprocessing(vit: ViT, given: PreprocessingSpec | None) -> Preprocessing:
    """The model's, with the resize and crop of the spec where it has one."""
    own = vit.preprocessing
    if given is None:
        return own
    size = own.size if given.crop is None else (given.crop, given.crop)
    return replace(own, size=size, resize=given.resize, interpolation=given.interpolation, origin="given by the spec")


def _measure_source(cell: Cell, vit: ViT, clean: Domain | None, workers: int) -> SourceStatistics | None:
    """Of the source images; the Fisher information of more images, if the cell says so."""

    def images(domain: Domain) -> Loader:
        preprocessing = _preprocessing(vit, cell.source_preprocessing)
        return Loader(make_stream([domain], seed=None), preprocessing, workers=workers, device=vit.device)

    if clean is None:
        return None
    if cell.fisher_images is None:
        return open_source_statistics(vit, images(clean), cell.reduce, method=cell.method)
    many = open_source(cell.source_path or cell.data, cell.fisher_images, _scanner(cell.source_digest), allow_fewer=True)
    fisher = SourceStatistics.measure(vit, images(many), cell.reduce, fisher=True).fisher
    return replace(SourceStatistics.measure(vit, images(clean), cell.reduce), fisher=fisher)


def _choose(cell: Cell, vit: ViT, loader: Loader, source: SourceStatistics | None, opened: OpenedData) -> ChosenOptions:
    """Options by the loss on the first batches of the stream, which begins anew afterwards."""
    assert cell.choose is not None
    if source is None:
        raise InputError(f"choosing options needs a source, and {shifted_message(opened)}")
    choice = choose(
        vit, loader, source, cell.method, cell.reduce, grid=cell.choose.grid, batches=cell.choose.batches,
        batch_size=cell.batch, classes=opened.classes, seed=2020 + cell.seed, **cell.options,
    )  # fmt: skip
    chosen, loss = min(choice.table, key=lambda row: row[1])
    counted = cost(vit, cell.reduce, method=cell.method, options=cell.options | chosen)
    gmacs = counted.gmacs * choice.images * len(choice.table) / len(loader.stream)
    return ChosenOptions(
        options=chosen, loss=loss, images=choice.images, steps=choice.steps, seconds=choice.seconds, gmacs=gmacs
    )


def _finite(values: Any) -> Any:
    """As JSON values, with None in place of every number that JSON cannot hold."""
    return json.loads(json.dumps(values), parse_constant=lambda _: None)


@functools.lru_cache(maxsize=2)
def _load_model(name: str, checkpoint: str | None, crop_only: bool, of_model: str | None, of_checkpoint: str | None) -> ViT:
    """The digests decide whether a model that was loaded before can be used again."""
    if of_model is not None:
        name = f"hf:{expand_user(name.removeprefix('hf:'))}"
    vit = load(name, checkpoint=None if checkpoint is None else expand_user(checkpoint)).to(find_device())
    if (model_digest(name), checkpoint_digest(checkpoint)) != (of_model, of_checkpoint):
        raise InputError(_changed(checkpoint or name))
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


def _changed(path: str) -> str:
    return f"{path!r} has changed, or is another one here, since the benchmark began: start it again"


def _open_data(cell: Cell, vit: ViT) -> tuple[OpenedData, Domain | None]:
    """The cell's domains in its order, and the source images, which are not in these; None if the data has no clean ones."""
    _check_unchanged(cell.data, cell.domains, cell.corrupted, cell.source_path, cell.data_digest, cell.source_digest)
    opened = open_domains(
        cell.data, vit.num_classes, class_names(vit), corruptions=cell.domains if cell.corrupted else (),
        severity=cell.severity, parts=cell.domains, scanner=_scanner(cell.data_digest),
    )  # fmt: skip
    clean = None
    if cell.source_path is not None:
        clean = open_source(cell.source_path, cell.source_images, _scanner(cell.source_digest))
    elif opened.kind not in SHIFTED_LAYOUTS:
        opened, clean = leave_out_source(opened, cell.source_images)
    by_name = {domain.name: domain for domain in opened.domains}
    domains = tuple(by_name[name] for name in cell.domains)
    if unlabelled := [domain.name for domain in domains if domain.images.labels is None]:
        raise InputError(f"{', '.join(unlabelled)} of {cell.data!r} has no labels to score with: use class folders")
    return replace(opened, domains=domains), clean


def _scanner(digest: str | None) -> Callable[[Path], Folder]:
    return scan if digest is None else functools.partial(_scan_once, digest)


@functools.lru_cache(maxsize=16)
def _scan_once(digest: str, folder: Path) -> Folder:
    """Most cells want the same images. 50,000 of them take 26 MB; 16 are the corruptions of one severity and the source.
    digest: of the data that the folder is part of; if that has changed, the folder is listed again."""
    return scan(folder)


@functools.lru_cache(maxsize=16)
def _check_unchanged(
    data: str, domains: tuple[str, ...], corrupted: bool, source: str | None, of_data: str | None, of_source: str | None
) -> None:
    """Once per process: workers may see other files, and some may have changed since the digests were made."""
    files = FileStamps()
    if of_data is not None and names_and_sizes(files.stamps(files.data(data), domains, corrupted)) != of_data:
        raise InputError(_changed(data))
    if of_source is not None and source is not None and names_and_sizes(files.source(source)) != of_source:
        raise InputError(_changed(source))


def _without_images(result: BatchResult) -> BatchResult:
    """Scores need the labels alone; 50,000 images of 224 px would take 28 GiB."""
    return replace(result, batch=replace(result.batch, images=result.batch.images[:0].clone()))


def _scores(results: Sequence[BatchResult], loader: Loader) -> tuple[dict[str, Any], Trace]:
    """Scores of all predictions, and per batch and image what the report draws. An image whose logits are not finite counts
    as wrong (a run without the guard may end so), and then there is neither a likelihood nor a calibration error."""
    logits, labels = torch.cat([r.logits for r in results]), torch.cat([r.batch.labels for r in results])
    confidence, correct = confidence_and_correctness(logits, labels)
    finite, predicted, count = confidence.isfinite(), logits.argmax(dim=1), len(labels)
    sizes = [len(r.batch.labels) for r in results]
    scores = {
        **asdict(accuracy(confidence, correct)),
        "count": count,
        "correct": int(correct.sum()),
        "top5": top_k(logits[finite], labels[finite], 5) * int(finite.sum()) / count if bool(finite.any()) else 0.0,
        "nll": nll(logits, labels) if bool(finite.all()) else None,
        "collapsed": next((r.batch.number for r in results if not bool(r.logits.isfinite().all())), None),
    }
    names = [name for r in results for name in r.batch.names]
    trace = {
        "right": [int(part.sum()) for part in correct.split(sizes)],
        "images": sizes,
        **{name: [getattr(r.step, name) for r in results] for name in ("entropy", "discrepancy", "loss", "kept")},
        "predicted": torch.bincount(predicted[finite], minlength=logits.shape[1]).tolist(),
        "last": list(zip(names[-_LAST_IMAGES:], predicted[-_LAST_IMAGES:].tolist(), strict=True)),
        "scored": [],
    }
    # which images of each domain were scored, and which of these were correct: one bit per image of the collection, packed
    # as hexadecimal digits; equal collections have equal images at equal positions
    indices = torch.tensor([index[1:] for r in results for index in loader.plan[r.batch.number]])
    for number, domain in enumerate(loader.stream.domains):
        own, collection = indices[:, 0] == number, domain.images
        digest = hashlib.sha256(to_bytes("\n".join(map(collection.name, range(len(collection)))))).hexdigest()[:16]
        entry: dict[str, Any] = {"collection": digest, "images": len(collection)}
        for name, mask in (("seen", own), ("right", own & correct)):
            bits = np.zeros(len(collection), dtype=bool)
            bits[indices[mask, 1].numpy()] = True
            entry[name] = np.packbits(bits).tobytes().hex()
        trace["scored"].append(entry)
    return scores, trace


def _ms_per_image(results: Sequence[BatchResult], sparse: bool = False) -> float:
    """Median over the steps that reached the adapter: in real time some batches are predicted only. sparse: their mean, as
    steps with and without an update differ."""
    steps = [r.step for r in results if r.step.seconds_update] or [r.step for r in results]
    average = statistics.fmean if sparse else statistics.median
    return 1000 * average((step.seconds_predict + step.seconds_update) / step.images for step in steps)


def _fingerprint(vit: ViT, cell: Cell, opened: OpenedData, stream: Stream, source: SourceStatistics | None) -> Any:
    names = hashlib.sha256()
    for domain, position in np.concatenate([segment.indices for segment in stream.segments]):
        names.update(to_bytes(stream.domains[domain].images.name(int(position))))
    return {
        "weights": fingerprint(vit)[:16],
        "preprocessing": _preprocessing(vit, cell.preprocessing).describe(),
        "data": f"{opened.kind}, {'made here' if cell.corrupted else 'as found'}",
        "pictures": names.hexdigest()[:16],
        "images": len(stream),
        "classes": len(opened.classes) if opened.classes else vit.num_classes,
        "reset": cell.stream,
        "source": None
        if source is None
        else {
            "images": source.provenance.count,
            "reduce": source.provenance.reduce,
            "preprocessing": _preprocessing(vit, cell.source_preprocessing).describe(),
        },
        "versions": {"navia": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "device": vit.device.type,
    }
