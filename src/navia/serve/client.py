"""`navia.Client`: a Python client of the service that needs only the standard library, NumPy and Pillow."""

import base64
import http.client
import io
import json
from collections.abc import Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from navia.errors import NaviaError
from navia.serve.settings import TOP_K, is_key

_IDEMPOTENT = ("GET", "PUT")  # may be sent twice

ImageLike = str | Path | bytes | Image.Image | np.ndarray
Reply = dict[str, Any]


class ServiceError(NaviaError):
    """The service refused a request, or could not be reached.

    Attributes:
        status: HTTP status code; None without a reply.
    """

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Client of one service over one connection that is kept open; use one client per thread.

    When the connection drops, GET and PUT are sent once more. POST (predict, pause, resume, rollback, reset) is not, as the
    service may have executed it.

    Args:
        url: Address of the service.
        key: API key, if the service needs one.
        timeout: Seconds to wait for a reply.

    Example:
        >>> client = navia.Client("http://127.0.0.1:8000")
        >>> client.predict("photo.jpg")["top"][0]["label"]  # doctest: +SKIP
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ServiceError(f"a service has an address like http://127.0.0.1:8000, not {url!r}")
        if key is not None and not is_key(key):
            raise ServiceError("a key consists of ASCII letters, digits and signs, without spaces")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._path, self._origin = parts.path.rstrip("/"), f"{parts.scheme}://{parts.netloc}"
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def predict(self, image: ImageLike, top: int = TOP_K) -> Reply:
        """Predict one image: a path, the bytes of a file, a PIL image or an array (uint8 [H, W, 3], normalised [C, H, W]).

        Returns:
            A dict with top (a list of index, label, probability), entropy and step.
        """
        return self.predict_many([image], top)[0]

    def predict_many(self, images: Iterable[ImageLike], top: int = TOP_K) -> list[Reply]:
        """Predict several images in one request."""
        encoded = [base64.b64encode(_to_bytes(image)).decode() for image in images]
        return cast("list[Reply]", self._request("POST", "/v1/predict", {"images": encoded, "top": top})["predictions"])

    def status(self) -> Reply:
        return self._request("GET", "/v1/status")

    def pause(self) -> Reply:
        return self._request("POST", "/v1/pause")

    def resume(self) -> Reply:
        return self._request("POST", "/v1/resume")

    def reset(self) -> Reply:
        return self._request("POST", "/v1/reset")

    def rollback(self) -> Reply:
        return self._request("POST", "/v1/rollback")

    def save_delta(self, path: str | Path) -> None:
        """Download the adapted parameters to a file for `adapter.load`."""
        Path(path).write_bytes(self._send("GET", "/v1/delta"))

    def load_delta(self, path: str | Path) -> Reply:
        """Let the service continue from a delta of the same model, method and reducer."""
        reply = self._send("PUT", "/v1/delta", Path(path).read_bytes(), "application/octet-stream")
        return cast("Reply", json.loads(reply))

    def ready(self) -> bool:
        try:
            self._send("GET", "/readyz")
        except ServiceError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, verb: str, path: str, body: Reply | None = None) -> Reply:
        """Send a dict as JSON; returns the JSON of the reply."""
        return cast("Reply", json.loads(self._send(verb, path, None if body is None else json.dumps(body).encode())))

    def _send(self, verb: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        headers = self._headers | ({} if body is None else {"content-type": kind})
        if self._connection.sock is not None and wait([self._connection.sock], timeout=0):
            self._connection.close()  # readable, though nothing was requested: the service ended the idle connection
        for last_try in (verb not in _IDEMPOTENT, True):
            try:
                self._connection.request(verb, self._path + path, body, headers)
                reply = self._connection.getresponse()
                content = reply.read()
                break
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if last_try or not isinstance(error, ConnectionResetError | BrokenPipeError):
                    raise ServiceError(f"no reply from {self._origin}: {error or type(error).__name__}") from error
        if reply.status >= 400:
            raise ServiceError(f"{self._origin}{path}: {_error_text(content)} ({reply.status})", reply.status)
        return content


def _to_bytes(image: ImageLike) -> bytes:
    """An image as the bytes of a file, without loss."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise ServiceError(f"cannot read {str(image)!r}: {error.strerror}") from error
    file = io.BytesIO()
    if isinstance(image, Image.Image):
        image.save(file, "PNG", compress_level=1)
    else:
        np.save(file, np.ascontiguousarray(image), allow_pickle=False)
    return file.getvalue()


def _error_text(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return "an unreadable reply"
