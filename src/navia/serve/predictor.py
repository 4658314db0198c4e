"""Batched prediction in a thread of its own. The thread owns the tensors that it predicts with: a new state is published to
it and loaded between two batches."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from navia.data.loader import move_images
from navia.errors import InputError, NaviaError
from navia.methods.base import Method
from navia.methods.features import entropy
from navia.models.device import use_threads
from navia.serve.settings import Batching

log = logging.getLogger("navia.serve")


class BusyError(NaviaError):
    """More images wait than the service can predict soon."""


@dataclass(frozen=True)
class RequestOutput:
    """Predictions for the images of one request. step: adaptation step of the state that predicted."""

    probabilities: Tensor  # [B, C]
    entropy: Tensor  # [B]
    step: int
    queue_seconds: float
    predict_seconds: float


@dataclass
class _Request:
    images: Tensor
    future: "Future[RequestOutput]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class AdaptedState(NamedTuple):
    """All tensors that determine predictions, after `step` adaptation steps."""

    step: int
    tensors: Mapping[str, Tensor]


class Predictor(threading.Thread):
    """Predicts the images of waiting requests in batches. When more than `queue_size` images wait, requests are refused.

    on_predicted is called with the images and output of each request, on_broken_state when outputs were not finite.
    """

    def __init__(
        self,
        method: Method,
        batching: Batching,
        queue_size: int,
        on_predicted: Callable[[Tensor, RequestOutput], None],
        on_broken_state: Callable[[str], None],
    ) -> None:
        super().__init__(name="predictor", daemon=True)
        self.method, self.batching, self.queue_size = method, batching, queue_size
        self.on_predicted, self.on_broken_state = on_predicted, on_broken_state
        self.source = AdaptedState(0, {name: value.clone() for name, value in method.tensors().items()})
        self.state = self.source
        self.waiting = 0  # images in the queue
        self.idle = threading.Event()  # set while no request waits or is predicted
        self.idle.set()
        self._published: AdaptedState | None = None
        self._requests: collections.deque[_Request] = collections.deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = torch.get_num_threads()

    # ---- called from other threads

    def submit(self, images: Tensor) -> "Future[RequestOutput]":
        """Queue the images [B, C, H, W] of one request."""
        request = _Request(images)
        with self._changed:
            if self._stopping:
                raise BusyError("the service is shutting down")
            if self.waiting + len(images) > self.queue_size and self.waiting:
                raise BusyError(f"{self.waiting} images are waiting for their prediction already")
            self._requests.append(request)
            self.waiting += len(images)
            self._changed.notify()
        return request.future

    def publish(self, state: AdaptedState) -> None:
        """Predict with this state from the next batch on."""
        with self._changed:
            self._published = state

    @property
    def step(self) -> int:
        """Adaptation step of the state that predicts the next batch."""
        return (self._published or self.state).step

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    # ---- this thread

    def run(self) -> None:
        use_threads(self._threads)  # otherwise this thread would inherit the smaller number of the adaptation worker
        while not self._stopping:
            requests = self._take()
            if requests:
                self._predict(requests)
            self.idle.set()
        for request in self._requests:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(BusyError("the service is shutting down"))

    def _take(self) -> list[_Request]:
        """Wait for the requests of a batch, the first at most `batch_timeout` for others; load the state published last."""
        size = self.batching.batch_size
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._stopping)
            if self._stopping:
                return []
            self.idle.clear()  # before the batch is complete: the adaptation needs a moment to pause
            timeout = self._requests[0].arrived + self.batching.batch_timeout - time.monotonic()
            self._changed.wait_for(lambda: self.waiting >= size or self._stopping, max(0.0, timeout))
            taken = [self._requests.popleft()]
            count = len(taken[0].images)
            while self._requests and count + len(self._requests[0].images) <= size:
                taken.append(self._requests.popleft())
                count += len(taken[-1].images)
            self.waiting -= count
            published, self._published = self._published, None
        if published is not None:
            self._load(published)
        return [request for request in taken if request.future.set_running_or_notify_cancel()]  # without cancelled ones

    def _load(self, state: AdaptedState) -> None:
        self.method.replace_tensors(state.tensors)
        self.state = state

    def _predict(self, requests: Sequence[_Request]) -> None:
        start = time.monotonic()
        try:
            logits = self._finite_logits(torch.cat([request.images for request in requests]))
        except Exception as error:
            log.exception("a batch of %d requests failed", len(requests))
            if len(requests) == 1:
                requests[0].future.set_exception(error)
            else:
                for request in requests:  # one of them may be the cause: the others still get their prediction
                    self._predict([request])
            return
        sizes = [len(request.images) for request in requests]
        probabilities, entropies = logits.softmax(dim=1).cpu().split(sizes), entropy(logits).cpu().split(sizes)
        seconds = time.monotonic() - start
        for request, p, h in zip(requests, probabilities, entropies, strict=True):
            output = RequestOutput(p, h, self.state.step, start - request.arrived, seconds)
            self.on_predicted(request.images, output)  # first, so that the status already counts a reply
            request.future.set_result(output)

    def _finite_logits(self, images: Tensor) -> Tensor:
        """Logits; if a state gives values that are not finite, the source model predicts instead."""
        state, logits = self.state, self._logits(images)
        if bool(logits.isfinite().all()):
            return logits
        self._load(self.source)
        logits = self._logits(images)
        if not bool(logits.isfinite().all()):  # the images are the cause, not the state
            self._load(state)
            raise InputError("the model has no finite prediction for the image")
        self.on_broken_state(f"predictions of step {state.step} were not finite; back to the source model")
        return logits

    @torch.no_grad()
    def _logits(self, images: Tensor) -> Tensor:
        batches = move_images(images, self.method.vit.device).split(self.batching.batch_size)
        return torch.cat([self.method.predict(batch).float() for batch in batches])
