"""Callbacks: called at the start, after every batch and at the end of a stream; see `navia.integrations.loggers`."""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter
    from navia.adaptation.step import Step

log = logging.getLogger("navia.callbacks")


class Callback(Protocol):
    """Base class of callbacks. Override `step`; `start` and `finish` are optional.

    Example:
        >>> class CountImages(navia.Callback):
        ...     def start(self, adapter):
        ...         self.images = 0
        ...     def step(self, step):
        ...         self.images += step.images
        >>> counter = CountImages()
        >>> adapter = navia.adapt("embedded", "tent", callbacks=[counter])
        >>> logits = adapter(torch.zeros(2, 1, 28, 28))
        >>> counter.images
        2
    """

    def start(self, adapter: "Adapter") -> None:
        """Called once, when `adapter` is created. An error that is raised here stops the program before the first batch."""

    @abstractmethod
    def step(self, step: "Step") -> None:
        """Called after every batch.

        Args:
            step: Number, entropy, loss and times of the batch, as in `adapter.last`.
        """

    def finish(self) -> None:
        """Called at the end of the stream: write what is still in memory."""


class Callbacks:
    """Calls several callbacks and removes those that keep failing."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        self._failures: dict[int, int] = {}

    def start(self, adapter: "Adapter") -> None:
        for callback in self.callbacks:
            callback.start(adapter)

    def step(self, step: "Step") -> None:
        self._call("step", step)

    def finish(self) -> None:
        self._call("finish")

    def _call(self, hook: str, *arguments: object) -> None:
        for callback in tuple(self.callbacks):
            try:
                getattr(callback, hook)(*arguments)
                self._failures.pop(id(callback), None)
            except Exception as error:
                failures = self._failures[id(callback)] = self._failures.get(id(callback), 0) + 1
                name = type(callback).__name__
                log.warning("callback %s failed, adaptation continues: %s: %s", name, type(error).__name__, error)
                if failures == 3:
                    self.callbacks.remove(callback)
                    log.error("callback %s failed %d times in a row and is removed", name, failures)
