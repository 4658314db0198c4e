"""Answers: images that wait are taken together, walked through the model once, and answered. One thread, which owns the
parameters that it answers with; new ones are handed to it and taken up between two batches."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from navia.errors import InputError, NaviaError
from navia.methods.base import Method
from navia.methods.features import entropy
from navia.models.device import use_threads
from navia.serve.gate import Gate
from navia.serve.settings import Pace

log = logging.getLogger("navia.serve")


class BusyError(NaviaError):
    """More images wait than the service can answer soon."""


@dataclass(frozen=True)
class Answer:
    """probabilities [B, C] and entropy [B] of one request's images; step: whose state answered."""

    probabilities: Tensor
    entropy: Tensor
    step: int
    waited: float
    took: float


@dataclass
class _Job:
    images: Tensor
    future: "Future[Answer]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class State:
    """Everything that shapes the answers, as of a step."""

    step: int
    tensors: Mapping[str, Tensor]


def load_tensors(method: Method, tensors: Mapping[str, Tensor]) -> None:
    """Back to these tensors, and to no others."""
    for name in method.tensors().keys() - tensors.keys():  # came into the memory afterwards
        del method.memory[name.removeprefix("memory.")]
    method.load_tensors(tensors)


class Answers(threading.Thread):
    """answered: is told of every batch before its reply. broken: is told when a state gave no finite answers."""

    def __init__(
        self,
        method: Method,
        gate: Gate,
        pace: Pace,
        limit: int,
        answered: Callable[[Tensor, Answer], None],
        broken: Callable[[str], None],
    ) -> None:
        super().__init__(name="answers", daemon=True)
        self.method, self.gate, self.pace, self.limit = method, gate, pace, limit
        self.answered, self.broken = answered, broken
        self.source = State(0, {name: value.clone() for name, value in method.tensors().items()})
        self.state = self.source
        self._next: State | None = None
        self._jobs: collections.deque[_Job] = collections.deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = torch.get_num_threads()

    # ---- from other threads

    def submit(self, images: Tensor) -> "Future[Answer]":
        """images [B, C, H, W] of one request, checked."""
        job = _Job(images)
        with self._changed:
            if self._stopping:
                raise BusyError("the service is shutting down")
            if self._waiting + len(images) > self.limit and self._waiting:
                raise BusyError(f"{self._waiting} images are waiting for their answer already")
            self._jobs.append(job)
            self._waiting += len(images)
            self._changed.notify()
        return job.future

    def publish(self, state: State) -> None:
        """Answer with this state from the next batch on."""
        with self._changed:
            self._next = state

    @property
    def step(self) -> int:
        """Whose state answers the next batch."""
        return (self._next or self.state).step

    @property
    def waiting(self) -> int:
        return self._waiting

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # ---- this thread

    def run(self) -> None:
        use_threads(self._threads)  # the learner asks for fewer, which this thread would inherit
        while self._wait():
            with self.gate.closed():  # from the first arrival on: adaptation needs a moment to come to rest
                jobs = self._take()
                self._take_up_state()
                if jobs:
                    self._answer(jobs)
        for job in self._jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(BusyError("the service is shutting down"))

    def _wait(self) -> bool:
        """For the first job; False once the service stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            return not self._stopping

    def _take(self) -> list[_Job]:
        """Jobs for one batch: the first one's patience is the time for others to join it."""
        with self._changed:
            patience = self._jobs[0].arrived + self.pace.wait - time.monotonic()
            self._changed.wait_for(lambda: self._waiting >= self.pace.batch or self._stopping, max(0.0, patience))
            jobs = [self._jobs.popleft()]
            while self._jobs and sum(len(job.images) for job in jobs) + len(self._jobs[0].images) <= self.pace.batch:
                jobs.append(self._jobs.popleft())
            self._waiting -= sum(len(job.images) for job in jobs)
        return [job for job in jobs if job.future.set_running_or_notify_cancel()]  # nobody waits for the others any more

    def _take_up_state(self) -> None:
        with self._changed:
            state, self._next = self._next, None
        if state is not None:
            self._load(state)

    def _load(self, state: State) -> None:
        load_tensors(self.method, state.tensors)
        self.state = state

    def _answer(self, jobs: Sequence[_Job]) -> None:
        start = time.monotonic()
        try:
            images = torch.cat([job.images for job in jobs])
            logits = self._finite(images)
        except Exception as error:
            log.exception("a batch of %d requests failed", len(jobs))
            self._one_by_one(jobs, error)
            return
        probabilities, uncertainty = logits.softmax(dim=1).cpu(), entropy(logits).cpu()
        took, done = time.monotonic() - start, 0
        for job in jobs:
            own = slice(done, done + len(job.images))
            done += len(job.images)
            answer = Answer(probabilities[own], uncertainty[own], self.state.step, start - job.arrived, took)
            self.answered(job.images, answer)  # first: who has the reply finds it in the status too
            job.future.set_result(answer)

    def _one_by_one(self, jobs: Sequence[_Job], error: Exception) -> None:
        """What fails together may be the fault of one: the others still get their answer."""
        if len(jobs) == 1:
            jobs[0].future.set_exception(error)
            return
        for job in jobs:
            self._answer([job])

    def _finite(self, images: Tensor) -> Tensor:
        """Logits; where a state gives none that are finite, the model as it came answers instead."""
        state, logits = self.state, self._logits(images)
        if bool(logits.isfinite().all()):
            return logits
        self._load(self.source)
        logits = self._logits(images)
        if not bool(logits.isfinite().all()):  # then it is not the state that is broken
            self._load(state)
            raise InputError("the model has no finite answer to the image")
        self.broken(f"the state of step {state.step} gave answers that are not finite; the source answers again")
        return logits

    @torch.no_grad()
    def _logits(self, images: Tensor) -> Tensor:
        device = self.method.vit.device
        parts = [self.method.predict(part.to(device)).float() for part in images.split(self.pace.batch)]
        return torch.cat(parts)
