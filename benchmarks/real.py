"""Adaptation on the real thing: DeiT-Ti on ImageNet validation images under generated corruptions.

    python benchmarks/real.py --out real.jsonl            runs what is not in the file yet; stop and start at will
    python benchmarks/real.py --out real.jsonl --table    prints the table of what is there

64 clean images give the source statistics and are left out of the stream; every run starts from the source. The corruption
"clean" is the whole folder as it is:

    python benchmarks/real.py --out clean.jsonl --corruption clean --orders 1 --run "none|none" --run "none|tome:8"
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch

import navia
from navia.adapt.method import METHODS
from navia.images.corruptions import corrupt
from navia.images.folder import open_image, scan
from navia.measure.quality import ece, top_k, wilson
from navia.report.results import t95

SHARED = Path(__file__).parents[2] / "shared"
MODEL = "timm:deit_tiny_patch16_224"
WEIGHTS = Path(os.environ.get("NAVIA_DEIT", SHARED / "deit_tiny_patch16_224" / "model.safetensors"))
IMAGES = Path(os.environ.get("NAVIA_IMAGENET", SHARED / "imagenet-val-2k"))
CORRUPTIONS = ["gaussian_noise", "contrast", "defocus_blur", "jpeg_compression"]
RUNS = ["none|none", "tent|none", "align|none", "align|tome:8", "navia|tome:8"]


class Setting(NamedTuple):
    """What rows must share to stand in one table. limit: of images in the stream; None: all that there are."""

    severity: int
    batch: int
    limit: int | None

    def __str__(self) -> str:
        return f"severity {self.severity}, batch {self.batch}, {self.limit or 'all'} images"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All whole rows. A last line that was cut off by a kill is taken out of the file, so that the next one starts anew."""
    if not path.exists():
        return []
    whole = path.read_bytes()
    kept = whole[: whole.rfind(b"\n") + 1]
    if len(kept) < len(whole):
        os.truncate(path, len(kept))
    return [json.loads(line) for line in kept.splitlines()]


def setting_of(row: dict[str, Any]) -> Setting:
    """The oldest rows do not tell batch and limit: they were made with 64 and all images."""
    return Setting(row["severity"], row.get("batch", 64), row.get("limit"))


def corrupted(folder: navia.images.folder.Folder, positions: list[int], name: str, severity: int) -> np.ndarray:
    """Pictures as uint8 [N, 224, 224, 3]; each image's noise depends on its position alone."""
    pictures = [np.asarray(open_image(folder.paths[i]).convert("RGB")) for i in positions]
    if name != "clean":
        pictures = [corrupt(p, name, severity, seed=i) for i, p in zip(positions, pictures, strict=True)]
    return np.stack(pictures)


def to_tensor(vit: navia.ViT, pictures: np.ndarray) -> torch.Tensor:
    return torch.stack([vit.preprocessing.normalise(picture) for picture in pictures])


def stream(vit: navia.ViT, run: str, source_images: torch.Tensor, pictures: np.ndarray, labels: torch.Tensor,
           order: np.ndarray, batch: int, sources: dict[Any, navia.SourceStatistics]) -> dict[str, Any]:  # fmt: skip
    """One pass over the stream: what the adapter answered for each batch when it came."""
    method, reduce, *settings = run.split("|")
    options = json.loads(settings[0]) if settings else {}
    wanted = reduce, METHODS.get(method).needs_fisher
    if wanted not in sources:
        sources[wanted] = navia.SourceStatistics.measure(vit, source_images, reduce, fisher=wanted[1])
    adapter = navia.adapt(vit, method, reduce, sources[wanted], **options)
    answers, guards, start = [], [], time.perf_counter()
    for begin in range(0, len(order), batch):
        answers.append(adapter(to_tensor(vit, pictures[order[begin : begin + batch]])))
        if adapter.last is not None and adapter.last.guard:
            guards.append(f"{adapter.last.number}: {adapter.last.guard}")
    logits, y = torch.cat(answers), labels[order]
    return {
        "top1": top_k(logits, y),
        "ece": ece(logits, y),
        "seconds": time.perf_counter() - start,
        "guard": guards,
        "per_batch": [top_k(a, part) for a, part in zip(answers, y.split(batch), strict=True)],
        "images": len(order),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["corruption"] for row in rows))
    print("| run | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for run in dict.fromkeys(row["run"] for row in rows):
        cells = []
        for name in names:
            own = [row for row in rows if row["run"] == run and row["corruption"] == name]
            scores = [100 * row["top1"] for row in own]
            if len(scores) > 1:
                half = t95(len(scores)) * stdev(scores) / len(scores) ** 0.5
                cells.append(f"{mean(scores):.1f} ± {half:.1f} ({len(scores)})")
            elif scores:
                low, high = wilson(round(own[0]["top1"] * own[0]["images"]), own[0]["images"])
                cells.append(f"{scores[0]:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
            else:
                cells.append("not run")
        print(f"| {run.replace('|', ' + ', 1).replace('|', ' ')} | " + " | ".join(cells) + " |")


def plot(rows: list[dict[str, Any]], picture: Path) -> None:
    """Bars of accuracy per corruption, one colour per run, with its forward cost in the legend."""
    import matplotlib.pyplot as plt

    vit = navia.load(MODEL, pretrained=False)
    done = {(row["corruption"], row["run"]) for row in rows}
    runs = list(dict.fromkeys(row["run"] for row in rows))
    names = [name for name in dict.fromkeys(row["corruption"] for row in rows) if all((name, r) in done for r in runs)]
    colours = ["#9aa5b1", "#e0b35c", "#7fb2d6", "#c98bb9", "#2f7d5b"]
    figure, axes = plt.subplots(figsize=(9, 3.2), constrained_layout=True)
    for i, run in enumerate(runs):
        method, reduce = run.split("|")[:2]
        scores = [[100 * r["top1"] for r in rows if r["run"] == run and r["corruption"] == name] for name in names]
        at = [j + (i - (len(runs) - 1) / 2) * 0.16 for j in range(len(names))]
        label = f"{method}{'' if reduce == 'none' else ' + ' + reduce} ({navia.cost(vit, reduce).gmacs:.2f} GMACs)"
        axes.bar(at, [mean(s) for s in scores], 0.15, label=label, color=colours[i % len(colours)])
        for x, s in zip(at, scores, strict=True):
            axes.text(x, mean(s) + 0.4, f"{mean(s):.0f}", ha="center", fontsize=7)
    axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_ylabel("top-1 %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.22))
    figure.savefig(picture, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", action="append", help="method|reducer or method|reducer|{options as JSON}; repeatable")
    parser.add_argument("--corruption", action="append")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, help="at most so many images in the stream")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw what is there to this file")
    options = parser.parse_args()
    asked = Setting(options.severity, options.batch, options.images)
    found = read_rows(options.out)
    rows = [row for row in found if setting_of(row) == asked]
    if options.table or options.plot:
        if not rows:
            there = "; ".join(sorted({str(setting_of(row)) for row in found})) or "nothing"
            parser.error(f"{options.out} has no rows of {asked}; it holds {there}")
        if options.plot:
            plot(rows, options.plot)
        print_table(rows)
        return
    vit = navia.load(MODEL, checkpoint=WEIGHTS)
    folder = scan(IMAGES)
    labels = torch.tensor(folder.labels)
    everything = range(len(folder.paths))
    clean = list(everything)[:: len(folder.paths) // 64][:64]
    rest = [i for i in everything if i not in set(clean)]
    source_images = to_tensor(vit, corrupted(folder, clean, "clean", 0))
    done = {(row["corruption"], row["run"], row["order"]) for row in rows}
    sources: dict[Any, navia.SourceStatistics] = {}
    for name in options.corruption or CORRUPTIONS:
        pictures = None
        for order_seed in range(options.orders):
            for run in options.run or RUNS:
                adapts = not run.startswith("none|")
                if (name, run, order_seed) in done or (order_seed and not adapts):
                    continue
                stays = list(everything) if name == "clean" else rest
                if pictures is None:
                    pictures = corrupted(folder, stays, name, options.severity)
                order = np.random.default_rng(order_seed).permutation(len(stays))[: options.images]
                row = stream(vit, run, source_images, pictures, labels[stays], order, options.batch, sources)
                row = {"corruption": name, **asked._asdict(), "run": run, "order": order_seed, **row}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    f"{name:18} {run:20} order {order_seed}: {100 * row['top1']:.1f} % in {row['seconds']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
