"""Adaptation in the background: one thread, the only one that changes the adapted state, and its checkpoints."""

import collections
import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter
from navia.adaptation.delta import BrokenDeltaError
from navia.adaptation.step import Step
from navia.data.loader import move_images
from navia.errors import InputError, NaviaError
from navia.io import lock_file
from navia.models.device import use_threads
from navia.serve.predictor import AdaptedState, Predictor
from navia.serve.schemas import Mode
from navia.serve.settings import ServiceSettings
from navia.serve.stats import Stats

log = logging.getLogger("navia.serve")

Result = TypeVar("Result")

_HISTORY = 3  # states kept for rollback
_MAX_FAILURES = 3  # in a row, after which adaptation pauses
_COUNTERS = "serve"  # key of the counters in the metadata of the delta


class Checkpoints:
    """FOLDER/delta.safetensors and its predecessor delta.previous.safetensors. One service per folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "delta.safetensors"
        self.previous = folder / "delta.previous.safetensors"
        self.step: int | None = None
        self.written: float | None = None

    def lock(self) -> contextlib.ExitStack:
        """Refuse a folder that another service writes to: their states would be mixed. Close the result to release it."""
        refusal = f"another service keeps its state in {str(self.folder)!r}; give each its own --state"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return lock_file(self.folder / "lock", refusal)
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from error

    @property
    def age(self) -> float | None:
        """Seconds since the newest was written; None: there is none."""
        return None if self.written is None else max(0.0, time.time() - self.written)

    def restore(self, adapter: Adapter) -> tuple[dict[str, int], list[str]]:
        """Load the newest valid checkpoint. Returns the counters saved with it, and messages for the event log."""
        messages = []
        for path in (self.current, self.previous):
            if not path.exists():
                continue
            try:
                metadata = adapter.load(path)
            except BrokenDeltaError as error:
                aside = path.with_name(f"{path.stem}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
                path.replace(aside)  # kept for inspection, under a name that is never loaded
                messages.append(f"{error}; set aside as {aside.name}")
                continue
            self.step, self.written = adapter.steps, path.stat().st_mtime
            messages.append(f"resumed from step {adapter.steps} of {path.name}")
            return json.loads(metadata.get(_COUNTERS, "{}")), messages
        return {}, messages

    def write(self, adapter: Adapter, counters: Mapping[str, int]) -> None:
        """Write counters and parameters to one file, so that they always agree."""
        fresh = self.folder / "delta.new.safetensors"
        adapter.save(fresh, {_COUNTERS: json.dumps(dict(counters))})
        if self.current.exists():
            self.current.replace(self.previous)
        fresh.replace(self.current)
        self.step, self.written = adapter.steps, time.time()


class _AbortedError(Exception):
    """The service stops: the running step is aborted between two blocks."""


class AdaptationWorker(threading.Thread):
    """Collects predicted images, adapts to them, and publishes the new state to the predictor.

    Predictions go first: a step waits between blocks while one is running. But adaptation gets at least `adapt_share` of the
    time: a step of s seconds is done s / adapt_share seconds after the last one. When images arrive faster than that, the
    oldest waiting ones are dropped (shed).
    """

    def __init__(
        self,
        adapter: Adapter,
        predictor: Predictor,
        stats: Stats,
        settings: ServiceSettings,
        checkpoints: Checkpoints | None,
    ) -> None:
        super().__init__(name="adaptation", daemon=True)
        self.adapter, self.predictor, self.stats, self.checkpoints = adapter, predictor, stats, checkpoints
        self.settings, self.batching, self.clock = settings, settings.batching, time.monotonic
        self.off = adapter.method.is_static
        self.paused = False
        self.last: Step | None = None
        self.drift = 0.0
        self._history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_HISTORY)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._images: collections.deque[Tensor] = collections.deque(maxlen=2 * settings.batching.adapt_batch)
        self._collecting_since = 0.0  # for the next step
        self._changed = threading.Condition()
        self._stopping = self._busy = False
        self._failures, self._last_shed = 0, -math.inf
        self._worked = self._waited = 0.0  # seconds since the start of the last step
        self._since = self.clock()  # start of the current work or wait
        self._published: dict[str, Tensor] = {}
        self._checkpoint_due = math.inf  # inf: the newest checkpoint is up to date
        adapter.set_on_block(self._on_block)

    # ---- called from other threads

    def offer(self, images: Tensor) -> None:
        """Queue predicted images [B, C, H, W] for adaptation."""
        if self.off or self.paused:
            return
        with self._changed:
            if not self._images:
                self._collecting_since = self.clock()
            excess = len(self._images) + len(images) - 2 * self.batching.adapt_batch
            self._images.extend(images)  # drops the oldest
            if excess > 0:
                self.stats.shed(excess)
                self._last_shed = self.clock()
            self._changed.notify()

    def call(self, action: Callable[[], Result]) -> "Future[Result]":
        """Run `action` in this thread between two steps: no other thread may change the state."""
        future: Future[Result] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():  # cancelled; from here on it cannot be
                return
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

        with self._changed:
            if self._stopping:
                raise NaviaError("the service is shutting down")
            self._commands.append(command)
            self._changed.notify()
        return future

    def pause(self, paused: bool) -> None:
        with self._changed:
            self.paused = paused
            self._images.clear()
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Images that wait for the next step."""
        return len(self._images)

    @property
    def mode(self) -> Mode:
        if self.off:
            return "off"
        if self.paused:
            return "paused"
        busy = self._busy
        if (self.overloaded() and not busy) or self.clock() - self._last_shed < 2:
            return "shedding"
        return "adapting" if busy else "waiting"

    def overloaded(self) -> bool:
        """Whether a whole batch of images waits for prediction."""
        return self.predictor.waiting >= self.batching.batch_size

    def stop(self) -> None:
        """Abort the running step, write the last checkpoint, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self.predictor.idle.set()  # a step that waits for a prediction waits no longer

    # ---- this thread

    def run(self) -> None:
        use_threads(self.batching.adapt_threads)  # as many as the predictor has would slow it down even while they wait
        if sys.platform == "linux":  # elsewhere the priority is that of the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self._history.append(self.adapter.state_dict())
        while not self._stopping:
            images = self._take()
            self._run_commands()
            if images is not None:
                self._busy = True
                self._adapt(images)
                self._busy = False
            if self.clock() >= self._checkpoint_due:
                self.checkpoint()
        self._run_commands()
        self.checkpoint()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _ready(self) -> bool:
        """Whether a step should start now."""
        if self.off or self.paused or (self.overloaded() and self.clock() - self._since < self._patience()):
            return False
        needed = self.batching.adapt_batch
        if self.clock() - self._collecting_since > self.batching.adapt_wait:
            needed = min(needed, self.batching.min_adapt_batch)
        return len(self._images) >= needed

    def _take(self) -> Tensor | None:
        """Wait for something to do, and take the images if it is a step. Wakes up now and then, as the end of an overload is
        not signalled."""
        with self._changed:
            if not (self._commands or self._stopping or self._ready()):
                self._changed.wait(max(0.0, min(0.1 if self._images else 5.0, self._checkpoint_due - self.clock())))
            if self._stopping or not self._ready():
                return None
            self._collecting_since = self.clock()
            count = min(len(self._images), self.batching.adapt_batch)
            return torch.stack([self._images.popleft() for _ in range(count)])

    def _patience(self) -> float:
        """Seconds that adaptation may still wait for predictions before its share of the time is due."""
        share = self.batching.adapt_share
        return max(0.0, self._worked * (1 - share) / share - self._waited) if share > 0 else threading.TIMEOUT_MAX

    def _on_block(self) -> None:
        """Called twice per block, forward and backward: wait while a prediction is running."""
        now = self.clock()
        self._worked += now - self._since
        if not self._stopping:
            self.predictor.idle.wait(self._patience())
        self._since = self.clock()
        self._waited += self._since - now
        if self._stopping:
            raise _AbortedError

    def _adapt(self, images: Tensor) -> None:
        self._worked, self._waited, self._since = 0.0, 0.0, self.clock()
        images = move_images(images, self.adapter.device)
        try:
            if not self.adapter.schedule.due and not self.adapter.skip(images):  # they are predicted already
                self.stats.images_skipped.inc(len(images))
                return
            self.adapter(images)
            assert self.adapter.last is not None
            self.last, self._failures = self.adapter.last, 0
        except _AbortedError:
            self.adapter.replace_tensors(self._published)  # some methods change them several times in a step
            return
        except Exception as error:
            log.exception("an adaptation step failed")
            self._recover(error)
            return
        finally:
            now = self.clock()
            self._worked, self._since = self._worked + now - self._since, now
        self.stats.images_adapted.inc(len(images))
        if self.last.guard:
            self.stats.guard_events.inc()
            self.stats.event("guard", f"step {self.last.number}: {self.last.guard}")
        self._state_changed()
        if self.adapter.steps % self.settings.checkpoint_every == 0:
            self._history.append(self.adapter.state_dict())
            self.checkpoint()

    def _recover(self, error: Exception) -> None:
        """Restore the last remembered state; pause the adaptation when it keeps failing."""
        self._failures += 1
        self.adapter.clear_gradients()
        self.adapter.load_state_dict(self._history[-1])
        self.stats.event("error", f"an adaptation step failed ({type(error).__name__}); back to step {self.adapter.steps}")
        if self._failures >= _MAX_FAILURES:
            self.pause(True)
            self.stats.event("pause", f"adaptation paused after {_MAX_FAILURES} failed steps in a row")
        self._state_changed()

    # ---- actions for `call`

    def publish(self) -> None:
        """Hand a copy of the state to the predictor."""
        self._published = {name: value.clone() for name, value in self.adapter.tensors().items()}
        self.drift = self.adapter.drift
        self.predictor.publish(AdaptedState(self.adapter.steps, self._published))

    def reset(self) -> str:
        self.adapter.reset()
        self._restart()
        return "back to the source model"

    def rollback(self) -> str:
        """Return to the newest remembered state older than this one, or to the source model."""
        while self._history and self._history[-1]["steps"] >= self.adapter.steps:
            self._history.pop()
        if not self._history:
            return self.reset()
        self.adapter.load_state_dict(self._history[-1])
        self._state_changed()
        self.checkpoint()
        return f"back to step {self.adapter.steps}"

    def load(self, path: Path) -> str:
        self.adapter.load(path)
        self._restart()
        return f"resumed from the delta of step {self.adapter.steps}"

    def checkpoint(self) -> None:
        """Write the state, unless the newest checkpoint has it already."""
        if self.checkpoints is None or math.isinf(self._checkpoint_due):
            return
        try:
            self.checkpoints.write(self.adapter, self.stats.saved_counters())
            self._checkpoint_due = math.inf
        except OSError as error:  # a full disk must not end the adaptation
            self.stats.checkpoint_failures.inc()
            self._checkpoint_due = self.clock() + self.settings.checkpoint_seconds
            self.stats.event("error", f"no checkpoint: {error.strerror}")

    def _state_changed(self) -> None:
        self.publish()
        if self.checkpoints is not None and not self.off:
            self._checkpoint_due = min(self._checkpoint_due, self.clock() + self.settings.checkpoint_seconds)

    def _restart(self) -> None:
        self.last = None
        self._history.clear()
        self._history.append(self.adapter.state_dict())
        self._state_changed()
        self.checkpoint()
