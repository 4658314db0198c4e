"""The demonstration on the embedded sample: what shift does, what adaptation gives back, what merging costs."""

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from navia.adapt.adapter import adapt
from navia.adapt.statistics import SourceStatistics
from navia.images.sample import load_sample
from navia.measure.cost import cost
from navia.measure.quality import top_k
from navia.vit.load import load

RUNS = (("none", False), ("tent", False), ("align", False), ("align", True), ("navia", True))


def run_demo(reduce: str, batch: int = 32) -> Iterator[dict[str, Any]]:
    """One row per run, computed here and now: accuracy on each shift, cost and time per image."""
    vit, sample = load("embedded"), load_sample()
    for method, merged in RUNS:
        reducer = reduce if merged else "none"
        adapter = adapt(vit, method, reducer, SourceStatistics.measure(vit, sample.source, reducer))
        scores, seconds, count = {}, 0.0, 0
        for name, (images, labels) in sample.domains.items():
            adapter.reset()
            start = time.perf_counter()
            scores[name] = _online_accuracy(adapter, images, labels, batch)
            seconds, count = seconds + time.perf_counter() - start, count + len(images)
        yield {
            "method": method,
            "reduce": reducer,
            "top1": scores,
            "gmacs": cost(vit, reducer, method=method).gmacs,
            "ms_per_image": 1000 * seconds / count,
        }


def _online_accuracy(adapter: Any, images: Tensor, labels: Tensor, batch: int) -> float:
    """Share of right answers, each given when its batch came."""
    right = 0.0
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        right += top_k(adapter(x), y) * len(y)
    return right / len(labels)
