"""Forward pass of navia against the library's own dense forward: same weights, same run, interleaved, medians with spread.

python benchmarks/forward.py                         ViT-B/16 at batch 8 and DeiT-Ti at batch 32
python benchmarks/forward.py --model deit_tiny_patch16_224 --batch 64 --reduce tome:4 --reduce tome:8
"""

import argparse
import json
import time
from functools import partial
from statistics import median, quantiles

import torch

import navia
from navia.reduce import parse
from navia.vit.forward import run

DEFAULTS = [("vit_base_patch16_224", 8), ("deit_tiny_patch16_224", 32)]


def compare(model: str, batch: int, reducers: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Ratio of each candidate's time to timm's dense forward in the same round: median and quartiles over rounds."""
    vit = navia.load(f"timm:{model}", pretrained=False)
    images = torch.randn(batch, vit.in_chans, *vit.preprocessing.size)
    calls = {"timm": lambda: vit.model(images)}
    calls |= {name: partial(run, vit, images, parse(name)) for name in reducers}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.inference_mode():
        for round_number in range(rounds + 1):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if round_number:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
    rows = {}
    for name, seconds in times.items():
        ratios = [own / dense for own, dense in zip(seconds, times["timm"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        rows[name] = {
            "ms_per_image": median(seconds) * 1000 / batch,
            "ratio": median(seconds) / median(times["timm"]),
            "ratio_of_best": min(seconds) / min(times["timm"]),
            "low": low,
            "high": high,
            "macs_ratio": 1.0 if name == "timm" else navia.cost(vit, name).gmacs / navia.cost(vit).gmacs,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a timm ViT; default: two of them")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--reduce", action="append", help="repeatable; default none, tome:8, evit:8, tofu:8")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results = {}
    for model, batch in [(options.model, options.batch)] if options.model else DEFAULTS:
        rows = compare(model, batch, options.reduce or ["none", "tome:8", "evit:8", "tofu:8"], options.rounds)
        results[f"{model} batch {batch}"] = rows
        print(f"\n{model}, batch {batch}, {options.threads} threads, {options.rounds} rounds, float32")
        print(f"{'':8} {'ms/image':>9} {'ratio':>7} {'quartiles':>15} {'best/best':>10} {'MACs':>7}")
        for name, row in rows.items():
            spread = f"[{row['low']:.3f}, {row['high']:.3f}]"
            print(
                f"{name:8} {row['ms_per_image']:9.2f} {row['ratio']:7.3f} {spread:>15} "
                f"{row['ratio_of_best']:10.3f} {row['macs_ratio']:7.3f}"
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
