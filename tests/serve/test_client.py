"""`navia.Client` against servers that drop connections: what is asked again, and what never is."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import navia
from navia.serve.client import ServiceError

REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Dropper:
    """Reads requests and writes them down. replies: how many of a connection's requests are answered before it is closed."""

    def __init__(self, replies: int) -> None:
        self.replies, self.requests = replies, []  # type: ignore[var-annotated]
        self.closed = threading.Semaphore(0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # the test is over
            with connection:
                for _ in range(self.replies):
                    if not self._read(connection):
                        break
                    connection.sendall(REPLY)
                if self.replies == 0:
                    self._read(connection)
            self.closed.release()

    def _read(self, connection: socket.socket) -> bool:
        """A whole request: head and body."""
        text = b""
        while b"\r\n\r\n" not in text:
            more = connection.recv(65536)
            if not more:
                return False
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        while len(body) < sum(lengths):
            body += connection.recv(65536)
        self.requests.append(head.split(b" HTTP")[0].decode())
        return True


@contextmanager
def dropping(replies: int) -> Iterator[Dropper]:
    server = Dropper(replies)
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        server.thread.join(10)


POSTS: dict[str, Callable[[navia.Client], object]] = {
    "POST /v1/rollback": navia.Client.rollback,
    "POST /v1/reset": navia.Client.reset,
    "POST /v1/pause": navia.Client.pause,
    "POST /v1/predict": lambda client: client.predict(b"a picture"),
}


@pytest.mark.parametrize("request_line", POSTS)
def test_what_may_have_been_done_is_not_asked_again(request_line: str) -> None:
    with dropping(replies=0) as server, navia.Client(server.url, timeout=30) as client:
        with pytest.raises(ServiceError, match="no reply"):
            POSTS[request_line](client)
        assert server.requests == [request_line]


def test_what_changes_nothing_is_asked_once_more() -> None:
    with dropping(replies=0) as server, navia.Client(server.url, timeout=30) as client:
        with pytest.raises(ServiceError, match="no reply"):
            client.status()
        assert server.requests == ["GET /v1/status"] * 2


def test_a_connection_that_was_closed_while_idle_is_opened_anew() -> None:
    """Also for a POST: nothing was sent on the old one."""
    with dropping(replies=1) as server, navia.Client(server.url, timeout=30) as client:
        for _ in range(3):
            assert client.rollback() == {}
            assert server.closed.acquire(timeout=30)
        assert server.requests == ["POST /v1/rollback"] * 3


@pytest.mark.parametrize("key", ["schlüssel-schlüssel", "with a space in the middle", "line\nbreak-in-the-middle"])
def test_a_key_that_fits_into_no_header_is_refused(key: str) -> None:
    with pytest.raises(ServiceError, match="ASCII"):
        navia.Client(key=key)
