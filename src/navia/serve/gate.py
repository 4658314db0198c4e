"""A gate between answers and adaptation: closed while an answer is under way, so that adaptation steps aside."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """most: seconds that a passer waits at most, so that a service under full load still adapts a little, and can stop."""

    def __init__(self, most: float = 1.0) -> None:
        self.most = most
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def pass_through(self) -> None:
        self._open.wait(self.most)
