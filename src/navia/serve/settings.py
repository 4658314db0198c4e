"""ServiceSettings of a service. docs/security.md gives the reason for every limit."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from navia.errors import InputError

TOP_K = 5  # classes per image, unless a request asks for another number


@dataclass(frozen=True)
class Limits:
    """What a request may cost. 0 switches `rate` and `wrong_keys` off."""

    max_body_bytes: int = 32 * 2**20  # of one request
    max_images: int = 64  # in one request
    max_pixels: int = 40_000_000  # of one image
    min_side: int = 8  # pixels of one image
    queue_size: int = 256  # images that may wait for their prediction
    timeout: float = 30.0  # seconds to receive a body, and to predict
    rate: float = 0.0  # requests per second of one key
    burst: int = 20  # requests of one key at once
    wrong_keys: int = 20  # per minute and address; further ones get 429 instead of 401
    max_streams: int = 16  # open dashboards
    max_connections: int = 1024
    max_total_bytes: int = 512 * 2**20  # of all bodies that are being received or processed


@dataclass(frozen=True)
class Batching:
    """How images are batched for prediction and for adaptation."""

    batch_size: int = 16  # images predicted together, at most
    batch_timeout: float = 0.005  # seconds that the first image of a batch waits for more
    adapt_batch: int = 32  # images of one adaptation step
    adapt_wait: float = 30.0  # seconds after which a step is made with fewer images
    min_adapt_batch: int = 8  # fewest images of a step
    adapt_threads: int = 1  # CPU threads of the adaptation
    adapt_share: float = 0.2  # least share of the time that adaptation gets under load; 0: only idle time


@dataclass(frozen=True)
class ServiceSettings:
    """Everything that can be set about a service beside its model and method."""

    batching: Batching = field(default_factory=Batching)
    limits: Limits = field(default_factory=Limits)
    keys: dict[str, str] = field(default_factory=dict, repr=False)  # name -> secret; empty: no key is needed (loopback only)
    names: tuple[str, ...] = ()  # host names of proxies in front of the service
    keep_images: int = 12  # images kept for the dashboard
    checkpoint_every: int = 20  # steps
    checkpoint_seconds: float = 60.0  # from a step to its checkpoint, at most
    decode_threads: int = 0  # 0: one per CPU core, at least 2


def is_key(text: str) -> bool:
    """Whether a key can be sent in a header: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text and text != ""


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address reaches only this machine."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def read_keys(path: Path | None, variable: str, value: str) -> dict[str, str]:
    """Read API keys as name -> secret. `value` of the environment variable is one key; a line of the file is NAME:KEY, split
    at its first colon, or a KEY without colons."""
    keys, lines = {variable: value} if value else {}, []
    if path is not None:
        try:
            lines = list(filter(None, map(str.strip, path.read_text(encoding="utf-8-sig").split("\n"))))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read keys from {str(path)!r}") from error
        if not lines:
            raise InputError(f"no keys in {str(path)!r}")
    for number, line in enumerate(lines, 1):
        name, colon, secret = line.partition(":")
        if colon and not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"line {number} of the key file: a key with a colon needs a name before it, as NAME:KEY")
        name, secret = (name, secret) if colon else (f"key {number}", line)
        if name in keys:
            raise InputError(f"two keys are named {name!r}: give each its own name")
        keys[name] = secret
    for name, secret in keys.items():
        if not is_key(secret):
            raise InputError(f"{name!r} is no key: ASCII letters, digits and signs only, without spaces")
        if len(secret) < 16:
            raise InputError(f"{name!r} is too short: a key has at least 16 characters, e.g. from openssl rand -hex 32")
    return keys
