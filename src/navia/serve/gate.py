"""A gate between answers and adaptation: closed while an answer is under way, so that adaptation steps aside."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Answers go first, but adaptation gets at least `share` of the time while there is something to learn from.

    A step that would take s seconds alone takes at most s / share seconds, counted from the end of the step before.
    share 0: adaptation waits for answers without limit. clock: seconds, for tests.
    """

    def __init__(self, share: float = 0.2, clock: Callable[[], float] = time.monotonic) -> None:
        self.share, self.clock = share, clock
        self._open = threading.Event()
        self._open.set()
        self._released = False
        self._worked = self._waited = 0.0  # seconds, since the start of the last step
        self._since = clock()  # when the work or the wait under way began

    @contextmanager
    def closed(self) -> Iterator[None]:
        if not self._released:
            self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def release(self) -> None:
        """The service stops: nobody waits here any more."""
        self._released = True
        self._open.set()

    # ---- only for the thread that adapts

    def start_step(self) -> None:
        self._worked = self._waited = 0.0
        self._since = self.clock()

    def pass_through(self) -> None:
        """Within a step: wait while the gate is closed, for as long as the share allows."""
        now = self.clock()
        self._worked += now - self._since
        self._wait(self._patience())
        self._since = self.clock()
        self._waited += self._since - now

    def end_step(self) -> None:
        now = self.clock()
        self._worked += now - self._since
        self._since = now

    def overdue(self) -> bool:
        """Between two steps: whether the next one must not wait for answers any longer."""
        patience = self._patience()
        return patience is not None and self.clock() - self._since >= patience

    def _patience(self) -> float | None:
        """Seconds that adaptation may still wait; None: no limit."""
        if self.share <= 0:
            return None
        return max(0.0, self._worked * (1 - self.share) / self.share - self._waited)

    def _wait(self, seconds: float | None) -> None:
        self._open.wait(seconds)
