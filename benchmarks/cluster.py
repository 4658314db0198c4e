"""What more workers bring.

python benchmarks/cluster.py measure    a grid of the embedded model: one cell after the other, and on a local Ray cluster
python benchmarks/cluster.py expect     `paper-table1` on 8, 64, 1,000 workers, simulated from what its methods cost
"""

import argparse
import heapq
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: one core for a cell, here as there

import torch

from navia.bench.cell import Cell
from navia.bench.executors.ray import ray_executor
from navia.bench.executors.serial import run_serial
from navia.bench.grid import cells, run_grid
from navia.bench.presets import load_spec
from navia.bench.spec import parse_spec
from navia.bench.store import Store

GRID = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [gaussian_noise, defocus_blur, fog, contrast], severity: 2, images: 128}]
runs: [{method: [none, tent, align]}, {method: navia, reduce: tome:8}]
"""
WORKERS = (8, 64, 1000)
SEEDS = (1, 3)


def measure(rounds: int) -> None:
    """Serial and spread in turn, so that both meet the same load from elsewhere."""
    torch.set_num_threads(1)
    spec = parse_spec(GRID, "cluster")
    times: dict[str, list[float]] = {"serial": [], "ray": []}
    for number in range(rounds):
        for name in times:
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                found = list(run_grid(spec, Store(Path(folder)), ray_executor() if name == "ray" else run_serial))
                times[name].append(time.perf_counter() - started)
        print(f"round {number + 1}: {len(found)} cells, serial {times['serial'][-1]:.1f} s, ray {times['ray'][-1]:.1f} s")
    ratio = statistics.median(s / r for s, r in zip(times["serial"], times["ray"], strict=True))
    print(f"{os.cpu_count()} cores, {ratio:.2f} times as fast, with starting and stopping the cluster")


def expect() -> None:
    """How many times as fast as one worker: the longest cells first, and in the order of the spec."""
    spec = load_spec("paper-table1").scaled(data="embedded", images=50_000)
    print("| seeds | workers | times as fast | workers busy | in the spec's order |\n|---:|---:|---:|---:|---:|")
    for seeds in SEEDS:
        wanted = cells(spec.scaled(seeds=list(range(seeds))))
        whole = sum(map(Cell.work, wanted))
        for workers in WORKERS:
            orders = (sorted(wanted, key=Cell.work, reverse=True), wanted)
            first, plain = (whole / _makespan(order, workers) for order in orders)
            print(f"| {seeds} | {workers:,} | {first:.1f} | {first / workers:.0%} | {plain:.1f} |")


def _makespan(order: Sequence[Cell], workers: int) -> float:
    """Each cell goes to the worker that is free first."""
    free = [0.0] * workers
    for cell in order:
        heapq.heappush(free, heapq.heappop(free) + cell.work())
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("measure").add_argument("--rounds", type=int, default=3)
    what.add_parser("expect")
    asked = parser.parse_args()
    measure(asked.rounds) if asked.what == "measure" else expect()


if __name__ == "__main__":
    main()
