"""A `navia` command in a process of its own that waits for a signal at a known place: no test has to hit a moment."""

import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 300.0  # seconds; far more than needed, for busy machines

# On call number `at` of the function, the process makes the file and waits until SIGINT has arrived (or SIGKILL ends it).
# SIGINT is blocked meanwhile, so that it is neither missed nor handled before the function begins.
_PROGRAM = """
import importlib, signal, sys, time
from pathlib import Path

reached, function, at, *sys.argv[1:] = sys.argv[1:]
module, name = function.rsplit(".", 1)
module = importlib.import_module(module)
original, calls = getattr(module, name), 0

def paused(*arguments, **options):
    global calls
    calls += 1
    if calls == int(at):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        Path(reached).touch()
        while signal.SIGINT not in signal.sigpending():
            time.sleep(0.01)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return original(*arguments, **options)

setattr(module, name, paused)
from navia.cli.main import main
main()
"""


def start_paused(function: str, at: int, arguments: list[str], folder: Path) -> "subprocess.Popen[str]":
    """`navia ARGUMENTS` as it stands before call number `at` of `function` (module.name); stderr is kept."""
    reached = folder / "reached"
    command = [sys.executable, "-c", _PROGRAM, str(reached), function, str(at), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE
    while not reached.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"{function} was not called {at} times: {process.communicate()[1]}")
        time.sleep(0.01)
    return process
