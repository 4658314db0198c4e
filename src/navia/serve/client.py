"""`navia.Client`: the service from Python, with nothing but the standard library behind it."""

import base64
import http.client
import io
import json
import selectors
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from navia.errors import NaviaError
from navia.serve.settings import TOP, is_key

_IDEMPOTENT = ("GET", "PUT")  # asked twice, these do the same as once

Picture = str | Path | bytes | Image.Image | np.ndarray


class ServiceError(NaviaError):
    """The service refused, or could not be reached. status: of HTTP, None without a reply."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Talks to one service over one connection that is kept open; use one client per thread.

        client = navia.Client("http://127.0.0.1:8000")
        client.predict("photo.jpg")["top"][0]["label"]

    key: where the service asks for one. timeout: seconds for a reply. When the connection drops, GET and PUT are asked once
    more; POST (predict, pause, resume, rollback, reset) is not, as the service may have carried it out.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ServiceError(f"a service has an address like http://127.0.0.1:8000, not {url!r}")
        if key is not None and not is_key(key):
            raise ServiceError("a key consists of ASCII letters, digits and signs, without spaces")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._base, self._where = parts.path.rstrip("/"), f"{parts.scheme}://{parts.netloc}"
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    # ---- answers

    def predict(self, picture: Picture, top: int = TOP) -> dict[str, Any]:
        """One picture: a path, the bytes of a file, a PIL image, or an array (uint8 [H, W, 3], or normalised [C, H, W])."""
        return self.predict_many([picture], top)[0]

    def predict_many(self, pictures: Iterable[Picture], top: int = TOP) -> list[dict[str, Any]]:
        """Several pictures in one request. Each answer: top (index, label, probability), entropy, step."""
        encoded = [base64.b64encode(_file(picture)).decode() for picture in pictures]
        reply = self._json("POST", "/v1/predict", {"images": encoded, "top": top})
        return cast("list[dict[str, Any]]", reply["predictions"])

    # ---- control

    def status(self) -> dict[str, Any]:
        return self._json("GET", "/v1/status")

    def pause(self) -> dict[str, Any]:
        return self._json("POST", "/v1/pause")

    def resume(self) -> dict[str, Any]:
        return self._json("POST", "/v1/resume")

    def reset(self) -> dict[str, Any]:
        return self._json("POST", "/v1/reset")

    def rollback(self) -> dict[str, Any]:
        return self._json("POST", "/v1/rollback")

    def save_delta(self, path: str | Path) -> None:
        """Download what the service adapted: a file for `adapter.load`."""
        Path(path).write_bytes(self._ask("GET", "/v1/delta"))

    def load_delta(self, path: str | Path) -> dict[str, Any]:
        """Have the service go on from a delta of the same model, method and reducer."""
        content = Path(path).read_bytes()
        return cast("dict[str, Any]", json.loads(self._ask("PUT", "/v1/delta", content, "application/octet-stream")))

    def ready(self) -> bool:
        try:
            self._ask("GET", "/readyz")
        except ServiceError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- transport

    def _json(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        return cast("dict[str, Any]", json.loads(self._ask(verb, path, content, "application/json")))

    def _ask(self, verb: str, path: str, body: bytes | None = None, kind: str | None = None) -> bytes:
        headers = self._headers | ({"content-type": kind} if body is not None and kind else {})
        try:
            status, content = self._exchange(verb, self._base + path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ServiceError(f"no reply from {self._where}: {error or type(error).__name__}") from error
        if status >= 400:
            raise ServiceError(f"{self._where}{path}: {_said(content)} ({status})", status)
        return content

    def _exchange(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        self._close_if_dropped()
        try:
            self._connection.request(verb, path, body, headers)
            reply = self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if verb not in _IDEMPOTENT:  # the service may have done it already
                raise
            self._connection.close()
            self._connection.request(verb, path, body, headers)
            reply = self._connection.getresponse()
        return reply.status, reply.read()

    def _close_if_dropped(self) -> None:
        """The service closes connections that nobody uses: then the next request opens a new one."""
        if self._connection.sock is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.sock, selectors.EVENT_READ)
            if selector.select(timeout=0):  # nothing was asked, so all there can be is the end
                self._connection.close()


def _file(picture: Picture) -> bytes:
    """Any picture as the bytes of a file; nothing is lost on the way."""
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, str | Path):
        try:
            return Path(picture).read_bytes()
        except OSError as error:
            raise ServiceError(f"cannot read {str(picture)!r}: {error.strerror}") from error
    file = io.BytesIO()
    if isinstance(picture, Image.Image):
        picture.save(file, "PNG", compress_level=1)
    else:
        np.save(file, np.ascontiguousarray(picture), allow_pickle=False)
    return file.getvalue()


def _said(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return "an unreadable reply"
