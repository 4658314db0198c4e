"""One cell of a benchmark: model, domain (or a whole stream), method, reducer and seed -> one row and its trace."""

import functools
import hashlib
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navia import __version__
from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceError, SourceStatistics
from navia.bench.inputs import Inputs, checkpoint_digest, model_digest, names_and_sizes
from navia.bench.realtime import on_the_clock, step_ratio
from navia.bench.run import Answered, adapt_then_score, run
from navia.bench.tsne import Tsne, look, shown
from navia.data.domain import Domain
from navia.data.folder import Folder, scan
from navia.data.loader import Loader
from navia.data.open import SHIFTED, Opened, leave_out_source, open_domains, open_source, shifted_itself
from navia.data.streams import Stream, make_stream
from navia.errors import InputError
from navia.evaluation.cost import cost
from navia.evaluation.latency import peak_memory
from navia.evaluation.metrics import ece, nll, top_k, wilson
from navia.io import expanded, to_bytes
from navia.methods.base import METHODS
from navia.methods.parameters import fingerprint
from navia.models.base import ViT
from navia.models.device import find_device
from navia.models.labels import class_names
from navia.models.load import load

_DIGESTED = {
    "model_digest": "model",
    "checkpoint_digest": "checkpoint",
    "data_digest": "data",
    "source_digest": "source_path",
}  # the digest of what each path leads to


_LAST_IMAGES = 5  # of the stream, whose predictions the report shows


@dataclass(frozen=True)
class Cell:
    """All that decides a row, in plain values.

    The key is a digest of them, and a finished cell is known by it. A path is no part of the key where what it leads to is
    there: the digest of the weights or images stands for it (see `inputs.py`). So the key is the same however a path is
    written and wherever the files lie, and another one once they have changed. The fields keep the paths as they were
    written, for display and for reading. What has no local files (a name on a hub, the embedded sample) counts by its name.
    """

    model: str
    checkpoint: str | None
    crop_only: bool
    data: str
    domain: str  # one corruption or part; "" for a stream over all of `domains`
    domains: tuple[str, ...]
    corrupted: bool  # made on the way, or found so
    severity: int
    stream: str
    images: int | None
    label_shift: float | None
    source_images: int
    source_path: str | None
    method: str
    reduce: str
    options: str  # as JSON, so that a cell can be hashed
    realtime: bool
    adapt_for: int | None
    seed: int
    batch: int
    label: str | None = field(default=None, compare=False)
    tsne: Tsne | None = None
    guarded: bool = True
    model_digest: str | None = None  # of the folder that `model` names
    checkpoint_digest: str | None = None
    data_digest: str | None = None  # names and sizes of the images of `domains`
    source_digest: str | None = None  # of `source_path`
    plugin_digest: str | None = None  # of the files in which the method or reducer is written, where they are not navia's
    times_digest: str | None = field(default=None, compare=False)  # when images of the data and the source were written

    @property
    def key(self) -> str:
        values = asdict(self)
        for name in ("label", "times_digest"):
            values.pop(name)
        # rows have had their keys since before there were these
        for name, usual in (
            ("tsne", None),
            ("guarded", True),
            ("plugin_digest", None),
            *((name, None) for name in _DIGESTED),
        ):
            if values[name] == usual:
                values.pop(name)
        for name, path in _DIGESTED.items():
            if name in values:
                values.pop(path)
        if (
            self.data_digest is not None and not self.corrupted
        ):  # it holds the names of parts; others are called by their path
            del values["domain"], values["domains"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def values(self) -> dict[str, Any]:
        """All fields as plain values, the options as a dictionary."""
        return {**asdict(self), "options": json.loads(self.options)}

    @property
    def title(self) -> str:
        return f"{self.model} {self.setting}"

    @property
    def setting(self) -> str:
        """'contrast navia+tome:8 (budget=4) seed 1': what tells the cells of one model apart."""
        more = [f"{name}={value}" for name, value in json.loads(self.options).items()]
        more += ["in real time"] * self.realtime + ["without guard"] * (not self.guarded)
        more += [] if self.adapt_for is None else [f"{self.adapt_for} batches"]
        told = f" ({', '.join(more)})" if more else ""
        return f"{self.domain or self.stream} {self.method}+{self.reduce}{told} seed {self.seed}"


def run_cell(cell: Cell, workers: int = 0, vit: ViT | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Row and trace of one cell, from scratch. vit: the model of the cell, where it is loaded already."""
    vit = vit or _model_of(cell)
    opened, clean = _data(cell, vit)
    domains = _streamed(cell, opened)
    stream = make_stream(domains, cell.stream, seed=cell.seed, limit=cell.images, concentration=cell.label_shift)
    source = None if clean is None else _statistics(cell, vit, clean, workers)
    options = json.loads(cell.options)
    adapter = _adapter(cell, vit, opened, source, options)
    loader = Loader(stream, vit.preprocessing, cell.batch, workers)
    pictures = None if cell.tsne is None else shown(cell.tsne, vit, opened, loader)
    started = time.time()
    ratio = step_ratio(vit, adapter, next(iter(loader)).images) if cell.realtime else None
    if ratio is not None:
        stream_of_answers = on_the_clock(adapter, loader, ratio)
    elif cell.adapt_for is not None:
        stream_of_answers = adapt_then_score(adapter, loader, cell.adapt_for)
    else:
        stream_of_answers = run(adapter, loader)
    answers: list[Answered] = []
    peak_mib = peak_memory(lambda: answers.extend(map(_without_images, stream_of_answers)), vit.cls_token.device)
    trace = _trace(answers) | {"scored": _scored(answers, loader)}
    if pictures is not None:
        trace["tsne"] = look(adapter, pictures, cell.batch, workers)
    row = {
        "key": cell.key,
        **cell.values(),
        "realtime_ratio": ratio,
        **_scores(answers),
        "collapsed": next((a.batch.number for a in answers if bool(_broken(a.logits).any())), None),
        **_costs(vit, cell, answers),
        "peak_mib": peak_mib,
        "guard": [f"batch {a.batch.number}: {a.step.guard}" for a in answers if a.step.guard],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        "wall_seconds": time.time() - started,
        "fingerprint": _fingerprint(vit, cell, opened, stream, source),
    }
    return finite(row), finite(trace)


def finite(value: Any) -> Any:
    """The same with None in place of every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(finite, value))
    return value


def _broken(logits: Tensor) -> Tensor:
    """[B] images without a prediction: a run without the guard may end in NaN, and what it answers then is wrong."""
    return ~torch.isfinite(logits).all(dim=1)


def _right(answered: Answered) -> Tensor:
    """[B] images whose prediction is their label."""
    return (answered.logits.argmax(dim=1) == answered.batch.labels) & ~_broken(answered.logits)


def _without_images(answered: Answered) -> Answered:
    """Scores need the labels alone; 50,000 images of 224 px would take 28 GiB."""
    return replace(answered, batch=replace(answered.batch, images=answered.batch.images[:0].clone()))


def _model_of(cell: Cell) -> ViT:
    return _model(cell.model, cell.checkpoint, cell.crop_only, cell.model_digest, cell.checkpoint_digest)


@functools.lru_cache(maxsize=2)
def _model(name: str, checkpoint: str | None, crop_only: bool, of_model: str | None, of_checkpoint: str | None) -> ViT:
    """The digests decide whether a model that was loaded before is still the one that is asked for."""
    if of_model is not None:
        name = f"hf:{expanded(name.removeprefix('hf:'))}"
    vit = load(name, checkpoint=None if checkpoint is None else expanded(checkpoint)).to(find_device())
    if (model_digest(name), checkpoint_digest(checkpoint)) != (of_model, of_checkpoint):
        raise InputError(_changed(checkpoint or name))
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


def _changed(path: str) -> str:
    return f"{path!r} has changed, or is another one here, since the benchmark began: start it again"


def _data(cell: Cell, vit: ViT) -> tuple[Opened, Domain | None]:
    """Domains without the source images, and the source images; None: the data has no clean ones."""
    names = class_names(vit)
    made = cell.domains if cell.corrupted else ()
    _check_unchanged(cell.data, cell.domains, cell.corrupted, cell.source_path, cell.data_digest, cell.source_digest)
    opened = open_domains(
        cell.data, vit.num_classes, names, corruptions=made, severity=cell.severity, parts=cell.domains,
        lister=_lister(cell.data_digest),
    )  # fmt: skip
    if cell.source_path is not None:
        return opened, open_source(cell.source_path, cell.source_images, _lister(cell.source_digest))
    if opened.kind in SHIFTED:
        return opened, None
    return leave_out_source(opened, cell.source_images)


def _lister(digest: str | None) -> Callable[[Path], Folder]:
    return scan if digest is None else functools.partial(_listing, digest)


@functools.lru_cache(maxsize=16)
def _listing(digest: str, folder: Path) -> Folder:
    """The next cells mostly want the same pictures. 50,000 of them take 26 MB; 16 are the corruptions of one severity and
    the source. digest: of what the folder is a part of; once that changed, it is listed again."""
    return scan(folder)


@functools.lru_cache(maxsize=16)
def _check_unchanged(
    data: str, domains: tuple[str, ...], corrupted: bool, source: str | None, of_data: str | None, of_source: str | None
) -> None:
    """Once in every process: workers may see other files, and some may have changed since the digests were made."""
    inputs = Inputs()
    if of_data is not None:
        stamps = inputs.stamps(inputs.data(data), domains, corrupted)
        if names_and_sizes(stamps) != of_data:
            raise InputError(_changed(data))
    if of_source is not None and source is not None and names_and_sizes(inputs.source(source)) != of_source:
        raise InputError(_changed(source))


def _streamed(cell: Cell, opened: Opened) -> list[Domain]:
    """The domains that the cell names, in its order."""
    by_name = {domain.name: domain for domain in opened.domains}
    domains = [by_name[name] for name in cell.domains]
    unlabelled = [domain.name for domain in domains if domain.collection.labels is None]
    if unlabelled:
        raise InputError(f"{', '.join(unlabelled)} of {cell.data!r} has no labels to score with: use class folders")
    return domains


def _statistics(cell: Cell, vit: ViT, clean: Domain, workers: int) -> SourceStatistics:
    batches = Loader(make_stream([clean], seed=None), vit.preprocessing, workers=workers)
    images: Iterator[Tensor] = (batch.images for batch in batches)
    return SourceStatistics.measure(vit, images, cell.reduce, fisher=METHODS.get(cell.method).needs_fisher)


def _adapter(cell: Cell, vit: ViT, opened: Opened, source: SourceStatistics | None, options: dict[str, Any]) -> Adapter:
    seed, classes = 2020 + cell.seed, opened.classes
    try:
        return adapt(vit, cell.method, cell.reduce, source, classes=classes, guard=cell.guarded, seed=seed, **options)
    except SourceError as error:
        if source is None:
            raise InputError(f"method {cell.method!r} needs a source, and {shifted_itself(opened)}") from error
        raise


def _scores(answers: Sequence[Answered]) -> dict[str, Any]:
    """Of all answers, each given when its batch came. Where a logit is not finite the image counts as wrong, and of all
    together there is neither a likelihood nor a calibration error."""
    logits = torch.cat([a.logits for a in answers])
    labels = torch.cat([a.batch.labels for a in answers])
    whole = ~_broken(logits)
    count, correct = len(labels), int(sum(int(_right(a).sum()) for a in answers))
    low, high = wilson(correct, count)
    top5 = top_k(logits[whole], labels[whole], 5) * int(whole.sum()) / count if bool(whole.any()) else 0.0
    of_all = {"ece": ece(logits, labels), "nll": nll(logits, labels)} if bool(whole.all()) else {"ece": None, "nll": None}
    return {"count": count, "correct": correct, "top1": correct / count, "top5": top5, **of_all, "low": low, "high": high}


def _costs(vit: ViT, cell: Cell, answers: Sequence[Answered]) -> dict[str, Any]:
    counted = cost(vit, cell.reduce, method=cell.method, options=json.loads(cell.options))
    return {
        "gmacs": counted.gmacs,
        "gmacs_paper": counted.gmacs_paper,
        "trainable": counted.trainable,
        "ms_per_image": _pace(answers),
    }


def _pace(answers: Sequence[Answered]) -> float:
    """Milliseconds per image of a whole step; batches that a clock let pass without an update are none."""
    steps = [a.step for a in answers if a.step.seconds_update] or [a.step for a in answers]
    return 1000 * statistics.median((step.seconds_answer + step.seconds_update) / step.images for step in steps)


def _trace(answers: Sequence[Answered]) -> dict[str, Any]:
    """Right answers per batch and which classes were answered, which the report draws; the rest of each step, for people."""
    classes = torch.cat([a.logits for a in answers]).shape[1]
    predicted = torch.bincount(torch.cat([a.logits.argmax(dim=1)[~_broken(a.logits)] for a in answers]), minlength=classes)
    return {
        "right": [int(_right(a).sum()) for a in answers],
        "images": [len(a.batch.labels) for a in answers],
        "entropy": [a.step.entropy for a in answers],
        "discrepancy": [a.step.discrepancy for a in answers],
        "loss": [a.step.loss for a in answers],
        "kept": [a.step.kept for a in answers],
        "predicted": predicted.tolist(),
        "last": [
            (name, int(label))
            for a in answers[-_LAST_IMAGES:]
            for name, label in zip(a.batch.names, a.logits.argmax(dim=1), strict=True)
        ][-_LAST_IMAGES:],
    }


def _scored(answers: Sequence[Answered], loader: Loader) -> list[dict[str, Any]]:
    """For each domain which images were scored and which of these were answered right: a bit for each image of its
    collection, packed as hexadecimal digits. Equal collections have equal images at equal places."""
    found = []
    shots = torch.tensor([shot[1:] for a in answers for shot in loader.plan[a.batch.number]])
    right = torch.cat([(a.logits.argmax(dim=1) == a.batch.labels) & a.logits.isfinite().all(dim=1) for a in answers])
    for number, domain in enumerate(loader.stream.domains):
        own, collection = shots[:, 0] == number, domain.collection
        seen, correct = (np.zeros(len(collection), dtype=bool) for _ in range(2))
        seen[shots[own, 1].numpy()] = True
        correct[shots[own & right, 1].numpy()] = True
        names = hashlib.sha256(
            "\n".join(collection.name(i) for i in range(len(collection))).encode(errors="surrogateescape")
        )
        bits = {name: np.packbits(mask).tobytes().hex() for name, mask in (("seen", seen), ("right", correct))}
        found.append({"collection": names.hexdigest()[:16], "images": len(collection), **bits})
    return found


def _fingerprint(vit: ViT, cell: Cell, opened: Opened, stream: Stream, source: SourceStatistics | None) -> dict[str, Any]:
    """What two rows must share to be put side by side, and what made each."""
    names = hashlib.sha256()
    for stretch in stream.stretches:
        for domain, position in stretch.shots:
            names.update(to_bytes(stream.domains[domain].collection.name(int(position))))
    made = "made here" if cell.corrupted else "as found"
    return {
        "weights": fingerprint(vit)[:16],
        "preprocessing": vit.preprocessing.describe(),
        "data": f"{opened.kind}, {made}",
        "pictures": names.hexdigest()[:16],
        "images": len(stream),
        "classes": len(opened.classes) if opened.classes else vit.num_classes,
        "reset": cell.stream,
        "source": source and {"images": source.provenance.count, "reduce": source.provenance.reduce},
        "versions": {"navia": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "threads": torch.get_num_threads(),
        "device": vit.cls_token.device.type,
    }
