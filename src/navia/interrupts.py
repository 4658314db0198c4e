"""Ctrl-C, put off until what must not be cut in two is done."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_held_back(put_off: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The first Ctrl-C in here calls `put_off` and takes effect at the end; a second one takes effect at once."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield  # signals are the main thread's; without a handler in Python nothing can be put off
        return
    handler, waiting = usual, False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            handler(number, frame)
        waiting = True
        put_off()

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if waiting:
        signal.raise_signal(signal.SIGINT)
