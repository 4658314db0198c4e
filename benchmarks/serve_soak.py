"""A long stream that changes every few hundred requests, with bad images in it: does the service stay up and small?"""

import argparse
import asyncio
import collections
import contextlib
import io
import json
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import navia
import serve_wire
from navia.data.corruptions import corrupt, names
from navia.data.sample import unseen_images
from serve_wire import Server, Wire, serving

MODEL, METHOD, REDUCE = "embedded", "navia", "tome:24"
BAD_EVERY = 100  # one request of so many is a bad or an odd one
SAMPLES = 100  # of the memory


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--stretch", type=int, default=500, help="requests of one corruption")
    parser.add_argument("--severity", type=int, default=2)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument(
        "--rate", type=float, default=50.0, help="requests a second, at most; 0: as fast as they are answered"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="after which the stream ends")
    parser.add_argument(
        "--growth", type=float, default=1.0, help="MiB per 1,000 requests that memory may grow by at the end"
    )
    parser.set_defaults(call=soak)


# ---- bad and odd images: (content type, body) for the n-th time that a kind is sent


def saved(picture: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def sample(number: int, mode: str = "L", side: int = 28) -> Image.Image:
    pixels = unseen_images().images[number % 2000]
    return Image.fromarray(pixels).convert(mode).resize((side, side))


def truncated(n: int) -> tuple[str, bytes]:
    whole = saved(sample(n, "RGB", 224), "JPEG")
    return "image/jpeg", whole[: len(whole) // 2]


def text(n: int) -> tuple[str, bytes]:
    return ("text/plain", "image/png")[n % 2], b"This is no picture.\n" * 20


def bomb(n: int) -> tuple[str, bytes]:
    """A few kilobytes that hold 48 million pixels, or a header that claims 10,000 million."""
    if n % 2:
        return "image/png", saved(Image.new("1", (8000, 6000)), "PNG")
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return "image/png", b"\x89PNG\r\n\x1a\n" + chunk


def nan(n: int) -> tuple[str, bytes]:
    array = np.zeros((1, 28, 28), np.float32)
    array.flat[n % array.size] = np.nan
    file = io.BytesIO()
    np.save(file, array)
    return "application/octet-stream", file.getvalue()


def huge(n: int) -> tuple[str, bytes]:
    """More bytes than a request may have, or a picture that is all length."""
    if n % 2:
        return "image/png", saved(Image.new("L", (20_000, 10)), "PNG")
    return "image/png", bytes(33 * 2**20)


def animated(n: int) -> tuple[str, bytes]:
    frames = [sample(n + i) for i in range(3)]
    return "image/gif", saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def rotated(n: int) -> tuple[str, bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    return "image/jpeg", saved(sample(n, "RGB", 64), "JPEG", exif=exif)


Kind = Callable[[int], tuple[str, bytes]]

REFUSED: dict[str, Kind] = {
    "truncated JPEG": truncated,
    "text": text,
    "bomb": bomb,
    "NaN tensor": nan,
    "1x1 picture": lambda n: ("image/png", saved(sample(n, side=1), "PNG")),
    "huge": huge,
    "empty body": lambda n: ("image/png", b""),
}
ANSWERED: dict[str, Kind] = {
    "CMYK JPEG": lambda n: ("image/jpeg", saved(sample(n, "CMYK"), "JPEG")),
    "animated GIF": animated,
    "EXIF-rotated JPEG": rotated,
}
KINDS = REFUSED | ANSWERED


# ---- the stream


@dataclass
class Outcome:
    """guesses, -1: without answer. replies: of each kind of bad or odd image, status -> how often. memory: MiB at a count
    of requests."""

    guesses: np.ndarray
    wrong: collections.Counter[int] = field(default_factory=collections.Counter)
    replies: dict[str, collections.Counter[int]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    memory: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    sent: int = 0


@dataclass
class Stream:
    """Pictures and labels of all good requests; corruption of each stretch."""

    requests: int
    stretch: int
    severity: int

    def __post_init__(self) -> None:
        self.sample = unseen_images()
        self.order = np.random.default_rng(0).permutation(len(self.sample))
        self.pictures = np.zeros((self.requests, 28, 28), np.uint8)
        assert self.sample.labels is not None
        self.labels = np.asarray(self.sample.labels)[self.order[np.arange(self.requests) % len(self.order)]]

    def bad(self, i: int) -> tuple[str, int] | None:
        """Kind of request i, and how many of that kind came before; None: a good one."""
        if i % BAD_EVERY != BAD_EVERY // 2:
            return None
        turn, position = divmod(i // BAD_EVERY, len(KINDS))
        return list(KINDS)[position], turn

    def corruption(self, i: int) -> str:
        known = names(extra=True)
        return known[i // self.stretch % len(known)]

    def make(self, begin: int) -> dict[int, bytes]:
        """The requests of one stretch."""
        made = {}
        for i in range(begin, min(begin + self.stretch, self.requests)):
            if (found := self.bad(i)) is not None:
                kind, body = KINDS[found[0]](found[1])
            else:
                clean = self.sample.images[self.order[i % len(self.order)]]
                self.pictures[i] = corrupt(clean, self.corruption(i), self.severity, seed=i)
                kind, body = "image/png", saved(Image.fromarray(self.pictures[i]), "PNG", compress_level=1)
            made[i] = serve_wire.request("/v1/predict", body, kind)
        return made


async def send_all(server: Server, stream: Stream, asked: argparse.Namespace) -> Outcome:
    """One stretch after the other; each is made before it is sent, which does not count as time of the stream."""
    port = server.port
    outcome, deadline = Outcome(np.full(stream.requests, -1)), time.monotonic() + 60 * asked.minutes
    wires: list[Wire | None] = [None] * asked.connections

    async def ask_on(own: int, waiting: collections.deque[tuple[int, bytes]], begun: float, first: int) -> None:
        while waiting and time.monotonic() < deadline and server.process.poll() is None:
            i, content = waiting.popleft()
            if asked.rate:
                await asyncio.sleep(max(0.0, begun + (i - first) / asked.rate - time.monotonic()))
            wire = wires[own]
            if wire is None or wire.closed:
                wire = wires[own] = await Wire.to(port)
            note(outcome, stream, i, await wire.ask(content))
            if outcome.sent % max(1, stream.requests // SAMPLES) == 0 and server.process.poll() is None:
                outcome.memory.append((outcome.sent, server.resident_mib()))

    for first in range(0, stream.requests, stream.stretch):
        waiting = collections.deque(stream.make(first).items())
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):  # refused: the service ended, which is looked at afterwards
            await asyncio.gather(*(ask_on(own, waiting, begun, first) for own in range(asked.connections)))
        outcome.seconds += time.monotonic() - begun
    for wire in wires:
        if wire is not None:
            wire.close()
    return outcome


def note(outcome: Outcome, stream: Stream, i: int, reply: serve_wire.Reply) -> None:
    outcome.sent += 1
    if (found := stream.bad(i)) is not None:
        outcome.replies[found[0]][reply.status] += 1
    elif reply.status == 200:
        outcome.guesses[i] = json.loads(reply.body)["predictions"][0]["top"][0]["index"]
    else:
        outcome.wrong[reply.status] += 1


# ---- what to compare with, and the report


def unadapted(stream: Stream, reduce: str) -> np.ndarray:
    """What the model as it came takes the same pictures for."""
    vit = navia.load(MODEL)
    adapter = navia.adapt(vit, "none", reduce)
    parts = []
    for begin in range(0, stream.requests, 256):
        images = [vit.preprocessing(Image.fromarray(p)) for p in stream.pictures[begin : begin + 256]]
        parts.append(adapter.predict(torch.stack(images)).argmax(dim=1).numpy())
    return np.concatenate(parts)


def accuracies(stream: Stream, outcome: Outcome) -> list[dict[str, Any]]:
    """For each stretch and all of them, over the good requests that were answered."""
    whole, plain = (unadapted(stream, reduce) for reduce in ("none", REDUCE))
    answered = outcome.guesses >= 0
    rows = []
    for begin in [*range(0, stream.requests, stream.stretch), None]:
        chosen = answered.copy()
        if begin is not None:
            chosen[:begin], chosen[begin + stream.stretch :] = False, False
        if chosen.any():
            share = [float((g == stream.labels)[chosen].mean()) for g in (outcome.guesses, plain, whole)]
            name = "all" if begin is None else stream.corruption(begin)
            rows.append(
                {"stretch": name, "images": int(chosen.sum()), "service": share[0], "none": share[1], "dense": share[2]}
            )
    return rows


def slope(memory: list[tuple[int, float]]) -> float:
    """MiB per 1,000 requests over the second half, by least squares."""
    late = np.asarray([point for point in memory if point[0] >= memory[-1][0] / 2])
    return float(1000 * np.polyfit(late[:, 0], late[:, 1], 1)[0]) if len(late) > 2 else 0.0


def checks(stream: Stream, outcome: Outcome, status: dict[str, Any] | None, ended: int | None, grows: float, most: float
           ) -> dict[str, bool]:  # fmt: skip
    good = sum(stream.bad(i) is None for i in range(stream.requests))
    statuses = [s for replies in outcome.replies.values() for s in replies] + list(outcome.wrong)
    return {
        "the service lived to the end": status is not None,
        "it ended in good order when asked to": ended == 0,
        "all requests were sent": outcome.sent == stream.requests,
        "every good image was answered": int((outcome.guesses >= 0).sum()) == good,
        "no reply of 500 or above": all(s < 500 for s in statuses),
        "bad images were refused (4xx)": all(400 <= s < 500 for kind in REFUSED for s in outcome.replies[kind]),
        "odd images were answered": all(s == 200 for kind in ANSWERED for s in outcome.replies[kind]),
        "no error among the events": status is not None and all(e["kind"] != "error" for e in status["events"]),
        f"memory grows by less than {most:g} MiB per 1,000 requests at the end": grows < most,
    }


def print_soak(report: dict[str, Any]) -> None:
    print(f"{'stretch':18} {'images':>6} {'service':>8} {'none + ' + REDUCE:>15} {'none + none':>12}   top-1 %")
    for row in report["accuracy"]:
        print(
            f"{row['stretch']:18} {row['images']:6} {100 * row['service']:8.1f} {100 * row['none']:15.1f} "
            f"{100 * row['dense']:12.1f}"
        )
    print("\nbad and odd images: status x times")
    for kind in KINDS:
        said = ", ".join(f"{status or 'no reply'} x {count}" for status, count in report["replies"].get(kind, {}).items())
        print(f"  {kind:18} {said or 'not sent'}")
    tenths = report["memory"][9::10]
    print("\nresident memory, MiB: " + ", ".join(f"{mib:.0f} at {count:,}" for count, mib in tenths))
    print(f"second half: {report['slope']:+.2f} MiB per 1,000 requests")
    print(
        f"{report['sent']:,} requests in {report['seconds']:.0f} s, {report['rate']:.0f} a second; steps {report['steps']}, "
        f"images adapted {report['adapted']}, shed {report['shed']}, guard events {report['guard_events']}"
    )
    for event in report["events"]:
        print(f"  {event['kind']}: {event['text']}")
    for name, passed in report["checks"].items():
        print(f"{'ok  ' if passed else 'FAIL'} {name}")


def soak(asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    stream = Stream(asked.requests, asked.stretch, asked.severity)
    options = ("--method", METHOD, "--reduce", REDUCE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = ("--model", MODEL, "--source", MODEL, "--state", str(folder / "state"))
        with serving(*options, base=base, log=folder / "log", one_thread=False) as server:
            outcome = serve_wire.run(send_all(server, stream, asked))
            status, ended = None, server.process.poll()
            if ended is None:
                with server.client() as client:
                    status = client.status()
                ended = server.end()
        log = (folder / "log").read_text()
    adaptation = (status or {}).get("adaptation", {})
    grows = slope(outcome.memory)
    report = {
        "accuracy": accuracies(stream, outcome),
        "replies": {kind: dict(outcome.replies[kind]) for kind in KINDS},
        "memory": outcome.memory,
        "slope": grows,
        "sent": outcome.sent,
        "seconds": outcome.seconds,
        "rate": outcome.sent / outcome.seconds,
        "steps": adaptation.get("step"),
        "adapted": adaptation.get("images_adapted"),
        "shed": adaptation.get("images_shed"),
        "guard_events": adaptation.get("guard_events"),
        "events": (status or {}).get("events", []),
        "checks": checks(stream, outcome, status, ended, grows, asked.growth),
    }
    print_soak(report)
    sound = all(report["checks"].values())
    if not sound:
        print("\nthe end of the service's log:\n" + log[-3000:])
    return report, sound
