"""Compare methods on your own images. One row per method: accuracy, entropy, time.

    python examples/compare_methods.py
    python examples/compare_methods.py --model timm:deit_tiny_patch16_224 --images FIELD --source CLEAN --methods none navia

Images are in folders with the names of their classes (or ImageNet's). Without labels the table has no top-1.
"""

import time

import common
import torch
from rich.console import Console
from rich.table import Table

import navia
from navia.evaluation.metrics import wilson


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--methods", nargs="+", default=["none", "tent", "align", "navia"], help="see `navia methods`")
    parser.add_argument("--reduce", nargs="+", default=["none", "tome:8"], help="token reducers")
    given = parser.parse_args()
    setup = common.load(given)
    table = Table("method", "reduce", "top-1", "95 %", "entropy", "ms per image", title=f"{given.model} on {given.images}")
    for reduce in given.reduce:
        for method in given.methods:
            table.add_row(method, reduce, *measure(setup, setup.adapter(method, reduce)))
    Console().print(table)


def measure(setup: common.Setup, adapter: navia.Adapter) -> tuple[str, str, str, str]:
    """Accuracy with its interval, mean entropy and time of one method over the whole stream."""
    correct = labelled = images = 0
    entropy = seconds = 0.0
    for batch in setup.stream():
        start = time.perf_counter()
        logits = adapter(batch.images)
        seconds += time.perf_counter() - start
        assert adapter.last is not None
        entropy += adapter.last.entropy * len(logits)
        images += len(logits)
        known = batch.labels >= 0
        correct += int(torch.sum((logits.argmax(dim=1) == batch.labels) & known))
        labelled += int(known.sum())
    milliseconds = f"{1000 * seconds / images:.1f}"
    if not labelled:
        return "", "", f"{entropy / images:.3f}", milliseconds
    low, high = wilson(correct, labelled)
    return f"{correct / labelled:.1%}", f"{100 * low:.1f} - {100 * high:.1f}", f"{entropy / images:.3f}", milliseconds


if __name__ == "__main__":
    main()
