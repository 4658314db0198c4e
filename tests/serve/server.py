"""A real `navia serve` process on loopback, for tests and benchmarks."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

import navia

EMBEDDED = ("--model", "embedded", "--source", "embedded", "--reduce", "tome:24")


@dataclass
class Server:
    process: "subprocess.Popen[bytes]"
    url: str
    log: Path
    key: str | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self) -> navia.Client:
        return navia.Client(self.url, key=self.key)

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def kill(self) -> None:
        """As the kernel would: no word, no clean-up."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """As an administrator would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def serving(
    *options: str,
    log: Path,
    key: str | None = None,
    base: Sequence[str] = EMBEDDED,
    one_thread: bool = True,
    **environment_options: str,
) -> Iterator[Server]:
    """Start it on a free port and wait until it is ready; whatever happens, it ends. one_thread: unless OMP_NUM_THREADS
    says otherwise, as tests share the cores. environment_options: given as variables instead of arguments."""
    environment = dict(os.environ)
    if one_thread:
        environment.setdefault("OMP_NUM_THREADS", "1")
    environment.pop("NAVIA_KEY", None)
    if key is not None:
        environment["NAVIA_KEY"] = key
    environment |= {f"NAVIA_SERVE_{name.upper()}": value for name, value in environment_options.items()}
    command = [sys.executable, "-m", "navia.cli", "serve", *base, "--port", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        yield Server(process, _address(process, log), log, key)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def listening(app: Any) -> Iterator[int]:
    """An application in this process, on a port of loopback."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond a few bytes: what the system refuses then, it refuses as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(r"navia serves on (http://\S+?)/ ", log.read_text())
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the service did not start:\n{log.read_text()}")
