"""`navia serve` as its users meet it: real processes on loopback.

python benchmarks/serve.py load                      reply latency with adaptation against without, at half the load
python benchmarks/serve.py load --model deit         the same with DeiT-Ti and real images, where they are there
python benchmarks/serve.py soak --requests 10000     a long stream that changes, with bad images in it
python benchmarks/serve.py kill --rounds 5           kill -9 under load, restart, what was lost
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

import deit
import navia
import serve_kill
import serve_soak
import serve_wire
from navia.data.corruptions import corrupt
from navia.data.sample import unseen_images
from navia.data.sources import scan
from navia.serve.client import ServiceError
from serve_soak import saved
from serve_wire import Server, serving

DEFAULTS = {"embedded": ("tome:24", 10, 4.0), "deit": ("tome:8", 5, 15.0)}  # reducer, rounds, seconds of a turn
PICTURES = 256  # sent again and again
CONNECTIONS = 64  # of the open loop, at most
LEAD = 40  # requests before each measurement: more than one step needs
SHARES = (0.5, 0.95, 0.99)
TARGET = 1.25


@dataclass
class Slot:
    """What one setting did in one round. others: share of all cores that other processes took."""

    run: serve_wire.Run
    others: float
    steps: int
    adapted: int
    shed: int


@dataclass
class Setting:
    method: str
    reduce: str
    server: Server
    slots: list[Slot] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.method} + {self.reduce}"

    def counts(self) -> tuple[int, int, int]:
        with self.server.client() as client:
            said = client.status()["adaptation"]
        return said["step"], said["images_adapted"], said["images_shed"]

    def rest(self) -> None:
        """Adaptation stops, and what it has begun is over: the next setting has the machine for itself."""
        if self.method == "none":
            return
        with self.server.client() as client, tempfile.TemporaryDirectory() as folder:
            client.pause()
            for _ in range(4):
                try:
                    client.save_delta(Path(folder) / "delta")  # comes after the step that is under way
                    break
                except ServiceError:  # on a busy machine a step may outlast the service's patience
                    continue

    def wake(self) -> None:
        with self.server.client() as client:
            client.resume()


# ---- pictures and servers


def requests_of(model: str) -> list[bytes]:
    """Corrupted pictures, as the service should see them when it adapts; encoded once."""
    if model == "deit":
        folder = scan(deit.IMAGES)
        positions = range(0, len(folder), len(folder) // PICTURES)[:PICTURES]
        photos = deit.pictures(folder, list(positions), "gaussian_noise", 3)
        return [
            serve_wire.request("/v1/predict", saved(Image.fromarray(p), "JPEG", quality=90), "image/jpeg") for p in photos
        ]
    pictures = [corrupt(p, "gaussian_noise", 2, seed=i) for i, p in enumerate(unseen_images().images[:PICTURES])]
    return [serve_wire.request("/v1/predict", saved(Image.fromarray(p), "PNG")) for p in pictures]


def options_of(model: str, reduce: str, folder: Path) -> list[str]:
    """Of the command line; DeiT's source statistics are measured once for every reducer."""
    if model == "embedded":
        return ["--model", "embedded", "--source", "embedded"]
    name = deit.MODEL
    path = folder / f"{reduce.replace(':', '-')}.safetensors"
    if not path.exists():
        vit = navia.load(name, checkpoint=deit.WEIGHTS)
        vit.preprocessing = vit.preprocessing.crop_only()
        images = scan(deit.IMAGES)
        clean = deit.pictures(images, list(range(0, len(images), len(images) // 64)[:64]))
        navia.SourceStatistics.measure(vit, deit.batch(vit, clean), reduce).save(path)
    return ["--model", name, "--checkpoint", str(deit.WEIGHTS), "--source", str(path), "--crop-only"]


@contextlib.contextmanager
def settings_of(model: str, reduce: str) -> Iterator[list[Setting]]:
    """All servers run all the time; only one is asked."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        settings: list[Setting] = []
        for method, own in (("none", "none"), ("none", reduce), ("navia", "none"), ("navia", reduce)):
            options = [*options_of(model, own, folder), "--reduce", own, "--method", method]
            log = folder / f"{len(settings)}.log"
            server = stack.enter_context(serving(*options, base=(), log=log, one_thread=False))
            settings.append(Setting(method, own, server))
        yield settings


# ---- what else the machine does


def cpu_clock(processes: Sequence[int]) -> Callable[[], float]:
    """Seconds of all cores that went to others than this process and those given, since the call; 0 where unknown."""

    def busy() -> float:
        if not Path("/proc/stat").exists():
            return 0.0
        ticks = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        own = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (os.getpid(), *processes)]
        return (sum(ticks) - ticks[3] - ticks[4] - sum(int(f[11]) + int(f[12]) for f in own)) / os.sysconf("SC_CLK_TCK")

    before = busy()
    return lambda: busy() - before


# ---- measuring


def saturate(setting: Setting, requests: Sequence[bytes], seconds: float) -> list[dict[str, float]]:
    """Requests a second in a closed loop, with twice as many connections each time until that gains less than 5 %; the
    better of two passes, as a disturbance only ever slows."""
    rows: list[dict[str, float]] = []
    for connections in (1, 2, 4, 8, 16, 32, 64):
        runs = [
            serve_wire.run(serve_wire.closed_loop(setting.server.port, requests, connections, seconds, 20_000))
            for _ in range(2)
        ]
        best = max(runs, key=lambda run: run.rate)
        rows.append(
            {"connections": connections, "rate": best.rate, "p50_ms": 1000 * median(best.latencies), "failed": best.failed}
        )
        if len(rows) > 2 and max(row["rate"] for row in rows[-2:]) < 1.05 * max(row["rate"] for row in rows[:-2]):
            break
    return rows


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of arrival; at most 20,000."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=min(20_000, int(2 * rate * seconds) + 50))
    times = np.cumsum(gaps)
    return [float(t) for t in times[times < seconds]]


def slot(setting: Setting, settings: Sequence[Setting], requests: Sequence[bytes], rate: float, times: Sequence[float]
         ) -> Slot:  # fmt: skip
    """After a lead-in, whose replies are not counted, so that adaptation has images to work on from the start."""
    setting.wake()
    before = setting.counts()
    serve_wire.run(serve_wire.open_loop(setting.server.port, requests, [at / rate for at in range(LEAD)], CONNECTIONS))
    others = cpu_clock([s.server.process.pid for s in settings])
    run = serve_wire.run(serve_wire.open_loop(setting.server.port, requests, times, CONNECTIONS))
    share = others() / run.seconds / (os.cpu_count() or 1)
    setting.rest()
    steps, adapted, shed = (b - a for a, b in zip(before, setting.counts(), strict=True))
    return Slot(run, share, steps, adapted, shed)


def measure(settings: Sequence[Setting], requests: Sequence[bytes], rate: float, asked: argparse.Namespace) -> int:
    """Rounds in which each setting has its turn with the same times of arrival, until there are enough quiet ones or the
    time is over. Of all rounds the quietest are kept; how many there were."""
    deadline = time.monotonic() + 60 * asked.minutes
    for setting in settings:  # kernels are chosen, memory is allocated
        slot(setting, settings, requests, rate, poisson(rate, max(2.0, 64 / rate), 0))
    calm = number = 0
    length = len(settings) * (asked.seconds + LEAD / rate) * 1.1
    while calm < asked.rounds and (number < asked.rounds or time.monotonic() + length < deadline):
        number += 1
        turn = number % len(settings)
        for setting in (*settings[turn:], *settings[:turn]):
            setting.slots.append(slot(setting, settings, requests, rate, poisson(rate, asked.seconds, number)))
        others = disturbance(settings, number - 1)
        calm += others < asked.quiet
        print(f"round {number}: other processes took up to {100 * others:.0f} % of the cores", file=sys.stderr, flush=True)
    kept = sorted(sorted(range(number), key=lambda i: disturbance(settings, i))[: asked.rounds])
    for setting in settings:
        setting.slots = [setting.slots[i] for i in kept]
    return number


def disturbance(settings: Sequence[Setting], number: int) -> float:
    return max(setting.slots[number].others for setting in settings)


# ---- report


def row_of(setting: Setting) -> dict[str, Any]:
    slots = setting.slots
    latencies = 1000 * np.concatenate([s.run.latencies for s in slots])
    seconds = sum(s.run.seconds for s in slots)
    return {
        "requests": len(latencies),
        "rate": len(latencies) / seconds,
        **{f"p{100 * share:.0f}_ms": float(np.quantile(latencies, share)) for share in SHARES},
        "steps": sum(s.steps for s in slots),
        "adapted": sum(s.adapted for s in slots),
        "shed": sum(s.shed for s in slots),
        "failed": sum(s.run.failed for s in slots),
        "lag_p99_ms": 1000 * float(np.quantile(np.concatenate([s.run.lags for s in slots]), 0.99)),
        "generator_cores": sum(s.run.cpu for s in slots) / seconds,
        "rounds_p50_ms": [round(1000 * float(np.quantile(s.run.latencies, 0.5)), 1) for s in slots],
        "rounds_p95_ms": [round(1000 * float(np.quantile(s.run.latencies, 0.95)), 1) for s in slots],
        "others": [round(s.others, 3) for s in slots],
    }


def ratio_of(own: Setting, base: Setting) -> dict[str, Any]:
    """Of all replies together, and the lowest, median and highest of the rounds by themselves."""
    result: dict[str, Any] = {"of": own.name, "to": base.name}
    for share in SHARES:
        rounds = sorted(
            float(np.quantile(a.run.latencies, share) / np.quantile(b.run.latencies, share))
            for a, b in zip(own.slots, base.slots, strict=True)
        )
        pooled = [np.quantile(np.concatenate([s.run.latencies for s in x.slots]), share) for x in (own, base)]
        result[f"p{100 * share:.0f}"] = {
            "pooled": float(pooled[0] / pooled[1]), "low": rounds[0], "median": median(rounds), "high": rounds[-1]
        }  # fmt: skip
    return result


def print_load(report: dict[str, Any]) -> None:
    print(f"\n{'':18} {'req/s':>7} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'steps':>6} {'adapted':>8} {'shed':>6} failed")
    for name, row in report["settings"].items():
        print(
            f"{name:18} {row['rate']:7.1f} {row['p50_ms']:8.1f} {row['p95_ms']:8.1f} {row['p99_ms']:8.1f} "
            f"{row['steps']:6} {row['adapted']:8} {row['shed']:6} {row['failed']:6}"
        )
    print(f"\nratio of latencies: all replies (median of rounds, lowest to highest); target {TARGET} at p50, and at p95")
    for ratio in report["ratios"]:
        print(f"  {ratio['of']} to {ratio['to']}")
        for share in ("p50", "p95", "p99"):
            r = ratio[share]
            verdict = "" if share == "p99" else "met" if r["pooled"] <= TARGET else "MISSED"
            print(f"    {share} {r['pooled']:5.2f} ({r['median']:.2f}, {r['low']:.2f} to {r['high']:.2f}) {verdict}")


def load(asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    reduce, rounds, seconds = DEFAULTS[asked.model]
    reduce, asked.rounds, asked.seconds = asked.reduce or reduce, asked.rounds or rounds, asked.seconds or seconds
    if asked.model == "deit" and not (deit.WEIGHTS.exists() and deit.IMAGES.exists()):
        sys.exit("no weights or images of DeiT-Ti: set NAVIA_DEIT and NAVIA_IMAGENET")
    requests = requests_of(asked.model)
    with settings_of(asked.model, reduce) as settings:
        curve = [] if asked.rate else saturate(settings[0], requests, asked.step_seconds)
        rate = asked.rate or max(row["rate"] for row in curve) / 2
        for row in curve:
            print(f"closed loop, {row['connections']:3} connections: {row['rate']:7.1f} req/s, p50 {row['p50_ms']:.1f} ms")
        print(
            f"{asked.model}: half of the saturating load of none + none is {rate:.1f} req/s; one picture a request, Poisson "
            f"arrivals, latency from the scheduled time", flush=True
        )  # fmt: skip
        made = measure(settings, requests, rate, asked)
        plain, plain_reduced, adapting, adapting_reduced = settings
        pairs = [(adapting, plain), (adapting_reduced, plain_reduced), (adapting_reduced, plain)]
        report = {
            "model": asked.model, "reduce": reduce, "saturation": curve, "rate": rate, "rounds": asked.rounds,
            "rounds_made": made, "seconds": asked.seconds, "cores": os.cpu_count(),
            "settings": {s.name: row_of(s) for s in settings}, "ratios": [ratio_of(*pair) for pair in pairs],
        }  # fmt: skip
    rows = report["settings"].values()
    used, late = max(row["generator_cores"] for row in rows), max(row["lag_p99_ms"] for row in rows)
    others = [share for row in rows for share in row["others"]]
    print(
        f"{asked.rounds} quietest of {made} rounds of {asked.seconds:g} s per setting, order rotated\n"
        f"the load generator shares the {os.cpu_count()} cores with the server: it took {used:.2f} of a core at most, and\n"
        f"sent 99 % of the requests within {late:.1f} ms of their time; other processes took {100 * median(others):.0f} % "
        f"of the cores\n(median of the turns; highest {100 * max(others):.0f} %); steps and images include the lead-in"
    )
    print_load(report)
    return report, True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("load", help="reply latency with adaptation against without")
    asked.add_argument("--model", choices=list(DEFAULTS), default="embedded")
    asked.add_argument("--reduce", help="default: tome:24 for embedded, tome:8 for deit")
    asked.add_argument("--rate", type=float, help="requests a second; default: half of what saturates none + none")
    asked.add_argument("--rounds", type=int, help="default 10, with deit 5")
    asked.add_argument("--seconds", type=float, help="of each setting in each round; default 4, with deit 15")
    asked.add_argument("--step-seconds", type=float, default=2.0, help="of each closed loop")
    asked.add_argument("--quiet", type=float, default=0.1, help="share of the cores that others may take in a quiet round")
    asked.add_argument("--minutes", type=float, default=5.0, help="after which no further round is begun")
    asked.set_defaults(call=load)
    soak = commands.add_parser("soak", help="a long stream that changes, with bad images in it")
    serve_soak.add_options(soak)
    kill = commands.add_parser("kill", help="kill -9 under load, and restart")
    serve_kill.add_options(kill)
    for command in (asked, soak, kill):
        command.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end, too
    report, sound = options.call(options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
