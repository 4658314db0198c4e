"""Answers of one run as a CSV file that survives being killed.

Rows are appended batch by batch. Every so often the adapter's state is saved beside them (`FILE.state`) together with
the number of bytes that belong to it; after a kill the file is cut back to these bytes and the stream goes on from
there, so that the finished file is that of an undisturbed run, to the byte. A state is saved between two batches only:
within one, the adapter is neither what answered the rows so far nor what will answer the next.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from navia import __version__
from navia.adaptation.adapter import Adapter
from navia.adaptation.statistics import SourceStatistics
from navia.bench.observed import Observed, spread_of
from navia.bench.run import Answered
from navia.data.loader import Batch
from navia.data.streams import Stream
from navia.errors import InputError
from navia.evaluation.metrics import calibration_error, wilson
from navia.interrupts import interrupts_held_back
from navia.io import atomic_write, lock_file, to_bytes
from navia.methods.features import entropy
from navia.methods.parameters import fingerprint
from navia.models.base import ViT

COLUMNS = ("path", "label", "name", "confidence", "entropy", "truth", "domain", "batch")  # truth only where labels are known
WORKERS_OUTLIVE = 8.0  # seconds; the decoding processes of a killed run notice after 5, and until then may hold its lock


@dataclass(frozen=True)
class Judged:
    """How right the answers were: share, its 95 % interval, expected calibration error."""

    top1: float
    low: float
    high: float
    ece: float


@dataclass(frozen=True)
class Score:
    """How one domain was answered; judged is None where no label is known."""

    images: int
    entropy: float
    judged: Judged | None


@dataclass
class Progress:
    """Where a run stands: what has to be known besides the rows to go on."""

    settings: dict[str, Any]
    size: int = 0
    batches: int = 0
    seconds: float = 0.0
    guard: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    observed: Observed = field(default_factory=Observed)
    finished: bool = False


def settings_of(path: Path) -> dict[str, Any]:
    """What the run that wrote `path` was told; nothing if there was none that could be gone on with."""
    try:
        found = torch.load(state_of(path), weights_only=True)["progress"]["settings"]
    except Exception:  # `Predictions.begin` says what is wrong with it
        return {}
    return dict(found)


def state_of(path: Path) -> Path:
    return path.with_name(path.name + ".state")


def fingerprint_of(vit: ViT, statistics: SourceStatistics | None, stream: Stream | None) -> dict[str, Any]:
    """What must be the same for a stopped run to go on: weights, preprocessing, statistics, pictures and their order."""
    pictures = hashlib.sha256()
    domains, segments = (stream.domains, stream.segments) if stream is not None else ((), ())
    for segment in segments:
        pictures.update(to_bytes(segment.name))
        for domain, position in segment.indices:
            pictures.update(to_bytes(domains[domain].images.name(position)))
    source = hashlib.sha256(statistics.mean.cpu().numpy().tobytes()).hexdigest()[:16] if statistics else None
    return {
        "model": vit.name,
        "weights": fingerprint(vit)[:16],
        "preprocessing": vit.preprocessing.as_dict(),
        "source statistics": source,
        "source images": statistics.provenance.count if statistics else None,
        "pictures": pictures.hexdigest()[:16] if stream is not None else None,
        "version": __version__,
    }


class Predictions:
    """`begin`, `take` or `add` every batch, `finish`; used as a context manager it saves its state on the way out.
    labelled: the images may have labels, so that there is a column for them."""

    def __init__(
        self,
        path: Path,
        settings: dict[str, Any],
        class_names: Sequence[str] | None,
        every: float = 30.0,
        labelled: bool = True,
    ) -> None:
        self.path = path
        self.state_path = state_of(path)
        self.class_names = class_names
        self.every = every
        self.columns = [name for name in COLUMNS if labelled or name != "truth"]
        self.progress = Progress(json.loads(json.dumps(settings)))
        self.within_batch = False  # the adapter has begun a batch whose rows are not all written
        self._saved = time.monotonic()
        self.file: BinaryIO
        self._opened: contextlib.ExitStack  # the file and its lock

    def begin(self, adapter: Adapter, restart: bool = False) -> Self:
        """Start anew, or go on where an earlier run with the same settings was stopped. The file is this process's until it
        is closed: two that append to it would mix their rows."""
        self.adapter = adapter
        may_go_on = self.path.exists() and not restart
        refusal = f"another run writes to {str(self.path)!r}: wait for it or take another --out"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as undo:
                undo.enter_context(lock_file(self.path.with_name(self.path.name + ".lock"), refusal, WORKERS_OUTLIVE))
                self.file = undo.enter_context(self.path.open("ab"))
                known = self._read_state() if may_go_on else None
                if known is None:
                    self._start_anew(restart)
                else:
                    self._continue(known)
                self._opened = undo.pop_all()
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error}") from error
        return self

    def take(self, answer: Callable[[], Answered], put_off: Callable[[], None] = lambda: None) -> Answered:
        """Answer a batch and append its rows, both or none. A Ctrl-C calls `put_off` and waits for the end of it; a second
        one does not, and then no state is saved: the run goes on from the last one."""
        with interrupts_held_back(put_off):
            self.within_batch = True
            answered = answer()
            self.add(answered)
        return answered

    def add(self, answered: Answered) -> None:
        """Append the rows of a batch."""
        self.within_batch = True  # until its rows are written the adapter is ahead of them
        batch, step = answered.batch, answered.step
        rows = _rows(batch, answered.logits, self.class_names)
        self._write("".join(_csv_line([row[name] for name in self.columns]) for row in rows))
        self.progress.finished = False  # a watched folder that had been answered has got more pictures
        self.progress.batches = batch.number + 1
        self.progress.seconds += step.seconds_predict + step.seconds_update
        self.progress.observed.add(answered)
        if step.guard:
            self.progress.guard.append(f"batch {batch.number}: {step.guard}")
        self.within_batch = False
        if time.monotonic() - self._saved > self.every:
            self.save()

    def names(self) -> list[str]:
        """Pictures that were answered already."""
        return [row["path"] for row in self._read()]

    def save(self) -> None:
        """Rows first, then the state that belongs to them, each for good before the next."""
        self._sync()
        self.progress.size = self.file.tell()
        try:
            with atomic_write(self.state_path) as unfinished, unfinished.open("wb") as file:
                torch.save({"progress": asdict(self.progress), "adapter": self.adapter.state_dict()}, file)
        except (OSError, RuntimeError) as error:  # RuntimeError: torch's word for a full disk
            raise InputError(f"cannot write {str(self.state_path)!r}: {error}; rows so far are kept") from error
        self._saved = time.monotonic()

    def finish(self) -> dict[str, Score]:
        """Mark the run as finished; its scores by domain, "" for all."""
        self.progress.finished = True
        self.save()
        return self.scores()

    def scores(self) -> dict[str, Score]:
        rows = self._read()
        domains = list(dict.fromkeys(row["domain"] for row in rows))
        found = {domain: _score([row for row in rows if row["domain"] == domain]) for domain in domains if len(domains) > 1}
        return {**found, "": _score(rows)}

    def effective_classes(self) -> float | None:
        """Effective number of the predicted classes; None before the first prediction."""
        return spread_of(int(row["label"]) for row in self._read())

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

    def _read_state(self) -> dict[str, Any] | None:
        if not self.state_path.exists():
            return None
        try:
            state = torch.load(self.state_path, weights_only=True)
            progress = Progress(**state["progress"])
            progress.observed = Observed(**state["progress"]["observed"])
        except Exception as error:
            raise InputError(f"{str(self.state_path)!r} is damaged ({error}); start anew with --restart") from error
        ours, theirs = self.progress.settings, progress.settings
        other = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        if other:
            was = ", ".join(f"{key} {theirs.get(key)!r} (now {ours.get(key)!r})" for key in other)
            raise InputError(f"{str(self.path)!r} was made with {was}: take another --out, or --restart")
        return {"progress": progress, "adapter": state["adapter"]}

    def _start_anew(self, restart: bool) -> None:
        """With a first state at once, so that rows without any are somebody else's, or of a finished run."""
        head = _csv_line(self.columns)
        if not restart and self.path.read_bytes() not in (b"", head.encode()):
            raise InputError(f"{str(self.path)!r} exists and has no state to go on from: take another --out, or --restart")
        self.state_path.unlink(missing_ok=True)
        self._cut(0)
        self._write(head)
        self.save()

    def _continue(self, known: dict[str, Any]) -> None:
        self.progress = known["progress"]
        self.progress.unreadable = [(name, why) for name, why in self.progress.unreadable]
        if self.path.stat().st_size < self.progress.size:
            raise InputError(f"{str(self.path)!r} is shorter than when its state was saved; start anew with --restart")
        self._cut(self.progress.size)
        self.adapter.load_state_dict(known["adapter"])

    def _cut(self, size: int) -> None:
        self.file.truncate(size)
        self.file.seek(size)

    def _write(self, text: str) -> None:
        try:
            self.file.write(to_bytes(text))
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error}; what was answered before is kept") from error

    def _sync(self) -> None:
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error}; what was answered before is kept") from error


def _rows(batch: Batch, logits: Tensor, class_names: Sequence[str] | None) -> list[dict[str, Any]]:
    confidence, label = logits.double().softmax(dim=1).max(dim=1)
    uncertainty = entropy(logits.double())
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


def _csv_line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _score(rows: Sequence[dict[str, str]]) -> Score:
    uncertainty = sum(float(row["entropy"]) for row in rows) / max(1, len(rows))
    return Score(len(rows), uncertainty, _judge([row for row in rows if row.get("truth", "") != ""]))


def _judge(rows: Sequence[dict[str, str]]) -> Judged | None:
    if not rows:
        return None
    correct = torch.tensor([row["label"] == row["truth"] for row in rows])
    confidence = torch.tensor([float(row["confidence"]) for row in rows], dtype=torch.float64)
    low, high = wilson(int(correct.sum()), len(rows))
    return Judged(correct.double().mean().item(), low, high, calibration_error(confidence, correct))
