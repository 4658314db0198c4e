"""Who may ask, how much and how often: an ASGI layer in front of the application, so that nothing behind it sees more."""

import asyncio
import collections
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from navia.serve.dashboard import FILES
from navia.serve.settings import Settings, is_loopback

OPEN = {*FILES, "/healthz", "/readyz"}  # nothing in them that a stranger may not see
_MOST_BUCKETS = 10_000

# what a browser may do with any reply
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Refusal(Exception):  # noqa: N818 (it is an answer, not a failure)
    """reason: a short word for the counters; text: what the caller reads."""

    def __init__(self, status: int, reason: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.reason, self.text, self.headers = status, reason, text, dict(headers or {})


class Access:
    """loopback: the service listens on this machine only. refused: is told the reason of each refusal."""

    def __init__(self, app: ASGIApp, settings: Settings, loopback: bool, refused: Callable[[str], None]) -> None:
        self.app, self.limits, self.loopback, self.refused = app, settings.limits, loopback, refused
        self._keys = {name: _digest(secret) for name, secret in settings.keys.items()}
        self._names = {name.lower() for name in settings.names}
        self._buckets = Buckets(self.limits.rate, self.limits.burst)
        self._wrong_keys = Buckets(self.limits.wrong_keys / 60, self.limits.wrong_keys)
        self._held = 0  # bytes of the bodies under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, body = False, _Body(receive, self._admit, self.limits.seconds)

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, body.receive, send_safely)
        except Refusal as refusal:
            self.refused(refusal.reason)
            if not begun:
                await _reply(send_safely, refusal)
        finally:
            self._held -= body.size

    def _check(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        self._check_host(headers)
        caller = self._caller(headers)
        if path not in OPEN:
            address = (scope.get("client") or ("",))[0]
            if self._keys and caller is None:
                wait = self._wrong_keys.wait(address) if "authorization" in headers else 0.0
                if wait > 0:  # a right key is let in all the same: others may share the address
                    raise Refusal(429, "key", "too many wrong keys", {"retry-after": str(int(wait) + 1)})
                raise Refusal(
                    401, "key", "a valid API key is needed: Authorization: Bearer KEY", {"www-authenticate": "Bearer"}
                )
            wait = self._buckets.wait(caller or address)
            if wait > 0:
                text = f"more than {self.limits.rate:g} requests a second"
                raise Refusal(429, "rate", text, {"retry-after": str(int(wait) + 1)})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.body_bytes:
            raise Refusal(413, "size", f"the body is larger than {self.limits.body_bytes:,} bytes")

    def _check_host(self, headers: Headers) -> None:
        """A page of another origin must not reach the service through its visitor's browser (also by rebinding a name)."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self.loopback and host not in self._names and not is_loopback(_split(f"//{host}").hostname):
            raise Refusal(403, "host", "this service answers under localhost only; behind a proxy give it --name HOST")
        if origin is not None and _split(origin).netloc.lower() not in {host, *self._names}:
            raise Refusal(403, "origin", "requests of pages of another origin are not answered")

    def _caller(self, headers: Headers) -> str | None:
        """The name of the key that was given, looked for in constant time."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip() if kind.lower() == "bearer" else "")
        found = [name for name, known in self._keys.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def _admit(self, more: int, size: int) -> None:
        """Of a body that is `size` bytes so far, `more` bytes more."""
        self._held += more
        if size > self.limits.body_bytes:
            raise Refusal(413, "size", f"the body is larger than {self.limits.body_bytes:,} bytes")
        if self._held > max(size, self.limits.held_bytes):  # one alone is always let in
            raise Refusal(503, "busy", "too many bodies are under way already", {"retry-after": "1"})


class _Body:
    """A body that must arrive in time; its parts are admitted one by one, whatever its header said."""

    def __init__(self, receive: Receive, admit: Callable[[int, int], None], seconds: float) -> None:
        self.size = 0
        self._receive, self._admit, self._seconds = receive, admit, seconds
        self._deadline, self._whole = time.monotonic() + seconds, False

    async def receive(self) -> Message:
        if self._whole:  # only a disconnection may follow, and that may take as long as it likes
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.001, self._deadline - time.monotonic()))
        except TimeoutError:
            raise Refusal(408, "slow", f"the body did not arrive within {self._seconds:g} s") from None
        more = len(message.get("body", b""))
        self.size += more
        self._whole = not message.get("more_body", False)
        self._admit(more, self.size)
        return message


class Buckets:
    """Token buckets: each caller may make `burst` requests at once and `rate` a second in the long run; rate 0: no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def wait(self, caller: str, now: float | None = None) -> float:
        """Take a token: 0, or the seconds until there is one."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        left, before = self._left.pop(caller, (float(self.burst), now))
        left = min(float(self.burst), left + (now - before) * self.rate)
        allowed = left >= 1
        self._left[caller] = (left - 1 if allowed else left, now)
        while len(self._left) > _MOST_BUCKETS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise Refusal(400, "host", "the Host or Origin of the request is no address") from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def _reply(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.text}).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **refusal.headers,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
