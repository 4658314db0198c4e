"""The work: here or in processes, counted, and stopped without losing what is done."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import wait as wait_for_any
from typing import NoReturn

from navia.data.corrupt_tree.recipe import Outcome, Recipe, Unit
from navia.errors import InputError, NaviaError
from navia.interrupts import interrupts_held_back

Progress = Callable[[int, int], None]


@dataclass
class Tally:
    """How far a run is, and what stops it."""

    total: int
    kept: int
    skip_unreadable: bool
    progress: Progress | None
    written: int = 0
    left_out: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    trouble: str = ""

    def note(self, outcome: Outcome) -> None:
        self.written += outcome.written
        if outcome.unreadable:
            self._leave_out(outcome)
        self.trouble = self.trouble or outcome.unwritable
        self.report()

    def _leave_out(self, outcome: Outcome) -> None:
        name = outcome.unit.picture.name
        reason = outcome.unreadable if name in outcome.unreadable else f"{name}: {outcome.unreadable}"
        self.left_out += len(outcome.unit.severities) - outcome.written
        self.unreadable[name] = reason
        if not self.skip_unreadable:
            self.trouble = self.trouble or f"{reason} (leave out such images with --skip-unreadable or skip_unreadable=True)"

    def report(self) -> None:
        if self.progress is not None:
            self.progress(self.kept + self.written + self.left_out, self.total)

    def how_far(self) -> str:
        return f"{self.kept + self.written} of {self.total} files are done, the same command goes on from there"


def work(recipe: Recipe, units: Iterator[Unit], workers: int, tally: Tally) -> None:
    try:
        if workers == 1:
            _work_here(recipe, units, tally)
        else:
            _work_in_processes(recipe, units, workers, tally)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(tally.how_far()) from None
    except BrokenProcessPool as error:
        raise NaviaError(f"a worker process died, perhaps of too little memory; {tally.how_far()}") from error
    if tally.trouble:
        raise InputError(f"{tally.trouble}; {tally.how_far()}")


def _work_here(recipe: Recipe, units: Iterator[Unit], tally: Tally) -> None:
    for unit in units:
        with interrupts_held_back():  # what is on the disk has been counted
            tally.note(recipe.do(unit))
        if tally.trouble:
            return


def _work_in_processes(recipe: Recipe, units: Iterator[Unit], workers: int, tally: Tally) -> None:
    # Started anew instead of forked: the caller may have threads, and locks that they hold.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    waiting: set[Future[Outcome]] = set()
    try:
        with interrupts_held_back(), _interrupts_blocked_in_workers():
            waiting |= {pool.submit(recipe.do, unit) for unit in islice(units, 2 * workers)}
        while waiting and not tally.trouble:
            finished = wait(waiting, return_when=FIRST_COMPLETED).done
            with interrupts_held_back():  # or a unit would be neither waited for nor counted
                for future in finished:
                    waiting.remove(future)
                    tally.note(future.result())
                waiting |= {pool.submit(recipe.do, unit) for unit in islice(units, len(finished))}
    finally:
        pool.shutdown(cancel_futures=True)
        for future in waiting:  # what was under way has been finished, and counts
            if not future.cancelled() and future.exception() is None:
                tally.note(future.result())


@contextlib.contextmanager
def _interrupts_blocked_in_workers() -> Iterator[None]:
    """Ctrl-C goes to all processes of a terminal. Those started in here inherit that it is blocked, and leave it to
    this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(ModuleNotFoundError):
        import cv2

        cv2.setNumThreads(1)  # the workers share the cores; more threads would wait for each other


def _die_with_parent() -> NoReturn:
    """A worker waits for work for ever: nobody tells it when its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_any([parent.sentinel])
    os._exit(1)
