"""kill -9 under load, and restart on the same state: what is lost, and does what is left hold together?"""

import argparse
import asyncio
import contextlib
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import navia
import serve_wire
from navia.adaptation.statistics import open_source_statistics
from navia.data.corruptions import corrupt
from navia.data.sample import unseen_images
from serve_soak import saved
from serve_wire import Server, Wire, serving

MODEL, METHOD, REDUCE = "embedded", "navia", "tome:24"
BATCH = 32  # images of a step: with --adapt-wait this long no step has fewer
OPTIONS = ("--method", METHOD, "--reduce", REDUCE, "--adapt-batch", str(BATCH), "--adapt-wait", "3600")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="kills")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second, at most")
    parser.add_argument("--seconds", type=float, default=90.0, help="that a process may live at most")
    parser.set_defaults(call=kill)


@dataclass
class Life:
    """Of one process: seen is the highest step that anybody was told of."""

    began: int
    began_images: int
    seen: int
    answers: int = 0
    bad_answers: int = 0


def requests() -> list[bytes]:
    pictures = [corrupt(p, "gaussian_noise", 2, seed=i) for i, p in enumerate(unseen_images().images[:500])]
    return [serve_wire.request("/v1/predict", saved(Image.fromarray(p), "PNG")) for p in pictures]


async def live(server: Server, asked: argparse.Namespace, more: float, dies: bool) -> Life:
    """Under load until `more` steps are made, then killed in the middle of whatever it does."""
    port, prepared = server.port, requests()
    watcher = await Wire.to(port)
    first = await step_and_images(watcher)
    assert first is not None
    begun, sent = time.monotonic(), 0
    life, deadline = Life(*first, seen=first[0]), begun + asked.seconds

    async def ask_on() -> None:
        nonlocal sent
        wire = await Wire.to(port)
        while not wire.closed and sent < 50_000 and time.monotonic() < deadline:
            sent += 1
            await asyncio.sleep(max(0.0, begun + sent / asked.rate - time.monotonic()))
            reply = await wire.ask(prepared[sent % len(prepared)])
            if reply.status:  # none: it died meanwhile
                note(life, reply)

    async def watch() -> None:
        while life.seen < life.began + math.floor(more) and time.monotonic() < deadline:
            now = await step_and_images(watcher)
            life.seen = max(life.seen, now[0] if now else 0)
            await asyncio.sleep(0.02)
        await asyncio.sleep(more % 1)  # not always just after a step
        if dies:
            server.process.kill()

    load = [asyncio.create_task(ask_on()) for _ in range(asked.connections)]
    await watch()
    if not dies:
        deadline = 0.0
    with contextlib.suppress(ConnectionError):
        await asyncio.gather(*load)
    watcher.close()
    return life


async def step_and_images(wire: Wire) -> tuple[int, int] | None:
    reply = await wire.ask(serve_wire.request("/v1/status", verb="GET"))
    if reply.status != 200:
        return None
    said = json.loads(reply.body)["adaptation"]
    return said["step"], said["images_adapted"]


def note(life: Life, reply: serve_wire.Reply) -> None:
    said = json.loads(reply.body)
    if reply.status != 200:
        life.bad_answers += 1
        return
    prediction = said["predictions"][0]
    values = [prediction["entropy"], *(guess["probability"] for guess in prediction["top"])]
    sound = all(math.isfinite(v) for v in values) and 0 < sum(values[1:]) < 1.001
    life.answers += 1
    life.bad_answers += not sound
    life.seen = max(life.seen, prediction["step"])


def newest(folder: Path, adapter: navia.Adapter) -> tuple[str, int, int]:
    """What a restart should go on from: name, step and images of the newest file, loaded as a user would load it."""
    for name in ("delta.safetensors", "delta.previous.safetensors"):
        if (folder / name).exists():
            metadata = adapter.load(folder / name)
            return name, adapter.steps, json.loads(metadata["serve"])["images_adapted"]
    return "none", 0, 0


def checks(row: dict[str, Any], every: int) -> dict[str, bool]:
    return {
        f"at most {every} steps lost": row["seen"] - row["restarted"] <= every,
        "the restart has the step and the images of the file": (row["restarted"], row["restarted_images"])
        == (row["file_step"], row["file_images"]),
        "images fit the steps": row["file_images"] == BATCH * row["file_step"],
        "it adapted and wrote a checkpoint": row["file_step"] > row["began"],
        "answers are finite": row["answers"] > 0 and row["bad_answers"] == 0,
        "it was killed, not ended": row["code"] == -9,
    }


def kill(asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    random = np.random.default_rng(0)
    vit = navia.load(MODEL)
    adapter = navia.adapt(vit, METHOD, REDUCE, open_source_statistics(vit, MODEL, REDUCE))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = ("--model", MODEL, "--source", MODEL, "--state", str(folder / "state"), "--every", str(asked.every))
        for number in range(asked.rounds + 1):
            dies = number < asked.rounds
            more = asked.every + 1 + random.uniform(0, asked.every) if dies else 1.0
            with serving(*OPTIONS, base=base, log=folder / "log", one_thread=False) as server:
                life = serve_wire.run(live(server, asked, more, dies))
                code = server.process.wait(timeout=10) if dies else server.end()
            if rows:  # what the process before this one left
                rows[-1] |= {"restarted": life.began, "restarted_images": life.began_images}
                rows[-1]["checks"] = checks(rows[-1], asked.every)
            if dies:
                file, step, images = newest(folder / "state", adapter)
                found = {"file": file, "file_step": step, "file_images": images, "code": code}
                rows.append({"began": life.began, "seen": life.seen, **found, **said(life)})
        report = {"every": asked.every, "rounds": rows, "last_life": said(life), "last_code": code}
        log = (folder / "log").read_text()
    sound = all(all(row["checks"].values()) for row in rows) and life.bad_answers == 0 < life.answers and code == 0
    print_kill(report, sound)
    if not sound:
        print("\nthe end of the last service's log:\n" + log[-3000:])
    return report, sound


def said(life: Life) -> dict[str, int]:
    return {"answers": life.answers, "bad_answers": life.bad_answers}


def print_kill(report: dict[str, Any], sound: bool) -> None:
    print(f"kill -9 under load, a checkpoint every {report['every']} steps of {BATCH} images ({METHOD} + {REDUCE}, {MODEL})")
    columns = ("began", "last seen", "in file", "restart", "lost", "images", "answers", "bad")
    print(" ".join(f"{name:>9}" for name in columns) + "  checks")
    for row in report["rounds"]:
        values = [row[name] for name in ("began", "seen", "file_step", "restarted")]
        values += [row["seen"] - row["restarted"], row["restarted_images"], row["answers"], row["bad_answers"]]
        failed = "; ".join(name for name, passed in row["checks"].items() if not passed)
        print(" ".join(f"{value:9}" for value in values) + ("  FAIL: " + failed if failed else "  ok"))
    answers, code = report["last_life"]["answers"], report["last_code"]
    print(f"the last process gave {answers} answers and ended with code {code} when asked to")
    print("ok" if sound else "FAIL")
