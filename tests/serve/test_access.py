"""Who may ask, how much and how often: against a real server, with requests made by hand."""

import asyncio
import collections
import contextlib
import hmac
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

import navia
from navia.serve.client import ServiceError
from navia.serve.middleware import _MAX_CALLERS, PUBLIC_PATHS, AccessMiddleware, RateLimiter
from navia.serve.settings import Limits, ServiceSettings
from tests.serve.server import Server, serving, until

KEY, OTHER, COLONS = "a-secret-of-the-first-user", "a-secret-of-the-second-user", "a:secret:with:colons"
CONNECTIONS = 100
VARIABLE = "another:secret:with:colons"
WRONG_KEYS = 200  # a minute; tests send fewer, but for the one that counts them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "keys").write_text(f"first:{KEY}\n\n{OTHER}\nthird:{COLONS}\n")
    options = ("--key-file", str(folder / "keys"), "--max-body", "0.1", "--timeout", "2", "--rate", "5", "--burst", "30")
    options += ("--name", "navia.example", "--wrong-keys", str(WRONG_KEYS), "--max-connections", str(CONNECTIONS))
    with serving(*options, log=folder / "log", key=VARIABLE) as running:
        yield running


def ask(server: Server, verb: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request(verb, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, json.loads(content) if content.startswith(b"{") else {}


PRIVATE = [
    *(("GET", f"/v1/{name}") for name in ("status", "events?once=true", "recent", "delta")), ("PUT", "/v1/delta"),
    *(("POST", f"/v1/{name}") for name in ("predict", "reset", "pause", "resume", "rollback")),
    ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nothing/here"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "path"), PRIVATE)
@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer first"])
def test_nothing_without_a_key(server: Server, verb: str, path: str, given: str | None) -> None:
    status, reply = ask(server, verb, path, **({} if given is None else {"authorization": given}))
    assert status == 401
    assert "key" in str(reply["error"])


@pytest.mark.parametrize("key", [KEY, OTHER, COLONS, VARIABLE])
def test_each_key_opens(server: Server, key: str) -> None:
    assert navia.Client(server.url, key=key).status()["model"] == "embedded"


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
def test_what_a_stranger_may_see(server: Server, path: str) -> None:
    assert ask(server, "GET", path)[0] == 200


def test_files_of_the_page_say_what_they_are(server: Server) -> None:
    """Browsers run no script of another kind, as they are told not to guess."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    kinds = set()
    for path in PUBLIC_PATHS - {"/healthz", "/readyz"}:
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        kinds.add((path.rpartition(".")[2], reply.getheader("content-type")))
    assert kinds == {
        ("/", "text/html; charset=utf-8"),
        ("css", "text/css; charset=utf-8"),
        ("js", "text/javascript; charset=utf-8"),
    }


def test_every_reply_ties_the_browser_down(server: Server) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    for path in ("/", "/v1/status"):
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
        policy = str(reply.getheader("content-security-policy"))
        assert "default-src 'none'" in policy
        assert not re.search(r"unsafe|http|\*", policy)  # neither inline code nor other hosts
        assert reply.getheader("x-content-type-options") == "nosniff"
        assert reply.getheader("server") is None


def test_no_reply_invites_pages_of_others(server: Server) -> None:
    """CORS is what a browser asks for before it shows a reply to a page of another origin."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    for verb, origin in (("OPTIONS", "http://evil.example"), ("OPTIONS", server.url), ("GET", server.url), ("GET", None)):
        headers = {"authorization": f"Bearer {KEY}", "access-control-request-method": "POST"}
        connection.request(verb, "/v1/status", headers=headers | ({} if origin is None else {"origin": origin}))
        reply = connection.getresponse()
        reply.read()
        assert not [name for name, _ in reply.getheaders() if name.lower().startswith("access-control")]


def test_other_hosts_and_origins_are_refused(server: Server) -> None:
    good = {"authorization": f"Bearer {KEY}"}
    assert ask(server, "GET", "/v1/status", host="evil.example", **good)[0] == 403
    assert ask(server, "POST", "/v1/pause", origin="http://evil.example", **good)[0] == 403
    assert ask(server, "POST", "/v1/pause", origin="null", **good)[0] == 403
    assert ask(server, "POST", "/v1/resume", origin=server.url, **good)[0] == 200


def test_a_proxy_may_pass_its_own_name_on_or_not(server: Server) -> None:
    good, page = {"authorization": f"Bearer {KEY}"}, "https://navia.example"
    assert ask(server, "GET", "/healthz", host="navia.example")[0] == 200
    assert ask(server, "POST", "/v1/resume", host="Navia.Example", origin=page, **good)[0] == 200
    assert ask(server, "POST", "/v1/resume", origin=page, **good)[0] == 200  # the proxy says Host: 127.0.0.1:8000
    assert ask(server, "POST", "/v1/resume", host="navia.example", origin="http://evil.example", **good)[0] == 403
    assert ask(server, "POST", "/v1/resume", origin=f"{page}:8443", **good)[0] == 403  # another port is another origin


@pytest.mark.parametrize("names", [{"host": "["}, {"host": "localhost", "origin": "http://["}])
def test_names_that_are_none_are_refused(server: Server, names: dict[str, str]) -> None:
    assert ask(server, "GET", "/healthz", **names) == (400, {"error": "the Host or Origin of the request is no address"})
    assert "Traceback" not in server.log.read_text()


def test_large_bodies_are_refused_before_they_are_read(server: Server) -> None:
    status, reply = ask(
        server, "POST", "/v1/predict", b"x" * 200_000, authorization=f"Bearer {KEY}", content_type="image/png"
    )
    assert status == 413
    assert "104,857 bytes" in str(reply["error"])


def raw(server: Server, head: str, *parts: bytes) -> bytes:
    """A request written by hand; the reply, or what there is of it."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n")
        for part in parts:
            connection.sendall(part)
        return connection.recv(65536)


HEAD = f"POST /v1/predict HTTP/1.1\nhost: localhost\nauthorization: Bearer {KEY}\ncontent-type: image/png\n"


def test_a_body_that_hides_its_size_is_cut_off(server: Server) -> None:
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    reply = raw(server, HEAD + "transfer-encoding: chunked\n", *[chunk] * 4, b"0\r\n\r\n")
    assert b" 413 " in reply.split(b"\r\n")[0]


def test_bodies_under_way_are_bounded_in_sum() -> None:
    """The second body meets the first; when that is done there is room, and one alone is let in whatever its size."""
    settings, replies = ServiceSettings(limits=Limits(max_body_bytes=1000, max_total_bytes=100)), []

    async def ask_all() -> None:
        first_came, first_may_end = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            if scope["path"] == "/first":
                first_came.set()
                await first_may_end.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        access = AccessMiddleware(app, settings, loopback=False, on_refused=lambda _: None)

        async def post(path: str, size: int = 80) -> None:
            async def receive() -> Message:
                return {"type": "http.request", "body": b"x" * size, "more_body": False}

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    replies.append((path, message["status"]))

            await access({"type": "http", "path": path, "headers": []}, receive, send)

        first = asyncio.create_task(post("/first"))
        await first_came.wait()
        await post("/second")
        first_may_end.set()
        await first
        await post("/third", size=900)

    asyncio.run(ask_all())
    assert replies == [("/second", 503), ("/first", 200), ("/third", 200)]


def test_a_body_that_does_not_come_is_not_waited_for(server: Server) -> None:
    reply = raw(server, HEAD + "content-length: 1000\n", b"x")
    assert b" 408 " in reply.split(b"\r\n")[0]


def test_no_secret_in_the_log(server: Server) -> None:
    navia.Client(server.url, key=KEY).pause()
    navia.Client(server.url, key=KEY).resume()
    text = server.log.read_text()
    assert KEY not in text
    assert OTHER not in text
    assert "secret" not in text
    assert "/v1/" not in text  # requests are counted, not written down


def test_more_connections_than_allowed_are_refused(server: Server) -> None:
    """Idle ones count too; afterwards there is room again."""
    place = urlsplit(server.url)
    with contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS):
            opened.enter_context(socket.create_connection((place.hostname, place.port), timeout=30))
        assert ask(server, "GET", "/healthz")[0] == 503
    until(lambda: ask(server, "GET", "/healthz")[0] == 200)


def test_too_many_requests(server: Server) -> None:
    """Of one key: the other's are answered. (Uses up the first key's share: the last test of this server.)"""
    hasty = navia.Client(server.url, key=KEY)
    with pytest.raises(ServiceError, match="requests a second") as caught:
        collections.deque((hasty.status() for _ in range(60)), maxlen=0)
    assert caught.value.status == 429
    assert navia.Client(server.url, key=OTHER).status()["served"]["refused"]["rate"] >= 1


def test_wrong_keys_are_throttled(server: Server) -> None:
    """The first so many a minute are told that they are wrong, the others when to come again; right ones are let in."""

    def try_key(given: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        connection.request("GET", "/v1/status", headers={"authorization": f"Bearer {given}"})
        reply = connection.getresponse()
        reply.read()
        return reply

    replies = (try_key(f"a-guess-at-the-secret-{i}") for i in range(100 * WRONG_KEYS))
    refused = next(reply for reply in replies if reply.status != 401)
    assert refused.status == 429
    assert 1 <= int(str(refused.getheader("retry-after"))) <= 2
    assert try_key(OTHER).status == 200
    assert ask(server, "GET", "/v1/status")[0] == 401  # no key at all: the page asks for one


def test_few_callers_are_remembered() -> None:
    buckets = RateLimiter(rate=1, burst=1)
    for number in range(_MAX_CALLERS + 500):
        assert buckets.wait(str(number), 0.0) == 0
    assert len(buckets._left) == _MAX_CALLERS


def test_buckets_fill_again() -> None:
    buckets = RateLimiter(rate=2, burst=3)
    assert [buckets.wait("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert buckets.wait("a", 0.0) == pytest.approx(0.5)
    assert buckets.wait("b", 0.0) == 0
    assert buckets.wait("a", 0.5) == 0
    assert buckets.wait("a", 0.5) > 0
    assert [buckets.wait("a", 100.0) for _ in range(4)][:3] == [0, 0, 0]
    assert RateLimiter(0, 1).wait("a") == RateLimiter(0, 1).wait("a") == 0


def test_keys_are_kept_as_digests_and_all_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """In constant time, and as many whether one fits or none: how long it takes tells nothing."""
    seen: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or real(a, b))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not asked here")

    access = AccessMiddleware(app, ServiceSettings(keys={"a": KEY, "b": OTHER}), loopback=False, on_refused=lambda _: None)
    for given, name in ((KEY, "a"), (OTHER, "b"), ("wrong", None)):
        seen.clear()
        assert access._caller(Headers({"authorization": f"Bearer {given}"})) == name
        assert len(seen) == 2
        assert all(len(a) == len(b) == 32 for a, b in seen)
    assert KEY not in repr(vars(access))


def test_keys_are_no_option() -> None:
    from tests.test_cli import invoke

    for option in ("--key", "--keys", "--api-key"):
        result = invoke("serve", "--model", "embedded", option, KEY)
        assert result.exit_code == 2
        assert "No such option" in result.output


def test_keys_are_needed_beyond_this_machine(tmp_path: Path) -> None:
    from tests.test_cli import invoke

    for arguments, words in (
        (("--host", "0.0.0.0"), "NAVIA_KEY"),
        (("--host", "example.org"), "NAVIA_KEY"),
        (("--key-file", str(tmp_path / "none")), "cannot read keys"),
        (("--key-file", str(_file(tmp_path / "short", "short"))), "too short"),
        (("--key-file", str(_file(tmp_path / "empty", "\n"))), "no keys"),
        (("--key-file", str(_file(tmp_path / "twice", f"a:{KEY}\na:{OTHER}"))), "two keys are named 'a'"),
        (("--key-file", str(_file(tmp_path / "foreign", "anna:schlüssel-schlüssel"))), "'anna' is no key: ASCII"),
        (("--key-file", str(_file(tmp_path / "spaces", "anna:two words are too much"))), "'anna' is no key: ASCII"),
        (
            ("--key-file", str(_file(tmp_path / "nameless", "?a=b:a-key-that-has-a-colon"))),
            "line 1 of the key file: a key with",
        ),
    ):
        result = invoke("serve", "--model", "embedded", *arguments)
        assert result.exit_code != 0
        assert words in str(result.exception or result.output)


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
