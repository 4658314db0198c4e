"""Milliseconds per image for each corruption, on one thread: `python benchmarks/corruptions.py --severity 5`."""

import argparse
import statistics
import time

import cv2
import numpy as np
from numpy.typing import NDArray

from navia.data.corruptions import CORRUPTIONS, corrupt, names


def synthetic_image(side: int) -> NDArray[np.uint8]:
    """Smooth colours with some texture, like a photograph as far as time is concerned."""
    y, x = np.mgrid[:side, :side] / side
    smooth = 128 + 90 * np.stack([np.sin(5 * x + 2 * y), np.cos(4 * y - 3 * x), np.sin(7 * y * y + x)], axis=2)
    return np.clip(smooth + np.random.default_rng(0).normal(scale=12, size=smooth.shape), 0, 255).astype(np.uint8)


def milliseconds(image: NDArray[np.uint8], name: str, severity: int, repeats: int) -> float:
    """Median over `repeats` seeds, after one call that loads modules and textures."""
    times = []
    corrupt(image, name, severity, seed=0)
    for seed in range(repeats):
        start = time.perf_counter()
        corrupt(image, name, severity, seed=seed)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    image = synthetic_image(options.side)
    print(f"ms per {options.side} px image, severity {options.severity}, one thread, median of {options.repeats}")
    cost = {name: milliseconds(image, name, options.severity, options.repeats) for name in names(extra=True)}
    for group, members in CORRUPTIONS.items():
        for name in members:
            print(f"{group:8} {name:18} {cost[name]:7.2f}")
    print(f"{'all 15':27} {sum(cost[name] for name in names()):7.2f}")


if __name__ == "__main__":
    main()
