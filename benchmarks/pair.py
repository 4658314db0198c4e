"""Which of two adaptation steps takes longer, and by how much? For differences below the noise of single steps.

python benchmarks/pair.py align,tome:8 navia,tome:8                                           DeiT-Ti, batch 32, 100 pairs
python benchmarks/pair.py align,tome:8 navia,tome:8 --model vit_base_patch16_224 --batch 8

Steps are made in the order A B B A, so that a drift of the machine falls on both. Printed is the median of the ratios B / A
of neighbours, and between which values that median lies with 95 % (order statistics). Ctrl-C ends early and prints what was
found.
"""

import argparse
import math
import time
from collections.abc import Sequence
from statistics import median

import torch

from navia.errors import NaviaError
from navia.evaluation.latency import random_images
from navia.evaluation.speed import Case, Runner, Setting, check_case, load, runner
from navia.models.device import keep_freed_memory

NORMAL_95 = 1.96


def case_of(text: str) -> Case:
    method, _, reduce = text.partition(",")
    case = Case("step", method, reduce or "none")
    check_case(case)
    return case


def seconds(step: Runner, images: torch.Tensor) -> float:
    start = time.perf_counter()
    step(images)
    return time.perf_counter() - start


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """The two values between which the median lies with 95 %: their ranks are binomial, here by the normal approximation."""
    ordered, half = sorted(values), NORMAL_95 * math.sqrt(len(values)) / 2
    low = max(0, math.floor(len(values) / 2 - half) - 1)
    return ordered[low], ordered[len(values) - 1 - low]


def main() -> None:
    keep_freed_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="METHOD,REDUCE")
    parser.add_argument("b", help="METHOD,REDUCE")
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="of timm; its weights are random")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=100)
    options = parser.parse_args()
    try:
        cases = case_of(options.a), case_of(options.b)
    except NaviaError as error:
        parser.error(str(error))
    vit = load(Setting(options.model, options.batch))
    images = random_images(vit, options.batch)
    a, b = (runner(vit, case) for case in cases)
    for step in (a, b):
        step.warm_up(images)
    ratios: list[float] = []
    try:
        for number in range(options.pairs):
            if number % 2 == 0:
                first, second = seconds(a, images), seconds(b, images)
            else:
                second, first = seconds(b, images), seconds(a, images)
            ratios.append(second / first)
    except KeyboardInterrupt:
        print()
    if not ratios:
        raise SystemExit("no pair was finished")
    low, high = interval_of_median(ratios)
    threads = torch.get_num_threads()
    print(f"{cases[1]} / {cases[0]}, {options.model}, batch {options.batch}, {threads} threads, {len(ratios)} pairs:")
    print(f"{median(ratios):.4f}, 95 % of the median: {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
