"""Predictions of `navia run` as a CSV file that survives a kill, and what a run shows about itself without labels.

Rows are appended batch by batch. Every so often the adapter's state is saved beside them (`FILE.state`) with the number of
bytes that belong to it; after a kill the file is cut back to these bytes and the stream continues from there, so that the
finished file is that of an undisturbed run, to the byte. A state is saved between two batches only: within one, the adapter
is neither what predicted the rows so far nor what will predict the next.
"""

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from navia import __version__
from navia.adaptation.adapter import Adapter
from navia.adaptation.statistics import SourceStatistics
from navia.bench.run import BatchResult
from navia.data.loader import Batch, move_images
from navia.data.streams import Stream
from navia.errors import InputError
from navia.evaluation.metrics import Accuracy, accuracy
from navia.io import atomic_write, delay_interrupts, lock_file, to_bytes
from navia.methods.features import effective_classes, entropy
from navia.methods.parameters import fingerprint
from navia.models.base import ViT
from navia.models.forward import forward

COLUMNS = ("path", "label", "name", "confidence", "entropy", "truth", "domain", "batch")  # truth only where labels are known
LOCK_TIMEOUT = 8.0  # seconds; the decoding processes of a killed run notice after 5, and hold its file until then
EDGE = 3  # batches that the first and the last discrepancy are means of


@dataclass(frozen=True)
class Score:
    """Of one domain. judged: None where no label is known."""

    images: int
    entropy: float
    judged: Accuracy | None


@dataclass
class Observed:
    """What a run shows without labels, collected batch by batch so that a run that continues collects the same.

    first, last, batches: discrepancies of the first and last batches by domain ("" for all), and of how many batches they
    are known. compared: images that the source model predicted too; changed: how many of them it predicts otherwise;
    predicted, source_predicted: how often each class was predicted on these, by the adapted and the source model.
    """

    first: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, list[float]] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    changed: int = 0
    predicted: dict[int, int] = field(default_factory=dict)
    source_predicted: dict[int, int] = field(default_factory=dict)

    def add(self, result: BatchResult) -> None:
        value, domains = result.step.discrepancy, set(result.batch.domains)
        if value is not None and math.isfinite(value):
            for domain in ("", *(domains if len(domains) == 1 else ())):
                self.batches[domain] = self.batches.get(domain, 0) + 1
                self.first[domain] = [*self.first.get(domain, []), value][:EDGE]
                self.last[domain] = [*self.last.get(domain, []), value][-EDGE:]
        if result.source is not None:
            ours, theirs = result.logits.argmax(dim=1), result.source.argmax(dim=1)
            self.compared += len(ours)
            self.changed += int((ours != theirs).sum())
            self.predicted = dict(Counter(self.predicted) + Counter(ours.tolist()))
            self.source_predicted = dict(Counter(self.source_predicted) + Counter(theirs.tolist()))

    def discrepancy(self, domain: str = "") -> tuple[float, float] | None:
        """Mean of the first and of the last 3 batches (or half of fewer than 6); None if fewer than two are known."""
        few = min(EDGE, self.batches.get(domain, 0) // 2)
        return (sum(self.first[domain][:few]) / few, sum(self.last[domain][-few:]) / few) if few else None

    def comparison(self) -> dict[str, float] | None:
        """With the source model on the images that it predicted too: share of changed predictions, and the effective number
        of classes that each predicted; None if it predicted none."""
        return {
            "images": self.compared,
            "changed": self.changed / self.compared,
            "effective_classes": _effective(self.predicted),
            "source_effective_classes": _effective(self.source_predicted),
        } if self.compared else None  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        pairs = {domain or "all": self.discrepancy(domain) for domain in self.batches}
        discrepancy = {name: {"first": pair[0], "last": pair[1]} for name, pair in pairs.items() if pair}
        return {"discrepancy": discrepancy, "source_model": self.comparison()}


def _effective(counts: dict[int, int]) -> float:
    return effective_classes(list(counts.values()))


def source_model(adapter: Adapter, total: int | None, count: int) -> Callable[[Batch], Tensor | None]:
    """Logits of the source model, without reduction, for `count` of the `total` batches, evenly spaced and with the last;
    None for the others. If the total is not known: for batches 1, 2, 4, 8, ..."""
    chosen = {(place + 1) * total // count - 1 for place in range(count)} if total is not None and count else set()

    @torch.no_grad()
    def predict(batch: Batch) -> Tensor | None:
        number = batch.number
        if number not in chosen and not (total is None and count and number & (number + 1) == 0):
            return None
        vit = adapter.source_vit
        return forward(vit, move_images(batch.images, vit.device), classes=adapter.classes).logits.float().cpu()

    return predict


@dataclass
class Progress:
    """Where a run stands: what must be known besides the rows to continue."""

    settings: dict[str, Any]
    size: int = 0
    batches: int = 0
    updates: int = 0
    seconds: float = 0.0
    guard: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)
    finished: bool = False


def settings_of(path: Path) -> dict[str, Any]:
    """Settings of the run that wrote `path`; empty if there is none to continue."""
    try:
        return dict(torch.load(f"{path}.state", weights_only=True)["progress"]["settings"])
    except Exception:  # `Predictions.begin` says what is wrong with it
        return {}


def fingerprint_of(vit: ViT, statistics: SourceStatistics | None, stream: Stream | None) -> dict[str, Any]:
    """What must be the same to continue a run: weights, preprocessing, statistics, images and their order."""
    images = hashlib.sha256()
    domains, segments = (stream.domains, stream.segments) if stream is not None else ((), ())
    for segment in segments:
        images.update(to_bytes(segment.name))
        for domain, position in segment.indices:
            images.update(to_bytes(domains[domain].images.name(position)))
    source = hashlib.sha256(statistics.mean.cpu().numpy().tobytes()).hexdigest()[:16] if statistics else None
    return {
        "model": vit.name,
        "weights": fingerprint(vit)[:16],
        "preprocessing": vit.preprocessing.as_dict(),
        "source statistics": source,
        "source images": statistics.provenance.count if statistics else None,
        "pictures": images.hexdigest()[:16] if stream is not None else None,
        "version": __version__,
    }


class Predictions:
    """`begin`, `take` or `add` every batch, `finish`; as a context manager it saves its state on the way out. settings:
    a run with others does not continue. every: seconds between saved states. labelled: there is a column for labels."""

    def __init__(
        self, path: Path, settings: dict[str, Any], class_names: Sequence[str] | None, every: float = 30.0,
        labelled: bool = True,
    ) -> None:  # fmt: skip
        self.path, self.state_path = path, path.with_name(f"{path.name}.state")
        self.class_names, self.every = class_names, every
        self.columns = [name for name in COLUMNS if labelled or name != "truth"]
        self.progress = Progress(json.loads(json.dumps(settings)))
        self.within_batch = False  # the adapter has begun a batch whose rows are not all written
        self._saved = time.monotonic()
        self.file: BinaryIO
        self._opened: contextlib.ExitStack  # the file and its lock

    def begin(self, adapter: Adapter, restart: bool = False) -> Self:
        """Start, or continue an earlier run with the same settings. The file is locked until it is closed: two processes
        that append to it would mix their rows."""
        self.adapter = adapter
        may_continue = self.path.exists() and not restart
        refusal = f"another run writes to {str(self.path)!r}: wait for it or take another --out"
        with self._errors(), contextlib.ExitStack() as undo:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            undo.enter_context(lock_file(self.path.with_name(self.path.name + ".lock"), refusal, LOCK_TIMEOUT))
            self.file = undo.enter_context(self.path.open("ab"))
            if may_continue and self.state_path.exists():
                self._continue()
            else:
                self._start(restart)
            self._opened = undo.pop_all()
        return self

    def take(self, predict: Callable[[], BatchResult], put_off: Callable[[], None] = lambda: None) -> BatchResult:
        """Predict a batch and append its rows, both or none. A Ctrl-C calls `put_off` and waits for the end of the batch; a
        second one does not, and then no state is saved: the run continues from the last one."""
        with delay_interrupts(put_off):
            self.within_batch = True
            result = predict()
            self.add(result)
        return result

    def add(self, result: BatchResult) -> None:
        """Append the rows of a batch."""
        self.within_batch = True  # until its rows are written the adapter is ahead of them
        batch, step, progress = result.batch, result.step, self.progress
        self._write(_rows(batch, result.logits, self.class_names))
        progress.finished = False  # a watched folder that was finished has got more images
        progress.batches = batch.number + 1
        progress.seconds += step.seconds_predict + step.seconds_update
        progress.updates += step.updated
        progress.observed.add(result)
        progress.guard += [f"batch {batch.number}: {step.guard}"] if step.guard else []
        self.within_batch = False
        if time.monotonic() - self._saved > self.every:
            self.save()

    def names(self) -> list[str]:
        """Images that were predicted already."""
        return [row["path"] for row in self._read()]

    def save(self) -> None:
        """Write the rows, then the state that belongs to them; each is synced to disk before the next."""
        with self._errors("; what was predicted before is kept"):
            self.file.flush()
            os.fsync(self.file.fileno())
        self.progress.size = self.file.tell()
        try:
            with atomic_write(self.state_path) as unfinished, unfinished.open("wb") as file:
                torch.save({"progress": asdict(self.progress), "adapter": self.adapter.state_dict()}, file)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError when a disk is full
            raise InputError(f"cannot write {str(self.state_path)!r}: {error}; rows so far are kept") from error
        self._saved = time.monotonic()

    def finish(self) -> dict[str, Score]:
        """Mark the run as finished; its scores by domain, "" for all."""
        self.progress.finished = True
        self.save()
        rows = self._read()
        domains = list(dict.fromkeys(row["domain"] for row in rows))
        found = {domain: _score([row for row in rows if row["domain"] == domain]) for domain in domains if len(domains) > 1}
        return {**found, "": _score(rows)}

    def effective_classes(self) -> float | None:
        """Effective number of predicted classes; None before the first prediction."""
        counts = Counter(int(row["label"]) for row in self._read())
        return _effective(counts) if counts else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if not self.progress.finished and not self.within_batch:
                self.save()
        finally:
            with contextlib.suppress(OSError):  # rows that do not fit on the disk belong to no saved state
                self.close()

    def close(self) -> None:
        """Close the file and release its lock, without saving the state."""
        self._opened.close()

    def _read(self) -> list[dict[str, str]]:
        self.file.flush()
        with self.path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return list(csv.DictReader(file))

    def _start(self, restart: bool) -> None:
        """Save a first state at once: rows without any are then somebody else's, or of a finished run."""
        if not restart and self.path.read_bytes() not in (b"", ",".join(self.columns).encode() + b"\n"):
            raise InputError(f"{str(self.path)!r} exists without a state to continue from: take another --out, or --restart")
        self.state_path.unlink(missing_ok=True)
        self.file.truncate(0)
        self.file.seek(0)
        self._write([{name: name for name in self.columns}])
        self.save()

    def _continue(self) -> None:
        try:
            state = torch.load(self.state_path, weights_only=True)
            progress = Progress(**state["progress"] | {"observed": Observed(**state["progress"]["observed"])})
            adapter_state = state["adapter"]
        except Exception as error:
            raise InputError(f"{str(self.state_path)!r} is damaged ({error}); start again with --restart") from error
        ours, theirs = self.progress.settings, progress.settings
        if other := sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)):
            was = ", ".join(f"{key} {theirs.get(key)!r} (now {ours.get(key)!r})" for key in other)
            raise InputError(f"{str(self.path)!r} was made with {was}: take another --out, or --restart")
        if self.path.stat().st_size < progress.size:
            raise InputError(f"{str(self.path)!r} is shorter than when its state was saved; start again with --restart")
        self.progress = progress
        self.file.truncate(progress.size)
        self.file.seek(progress.size)
        self.adapter.load_state_dict(adapter_state)

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, extrasaction="ignore", lineterminator="\n").writerows(rows)
        with self._errors("; what was predicted before is kept"):
            self.file.write(to_bytes(text.getvalue()))

    @contextlib.contextmanager
    def _errors(self, more: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error}{more}") from error


def _rows(batch: Batch, logits: Tensor, class_names: Sequence[str] | None) -> list[dict[str, Any]]:
    (confidence, label), uncertainty = logits.double().softmax(dim=1).max(dim=1), entropy(logits.double())
    return [
        {
            "path": batch.names[i],
            "label": int(label[i]),
            "name": class_names[int(label[i])] if class_names else "",
            "confidence": f"{confidence[i]:.6f}",
            "entropy": f"{uncertainty[i]:.6f}",
            "truth": int(batch.labels[i]) if batch.labels[i] >= 0 else "",
            "domain": batch.domains[i],
            "batch": batch.number,
        }
        for i in range(len(batch.names))
    ]


def _score(rows: Sequence[dict[str, str]]) -> Score:
    uncertainty = sum(float(row["entropy"]) for row in rows) / max(1, len(rows))
    labelled = [row for row in rows if row.get("truth", "") != ""]
    confidence = torch.tensor([float(row["confidence"]) for row in labelled], dtype=torch.float64)
    correct = torch.tensor([row["label"] == row["truth"] for row in labelled])
    judged = accuracy(confidence, correct & confidence.isfinite()) if labelled else None
    return Score(len(rows), uncertainty, judged)
