"""ASGI middleware that checks host, origin, API key, rate and size of every request before the application sees it."""

import asyncio
import collections
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from navia.serve.settings import ServiceSettings, is_loopback

_DASHBOARD = Path(__file__).parent / "dashboard"
_TYPES = {".css": "text/css", ".js": "text/javascript"}  # not guessed: the table of the system may be odd
# path -> file and media type of the dashboard
DASHBOARD_FILES = {"/": (_DASHBOARD / "index.html", "text/html")} | {
    f"/{file.name}": (file, _TYPES[file.suffix]) for file in sorted(_DASHBOARD.iterdir()) if file.suffix in _TYPES
}
PUBLIC_PATHS = {*DASHBOARD_FILES, "/healthz", "/readyz"}  # need no key
_MAX_CALLERS = 10_000

# sent with every reply
_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class RequestRefusedError(HTTPException):
    """A request that gets an error reply. reason: label of the counter; text: what the client reads."""

    def __init__(self, status: int, reason: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, text, headers)
        self.reason = reason


class AccessMiddleware:
    """Refuses requests. loopback: the service listens on this machine only. on_refused: called with the reason."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, loopback: bool, on_refused: Callable[[str], None]) -> None:
        self.app, self.limits, self.loopback, self.on_refused = app, settings.limits, loopback, on_refused
        self._keys = {name: _digest(secret) for name, secret in settings.keys.items()}
        self._names = {name.lower() for name in settings.names}
        self._rates = RateLimiter(self.limits.rate, self.limits.burst)
        self._wrong_keys = RateLimiter(self.limits.wrong_keys / 60, self.limits.wrong_keys)
        self._total_bytes = 0  # of all bodies in progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, size, complete, deadline = False, 0, False, time.monotonic() + self.limits.timeout

        async def receive_limited() -> Message:
            """The next part of the body, which must arrive in time and be small enough, whatever its header says."""
            nonlocal size, complete
            if complete:  # only a disconnection can follow, at any time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                raise RequestRefusedError(408, "slow", f"the body did not arrive within {self.limits.timeout:g} s") from None
            received = len(message.get("body", b""))
            size, complete = size + received, not message.get("more_body", False)
            self._total_bytes += received
            self._check_size(size)
            if self._total_bytes > max(size, self.limits.max_total_bytes):  # a single body is always accepted
                raise RequestRefusedError(503, "busy", "too many requests are in progress", {"retry-after": "1"})
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], *_SECURITY_HEADERS]}
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive_limited, send_with_headers)
        except RequestRefusedError as error:
            self.on_refused(error.reason)
            if not started:
                headers = {"connection": "close", **(error.headers or {})}
                await JSONResponse({"error": error.detail}, error.status_code, headers)(scope, receive, send_with_headers)
        finally:
            self._total_bytes -= size

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if scope["path"] not in PUBLIC_PATHS:
            self._check_caller(headers, (scope.get("client") or ("",))[0])
        length = headers.get("content-length", "0")
        self._check_size(int(length) if length.isdecimal() else self.limits.max_body_bytes + 1)

    def _check_host(self, headers: Headers) -> None:
        """Refuse pages of other origins, also those that reach the service by DNS rebinding."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self.loopback and host not in self._names and not is_loopback(_split(f"//{host}").hostname):
            raise RequestRefusedError(403, "host", "this service is for localhost only; behind a proxy give it --name HOST")
        if origin is not None and _split(origin).netloc.lower() not in {host, *self._names}:
            raise RequestRefusedError(403, "origin", "requests from pages of another origin are refused")

    def _check_caller(self, headers: Headers, address: str) -> None:
        """Refuse wrong keys and too many requests."""
        caller = self._caller(headers)
        if self._keys and caller is None:
            wait = self._wrong_keys.wait(address) if "authorization" in headers else 0.0
            if wait > 0:  # a right key is accepted all the same: others may share the address
                raise RequestRefusedError(429, "key", "too many wrong keys", {"retry-after": str(int(wait) + 1)})
            text = "a valid API key is needed: Authorization: Bearer KEY"
            raise RequestRefusedError(401, "key", text, {"www-authenticate": "Bearer"})
        wait = self._rates.wait(caller or address)
        if wait > 0:
            text = f"more than {self.limits.rate:g} requests a second"
            raise RequestRefusedError(429, "rate", text, {"retry-after": str(int(wait) + 1)})

    def _caller(self, headers: Headers) -> str | None:
        """The name of the given key, compared in constant time."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip() if kind.lower() == "bearer" else "")
        found = [name for name, known in self._keys.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def _check_size(self, size: int) -> None:
        if size > self.limits.max_body_bytes:
            raise RequestRefusedError(413, "size", f"the body is larger than {self.limits.max_body_bytes:,} bytes")


class RateLimiter:
    """Token bucket per caller: `burst` requests at once and `rate` per second in the long run. rate 0: no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def wait(self, caller: str, now: float | None = None) -> float:
        """Take a token. Returns 0, or the seconds until there is one."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic() if now is None else now
        left, before = self._left.pop(caller, (float(self.burst), now))
        left = min(float(self.burst), left + (now - before) * self.rate)
        allowed = left >= 1
        self._left[caller] = (left - 1 if allowed else left, now)
        while len(self._left) > _MAX_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise RequestRefusedError(400, "host", "the Host or Origin of the request is no address") from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
