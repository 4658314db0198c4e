"""FOA's CMA-ES search with the full covariance and with variances only: time and accuracy of both.

python benchmarks/foa.py                  embedded model, and DeiT-Ti where NAVIA_DEIT and NAVIA_IMAGENET name its files
python benchmarks/foa.py --images 512     more images per model
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

import deit
import navia
from cases import script_parser
from navia.cli.terminal import print_wide
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain, scan
from navia.evaluation.metrics import top_k

BATCH = 32
REDUCE = "tome:8"
Stream = tuple[navia.ViT, Tensor, Tensor, Tensor]  # model, clean images, noisy images, their labels


def compare(images: int, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows of both searches for the embedded model and, if its weights and images exist, for DeiT-Ti."""
    for name, (vit, clean, noisy, labels) in streams(images, say):
        source = navia.SourceStatistics.measure(vit, clean, REDUCE)
        plain = accuracy(navia.adapt(vit, "none", REDUCE, source), noisy, labels)[0]
        for diagonal in (False, True):
            say(f"foa, {REDUCE}, {name}, {'variances only' if diagonal else 'full covariance'}: {len(noisy)} images")
            adapter = navia.adapt(vit, "foa", REDUCE, source, diagonal=diagonal)
            with search_clock() as spent:
                top1, seconds = accuracy(adapter, noisy, labels)
            yield {
                "model": name,
                "reduce": REDUCE,
                "diagonal": diagonal,
                "batch": BATCH,
                "images": len(noisy),
                "ms_per_batch": 1000 * float(np.median(seconds)),
                "search_share": sum(spent) / sum(seconds),
                "top1": top1,
                "top1_none": plain,
            }


def accuracy(adapter: navia.Adapter, images: Tensor, labels: Tensor) -> tuple[float, list[float]]:
    """Accuracy over the stream, and seconds of each batch."""
    logits, seconds = [], []
    for batch in images.split(BATCH):
        start = time.perf_counter()
        logits.append(adapter(batch))
        seconds.append(time.perf_counter() - start)
    return top_k(torch.cat(logits), labels), seconds


@contextlib.contextmanager
def search_clock() -> Iterator[list[float]]:
    """Seconds of every `ask` and `tell` of CMA-ES inside the context."""
    import cma

    strategy, spent = cma.CMAEvolutionStrategy, []
    calls = {name: getattr(strategy, name) for name in ("ask", "tell")}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent.append(time.perf_counter() - start)

        return wrapper

    try:
        for name, call in calls.items():
            setattr(strategy, name, timed(call))
        yield spent
    finally:
        for name, call in calls.items():
            setattr(strategy, name, call)


def streams(images: int, say: Callable[[str], None]) -> Iterator[tuple[str, Stream]]:
    yield "embedded", embedded(images)
    if deit.WEIGHTS.is_file() and deit.IMAGES.is_dir():
        yield "DeiT-Ti", deit_tiny(images)
    else:
        say("foa: no DeiT-Ti; set NAVIA_DEIT and NAVIA_IMAGENET for it")


def embedded(images: int) -> Stream:
    vit, unseen = navia.load("embedded"), unseen_images()
    indices = range(min(images, len(unseen)))
    noisy = Domain("noise", unseen, "gaussian_noise", 2).tensors(indices, vit.preprocessing)
    clean = Domain("clean", source_images()).tensors(range(64), vit.preprocessing)
    return vit, clean, noisy, torch.tensor(unseen.labels)[: len(indices)]


def deit_tiny(images: int) -> Stream:
    """64 clean images for the statistics, others with noise, both sampled from all classes."""
    vit, folder = navia.load(deit.MODEL, checkpoint=deit.WEIGHTS), scan(deit.IMAGES)
    order = np.random.default_rng(0).permutation(len(folder.paths)).tolist()
    clean, rest = order[:64], order[64 : 64 + images]
    noisy = deit.batch(vit, deit.pictures(folder, rest, "gaussian_noise"))
    return vit, deit.batch(vit, deit.pictures(folder, clean)), noisy, torch.tensor(folder.labels)[rest]


COLUMNS = ("FOA", "ms/batch", "search, %", "accuracy, %", "no adaptation, %")


def cells(row: dict[str, Any]) -> list[str]:
    name = f"{row['model']}, {row['reduce']}, {'variances only' if row['diagonal'] else 'full covariance'}"
    shares = (f"{100 * row[key]:.1f}" for key in ("search_share", "top1", "top1_none"))
    return [name, f"{row['ms_per_batch']:,.0f}", *shares]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--images", type=int, default=256, help="images per model; default: 256")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    if options.images < 1:
        parser.error("images must be at least 1")
    rows = list(compare(options.images, lambda line: print(line, file=sys.stderr, flush=True)))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*cells(row))
    print_wide(table)


if __name__ == "__main__":
    main()
