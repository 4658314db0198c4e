"""Adaptation under a clock (Alfarra et al., 2023): batches arrive at the pace of the un-adapted dense model. While a
method is still busy with an earlier batch, the next ones are answered by its last state and not adapted to.

The clock is simulated from measured costs: one ratio decides which batches are missed, and equal ratios give equal results.
"""

import copy
import statistics
import time
from collections.abc import Iterable, Iterator

from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.bench.run import Answered, answer, answer_only
from navia.data.loader import Batch
from navia.models.base import ViT


def step_ratio(vit: ViT, adapter: Adapter, images: Tensor, rounds: int = 5) -> float:
    """Time of the adapter's whole step on a batch of the stream over the dense, un-adapted forward's: interleaved, medians,
    at least 1. A copy of the adapter is timed; the adapter itself stays as it is."""
    images = images.to(vit.device)
    timed, plain = copy.deepcopy(adapter), adapt(vit, "none")
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for number in range(rounds + 1):
        for which, runner in enumerate((plain, timed)):
            start = time.perf_counter()
            runner(images)
            if number:  # the first round warms up
                seconds[which].append(time.perf_counter() - start)
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[0])
    return max(1.0, round(ratio, 2))


def on_the_clock(adapter: Adapter, batches: Iterable[Batch], ratio: float) -> Iterator[Answered]:
    """As `run`, but a batch that comes before the last update is over is answered only."""
    free = 0.0
    for arrival, batch in enumerate(batches):
        if batch.reset:
            free = float(arrival)
        if free <= arrival + 1e-9:
            free = max(free, arrival) + ratio
            yield answer(adapter, batch)
        else:
            yield answer_only(adapter, batch, "missed: still busy")
