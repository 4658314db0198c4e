"""A full adaptation step (forward, loss, backward, update) against timm's dense forward in one run, and its peak memory.

python benchmarks/step.py                                        ViT-B/16 at batch 8 and DeiT-Ti at batch 32
python benchmarks/step.py --model vit_base_patch16_224 --batch 64 --rounds 1 --run "align|none" --run "navia|tome:8"
"""

import argparse
import json
import time
from statistics import median, quantiles

import torch

import navia
from navia.measure.clock import peak_memory

DEFAULTS = [("vit_base_patch16_224", 8), ("deit_tiny_patch16_224", 32)]
RUNS = ["align|none", "align|tome:8", "navia|tome:8"]


def compare(model: str, batch: int, runs: list[str], rounds: int, guard: bool) -> dict[str, dict[str, float]]:
    vit = navia.load(f"timm:{model}", pretrained=False)
    images = torch.randn(batch, vit.in_chans, *vit.preprocessing.size)

    def dense() -> object:
        with torch.no_grad():
            return vit.model(images)

    calls = {"timm forward": dense}
    for run in runs:
        method, reduce = run.split("|")
        source = navia.SourceStatistics.measure(vit, images[:2], reduce, fisher=method == "eata")
        adapter = navia.adapt(vit, method, reduce, source, guard=guard)
        calls[run] = lambda adapter=adapter: adapter(images)
    peaks = {name: peak_memory(call, images.device) / 1024 for name, call in calls.items()}  # also the warm-up
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    rows = {}
    for name, seconds in times.items():
        ratios = [own / base for own, base in zip(seconds, times["timm forward"], strict=True)]
        low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        ratio = median(seconds) / median(times["timm forward"])
        rows[name] = {"seconds": median(seconds), "ratio": ratio, "low": low, "high": high, "peak_gib": peaks[name]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--run", action="append", help="method|reducer; repeatable")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.manual_seed(0)
    results = {}
    for model, batch in [(options.model, options.batch)] if options.model else DEFAULTS:
        rows = compare(model, batch, options.run or RUNS, options.rounds, not options.no_guard)
        results[f"{model} batch {batch}"] = rows
        print(f"\n{model}, batch {batch}, {torch.get_num_threads()} threads, {options.rounds} rounds, float32")
        print(f"{'':16} {'s/step':>8} {'ratio':>7} {'quartiles':>15} {'peak GiB':>9}")
        for name, row in rows.items():
            spread = f"[{row['low']:.2f}, {row['high']:.2f}]"
            print(f"{name:16} {row['seconds']:8.2f} {row['ratio']:7.2f} {spread:>15} {row['peak_gib']:9.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
