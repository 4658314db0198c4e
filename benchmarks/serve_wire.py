"""A light load generator for `navia serve`: HTTP/1.1 over a few kept connections, whole requests prepared beforehand."""

import asyncio
import re
import selectors
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.serve.server import Server, serving

__all__ = ["Reply", "Run", "Server", "Wire", "closed_loop", "open_loop", "request", "run", "serving"]

Result = TypeVar("Result")

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Reply:
    """status 0: the connection ended without a reply."""

    status: int
    body: bytes


@dataclass
class Run:
    """latencies, lags: seconds of each answered request from its time, and how late it was sent. cpu: of this process."""

    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run with timers finer than a millisecond, which epoll would round up to."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(work)


def request(path: str, body: bytes | None = None, kind: str = "image/png", verb: str = "POST") -> bytes:
    head = f"{verb} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body is not None:
        head += f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + (body or b"")


class Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._buffer, self._wanted, self._last = bytearray(), 0, False
        self._reply: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, port: int) -> "Wire":
        return (await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port))[1]

    @property
    def closed(self) -> bool:
        return self._last or self._transport is None or self._transport.is_closing()

    async def ask(self, content: bytes, seconds: float = 60.0) -> Reply:
        """A prepared request -> its reply. Asks anew over the same connection once this one is answered."""
        if self._transport is None:
            return Reply(0, b"")
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(content)
        try:
            return await asyncio.wait_for(self._reply, seconds)
        except TimeoutError:
            self.close()
            return Reply(0, b"")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- called by asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._wanted:
            end = self._buffer.find(b"\r\n\r\n")
            length = _LENGTH.search(self._buffer, 0, end) if end >= 0 else None
            if end < 0 or length is None:
                return
            self._wanted = end + 4 + int(length[1])
            self._last = b"\r\nconnection: close" in self._buffer[:end].lower()
        if len(self._buffer) >= self._wanted:
            body = bytes(self._buffer[self._buffer.find(b"\r\n\r\n") + 4 :])
            self._finish(Reply(int(self._buffer[9:12]), body))

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._finish(Reply(0, b""))

    def _finish(self, reply: Reply) -> None:
        self._buffer.clear()
        self._wanted = 0
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)


async def closed_loop(port: int, requests: Sequence[bytes], connections: int, seconds: float, most: int) -> Run:
    """Each connection asks again as soon as it is answered, for so many seconds and at most so many requests."""
    result, start, cpu, sent = Run(), time.perf_counter(), time.process_time(), 0

    async def ask_on() -> None:
        nonlocal sent
        wire = await Wire.to(port)
        while not wire.closed and sent < most and (begun := time.perf_counter()) < start + seconds:
            sent += 1
            reply = await wire.ask(requests[sent % len(requests)])
            _note(result, reply, begun, begun)
        wire.close()

    await asyncio.gather(*(ask_on() for _ in range(connections)))
    result.seconds, result.cpu = time.perf_counter() - start, time.process_time() - cpu
    return result


async def open_loop(port: int, requests: Sequence[bytes], times: Iterable[float], connections: int) -> Run:
    """Requests at given times (seconds from now), whatever became of those before. Latency counts from that time, also
    where all connections were busy then."""
    result, cpu = Run(), time.process_time()
    free: asyncio.Queue[Wire] = asyncio.Queue()
    for _ in range(connections):
        free.put_nowait(await Wire.to(port))
    start, tasks = time.perf_counter(), set()

    async def ask(number: int, due: float) -> None:
        wire = await free.get()
        begun = time.perf_counter()
        reply = await wire.ask(requests[number % len(requests)])
        _note(result, reply, due, begun)
        free.put_nowait(await Wire.to(port) if wire.closed else wire)

    for number, at in enumerate(times):
        wait = start + at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.add(asyncio.create_task(ask(number, start + at)))
    await asyncio.gather(*tasks)
    result.seconds, result.cpu = time.perf_counter() - start, time.process_time() - cpu
    while not free.empty():
        free.get_nowait().close()
    return result


def _note(result: Run, reply: Reply, due: float, begun: float) -> None:
    if reply.status == 200:
        result.latencies.append(time.perf_counter() - due)
        result.lags.append(begun - due)
    else:
        result.failed += 1
