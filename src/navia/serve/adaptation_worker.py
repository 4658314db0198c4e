"""Adaptation behind the answers: one thread, the only one that changes the adapted state."""

import collections
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, Step
from navia.errors import NaviaError
from navia.models.device import use_threads
from navia.serve.checkpoints import Checkpoints
from navia.serve.gate import Gate
from navia.serve.predictor import State, load_tensors
from navia.serve.schemas import Mode
from navia.serve.settings import Pace

log = logging.getLogger("navia.serve")

Result = TypeVar("Result")

_HISTORY = 3  # states to roll back to
_FAILURES = 3  # in a row, after which adaptation pauses


class _AbandonedError(Exception):
    """The service stops: the step under way is given up between two blocks."""


class Learner(threading.Thread):
    """Takes answered images, adapts, publishes. pressure: whether answers need the machine now. event: is told (kind, text).

    Images that come faster than steps are made push out the oldest that wait: those are shed. every, every_seconds: a
    checkpoint is written after so many steps, and at most so many seconds after a change.
    """

    def __init__(
        self,
        adapter: Adapter,
        gate: Gate,
        pace: Pace,
        publish: Callable[[State], None],
        pressure: Callable[[], bool],
        event: Callable[[str, str], None],
        checkpoints: Checkpoints | None = None,
        every: int = 20,
        every_seconds: float = 60.0,
    ) -> None:
        super().__init__(name="learner", daemon=True)
        self.adapter, self.gate, self.pace, self.every = adapter, gate, pace, every
        self.every_seconds, self.clock = every_seconds, time.monotonic
        self.publish, self.pressure, self.event, self.checkpoints = publish, pressure, event, checkpoints
        self.off = adapter.method.name in ("none", "lame")  # nothing that these would learn
        self.paused = False
        self.last: Step | None = None
        self.drift = 0.0
        self.counters = dict.fromkeys(("images_adapted", "images_shed", "guard_events"), 0)
        self._history: collections.deque[dict[str, Any]] = collections.deque(maxlen=_HISTORY)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._images: collections.deque[Tensor] = collections.deque()
        self._collecting_since = 0.0  # for the next step
        self._changed = threading.Condition()
        self._stopping = self._busy = False
        self._failures, self._last_shed = 0, -1e9
        self._published: dict[str, Tensor] = {}
        self._unsaved_since: float | None = None  # None: the newest checkpoint holds the present state
        adapter.method.on_block = self._breathe

    # ---- from other threads

    def offer(self, images: Tensor) -> None:
        """Answered images [B, C, H, W], to be learned from when there is time."""
        if self.off or self.paused:
            return
        with self._changed:
            if not self._images:
                self._collecting_since = self.clock()
            self._images.extend(images)
            excess = len(self._images) - 2 * self.pace.adapt_batch
            for _ in range(max(0, excess)):
                self._images.popleft()
            if excess > 0:
                self.counters["images_shed"] += excess
                self._last_shed = self.clock()
            self._changed.notify()

    def call(self, action: Callable[[], Result]) -> "Future[Result]":
        """Have `action` done between two steps: nobody else may touch the state."""
        future: Future[Result] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():  # who asked gave up; from here on that cannot be
                return
            try:
                result = action()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

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
        return len(self._images)

    @property
    def mode(self) -> Mode:
        if self.off or self.paused:
            return "off" if self.off else "paused"
        busy = self._busy
        if (self.pressure() and not busy) or self.clock() - self._last_shed < 2:
            return "shedding"
        return "adapting" if busy else "waiting"

    def stop(self) -> None:
        """Give up the step under way, write the last checkpoint, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self.gate.release()

    # ---- this thread

    def run(self) -> None:
        _step_back(self.pace.threads)
        self._remember()
        while not self._stopping:
            self._wait()
            while self._commands:
                self._commands.popleft()()
            images = self._take()
            if images is not None:
                self._busy = True
                self._learn(images)
                self._busy = False
            if self._seconds_to_checkpoint() <= 0:
                self.checkpoint()
        while self._commands:
            self._commands.popleft()()
        self.checkpoint()

    def _wait(self) -> None:
        """Until there is something to do; looks again now and then, as pressure ends without a sign."""
        with self._changed:
            if not (self._commands or self._stopping or self._ready()):
                self._changed.wait(max(0.0, min(0.1 if self._images else 5.0, self._seconds_to_checkpoint())))

    def _ready(self) -> bool:
        if self.off or self.paused or (self.pressure() and not self.gate.overdue()):
            return False
        late = self.clock() - self._collecting_since > self.pace.adapt_wait and len(self._images) >= self.pace.enough
        return len(self._images) >= self.pace.adapt_batch or late

    def _take(self) -> Tensor | None:
        with self._changed:
            if self._stopping or not self._ready():
                return None
            count = min(len(self._images), self.pace.adapt_batch)
            taken = [self._images.popleft() for _ in range(count)]
            self._collecting_since = self.clock()
        return torch.stack(taken)

    def _breathe(self) -> None:
        """Between two halves of a block, forward and backward."""
        self.gate.pass_through()
        if self._stopping:
            raise _AbandonedError

    def _learn(self, images: Tensor) -> None:
        self.gate.start_step()
        try:
            self.adapter(images.to(self.adapter.method.vit.device))
            assert self.adapter.last is not None
            self.last, self._failures = self.adapter.last, 0
        except _AbandonedError:
            load_tensors(self.adapter.method, self._published)  # some methods change them more than once in a step
            return
        except Exception as error:
            log.exception("an adaptation step failed")
            self._give_up_step(error)
            return
        finally:
            self.gate.end_step()
        self.counters["images_adapted"] += len(images)
        if self.last.guard:
            self.counters["guard_events"] += 1
            self.event("guard", f"step {self.last.number}: {self.last.guard}")
        self._moved()
        if self.adapter.steps % self.every == 0:
            self._remember()
            self.checkpoint()

    def _give_up_step(self, error: Exception) -> None:
        """Answers go on; the state remembered last is restored, and adaptation that keeps failing pauses."""
        self._failures += 1
        if self.adapter.method.optimizer is not None:
            self.adapter.method.optimizer.zero_grad(set_to_none=True)
        self.adapter.load_state_dict(self._history[-1])
        self.event("error", f"an adaptation step failed ({type(error).__name__}); back to step {self.adapter.steps}")
        if self._failures >= _FAILURES:
            self.pause(True)
            self.event("pause", f"adaptation paused after {_FAILURES} failed steps in a row")
        self._moved()

    # ---- what commands are made of; only within `call`

    def show(self) -> None:
        """Hand the state to the answers."""
        self._published = {name: value.clone() for name, value in self.adapter.method.tensors().items()}
        self.drift = self.adapter.drift
        self.publish(State(self.adapter.steps, self._published))

    def reset(self) -> str:
        self.adapter.reset()
        self._start_again()
        return "back to the source"

    def rollback(self) -> str:
        """To the newest remembered state that is older than this one; to the source where there is none."""
        while self._history and self._history[-1]["steps"] >= self.adapter.steps:
            self._history.pop()
        if not self._history:
            return self.reset()
        self.adapter.load_state_dict(self._history[-1])
        self._moved()
        self.checkpoint()
        return f"back to step {self.adapter.steps}"

    def load(self, path: Any) -> str:
        self.adapter.load(path)
        self._start_again()
        return f"went on from the delta of step {self.adapter.steps}"

    def checkpoint(self) -> None:
        """Write the state, unless the newest checkpoint holds it already: that would only push out the one before."""
        if self.checkpoints is None or self.off or self._unsaved_since is None:
            return
        try:
            self.checkpoints.write(self.adapter, self.counters)
            self._unsaved_since = None
        except OSError as error:  # a full disk must not end the adaptation
            self.checkpoints.failures += 1
            self._unsaved_since = self.clock()  # tried again after the same time
            self.event("error", f"no checkpoint: {error.strerror}")

    def _seconds_to_checkpoint(self) -> float:
        if self.checkpoints is None or self.off or self._unsaved_since is None:
            return math.inf
        return self._unsaved_since + self.every_seconds - self.clock()

    def _moved(self) -> None:
        """The state changed: answer with it, and write it down in time."""
        self.show()
        if self._unsaved_since is None:
            self._unsaved_since = self.clock()

    def _start_again(self) -> None:
        self.last = None
        self._history.clear()
        self._remember()
        self._moved()
        self.checkpoint()

    def _remember(self) -> None:
        self._history.append(self.adapter.state_dict())


def _step_back(threads: int) -> None:
    """Few threads, of lower priority: a second team as large as the answers' own would slow these even while it rests."""
    use_threads(threads)
    if sys.platform == "linux":  # elsewhere a priority is the whole process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
