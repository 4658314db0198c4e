"""A long stream: whether a step takes as long, and the process as much memory, after many steps as after few.

Time is the processor's, all threads together: what else runs on the machine meanwhile changes it least.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

import navia
from navia.data.sample import source_images, unseen_images
from navia.data.sources import Domain
from navia.evaluation.latency import resident_mib
from navia.evaluation.trend import trend

BATCH = 8
METHOD, REDUCE = "navia", "tome:16"
POINTS = 200  # values that the trend is made of, each the mean of a stretch of steps
FEWEST = 10  # values that make a trend


def long_stream(steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """`steps` batches of noisy pictures of the embedded sample, the same ones over and over."""
    vit = navia.load("embedded")
    images = Domain("noise", unseen_images(), "gaussian_noise", 2).tensors(range(64 * BATCH), vit.preprocessing)
    clean = Domain("clean", source_images()).tensors(range(64), vit.preprocessing)
    source = navia.SourceStatistics.measure(vit, clean, REDUCE)
    adapter = navia.adapt(vit, METHOD, REDUCE, source)
    batches = images.split(BATCH)
    stretch = max(1, steps // POINTS)
    at, milliseconds, resident = [], [], []
    try:
        for begin in range(0, steps - stretch + 1, stretch):
            start = time.process_time()
            for number in range(begin, begin + stretch):
                adapter(batches[number % len(batches)])
            milliseconds.append(1000 * (time.process_time() - start) / stretch)
            resident.append(resident_mib())
            at.append(begin + stretch)
            if len(at) % (POINTS // 10) == 0:
                time_text, memory_text = f"{milliseconds[-1]:.1f} ms of processor time", f"{resident[-1]:.1f} MiB resident"
                say(f"  step {at[-1]:,} of {steps:,}: {time_text} a step, {memory_text}")
    except KeyboardInterrupt:
        if len(at) < FEWEST:
            raise
        say(f"stopped after {at[-1]:,} steps")
    return {
        "name": f"embedded, {METHOD}, {REDUCE}",
        "batch": BATCH,
        "steps": at[-1],
        "threads": torch.get_num_threads(),
        "ms_per_step": asdict(trend(at, milliseconds[: len(at)])),
        "resident_mib": asdict(trend(at, resident[: len(at)])),
    }
