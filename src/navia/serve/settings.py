"""How a service is set up. Every limit has a reason in docs/security.md."""

import ipaddress
from dataclasses import dataclass, field

TOP = 5  # classes named for each image, unless a request says otherwise


@dataclass(frozen=True)
class Limits:
    """body_bytes, images: of one request. pixels, side: of one picture, most and least. queue: images that may wait for
    their answer. seconds: for receiving a body, and for an answer. rate, burst: requests a second of one key (0: no limit),
    and how many at once. wrong_keys: told that they are wrong, a minute from one address (0: no limit). streams: dashboards
    at a time. connections: at a time. held_bytes: bodies of all requests under way, in sum."""

    body_bytes: int = 32 * 2**20
    images: int = 64
    pixels: int = 40_000_000
    side: int = 8
    queue: int = 256
    seconds: float = 30.0
    rate: float = 0.0
    burst: int = 20
    wrong_keys: int = 20
    streams: int = 16
    connections: int = 1024
    held_bytes: int = 512 * 2**20


@dataclass(frozen=True)
class Pace:
    """batch, wait: at most so many images are answered together, and the first waits at most so many seconds for others.
    adapt_batch: images of one adaptation step. adapt_wait: a step is made with fewer (but at least `enough`) when the first
    of them has waited so long. threads: of the adaptation, beside those of the answers. share: of the time that adaptation
    gets at least, however many requests come (0: none)."""

    batch: int = 16
    wait: float = 0.005
    adapt_batch: int = 32
    adapt_wait: float = 30.0
    enough: int = 8
    threads: int = 1
    share: float = 0.2


@dataclass(frozen=True)
class Settings:
    """keys: name -> secret; empty: no key is asked for (loopback only). names: hosts under which a proxy serves this, as
    in the address of a page. keep_images: pictures kept for the dashboard. checkpoint_every, checkpoint_seconds: a
    checkpoint is written after so many steps, and at most so many seconds after a step."""

    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)
    keys: dict[str, str] = field(default_factory=dict, repr=False)
    names: tuple[str, ...] = ()
    keep_images: int = 12
    checkpoint_every: int = 20
    checkpoint_seconds: float = 60.0


def is_key(text: str) -> bool:
    """Whether it can be sent in a header as it is: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text and text != ""


def is_loopback(host: str | None) -> bool:
    """Whether only this machine itself is reached under this name or address."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
