"""One cell of a benchmark: model, domain (or a whole stream), method, reducer and seed -> one row and its trace."""

import functools
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navia import __version__
from navia.adapt.adapter import Adapter, adapt
from navia.adapt.method import METHODS
from navia.adapt.parameters import fingerprint
from navia.adapt.statistics import SourceError, SourceStatistics
from navia.bench.realtime import on_the_clock, step_ratio
from navia.bench.run import Answered, adapt_then_score, run
from navia.bench.tsne import Tsne, look, shown
from navia.errors import InputError
from navia.images.domain import Domain
from navia.images.loader import Loader
from navia.images.open import SHIFTED, Opened, leave_out_source, open_domains, open_source, shifted_itself
from navia.images.streams import Stream, make_stream
from navia.measure.clock import peak_memory
from navia.measure.cost import cost
from navia.measure.quality import ece, nll, top_k, wilson
from navia.vit.device import find_device
from navia.vit.labels import class_names
from navia.vit.load import load
from navia.vit.vit import ViT


@dataclass(frozen=True)
class Cell:
    """All that decides a row, in plain values: equal cells have equal keys, on any machine that has the same paths."""

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

    @property
    def key(self) -> str:
        values = asdict(self)
        values.pop("label")
        for name, usual in (("tsne", None), ("guarded", True)):  # rows have had their keys since before there were these
            if values[name] == usual:
                values.pop(name)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

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


def run_cell(cell: Cell, workers: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Row and trace of one cell, from scratch."""
    vit = _model(cell.model, cell.checkpoint, cell.crop_only)
    opened, clean = _data(cell)
    domains = _streamed(cell, opened)
    stream = make_stream(domains, cell.stream, seed=cell.seed, limit=cell.images, concentration=cell.label_shift)
    source = None if clean is None else _statistics(cell, clean, workers)
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
        **{name: value for name, value in asdict(cell).items() if name != "options"},
        "options": options,
        "realtime_ratio": ratio,
        **_scores(answers),
        **_costs(vit, cell, answers),
        "peak_mib": peak_mib,
        "guard": [f"batch {a.batch.number}: {a.step.guard}" for a in answers if a.step.guard],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        "wall_seconds": time.time() - started,
        "fingerprint": _fingerprint(vit, cell, opened, stream, source),
    }
    return row, trace


def _without_images(answered: Answered) -> Answered:
    """Scores need the labels alone; 50,000 images of 224 px would take 28 GiB."""
    return replace(answered, batch=replace(answered.batch, images=answered.batch.images[:0].clone()))


@functools.lru_cache(maxsize=2)
def _model(name: str, checkpoint: str | None, crop_only: bool) -> ViT:
    vit = load(name, checkpoint=checkpoint).to(find_device())
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


def _data(cell: Cell) -> tuple[Opened, Domain | None]:
    """Domains without the source images, and the source images; None: the data has no clean ones."""
    vit = _model(cell.model, cell.checkpoint, cell.crop_only)
    names = class_names(vit)
    made = cell.domains if cell.corrupted else ()
    opened = open_domains(cell.data, vit.num_classes, names, corruptions=made, severity=cell.severity)
    if cell.source_path is not None:
        return opened, open_source(cell.source_path, cell.source_images)
    if opened.kind in SHIFTED:
        return opened, None
    return leave_out_source(opened, cell.source_images)


def _streamed(cell: Cell, opened: Opened) -> list[Domain]:
    """The domains that the cell names, in its order."""
    by_name = {domain.name: domain for domain in opened.domains}
    domains = [by_name[name] for name in cell.domains]
    unlabelled = [domain.name for domain in domains if domain.collection.labels is None]
    if unlabelled:
        raise InputError(f"{', '.join(unlabelled)} of {cell.data!r} has no labels to score with: use class folders")
    return domains


def _statistics(cell: Cell, clean: Domain, workers: int) -> SourceStatistics:
    vit = _model(cell.model, cell.checkpoint, cell.crop_only)
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
    """Of all answers, each given when its batch came."""
    logits = torch.cat([a.logits for a in answers])
    labels = torch.cat([a.batch.labels for a in answers])
    correct = int((logits.argmax(dim=1) == labels).sum())
    low, high = wilson(correct, len(labels))
    scores = {"top1": top_k(logits, labels), "top5": top_k(logits, labels, 5), "ece": ece(logits, labels)}
    return {"count": len(labels), "correct": correct, **scores, "nll": nll(logits, labels), "low": low, "high": high}


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
    predicted = torch.bincount(torch.cat([a.logits.argmax(dim=1) for a in answers]), minlength=classes)
    return {
        "right": [int((a.logits.argmax(dim=1) == a.batch.labels).sum()) for a in answers],
        "images": [len(a.batch.labels) for a in answers],
        "entropy": [a.step.entropy for a in answers],
        "discrepancy": [a.step.discrepancy for a in answers],
        "loss": [a.step.loss for a in answers],
        "kept": [a.step.kept for a in answers],
        "predicted": predicted.tolist(),
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
            names.update(stream.domains[domain].collection.name(int(position)).encode())
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
