"""Which images a run got right, from its trace, and how certain a mean accuracy is over the images.

The same image in another order of the stream, or under another corruption, is no new image: what it adds to a mean is summed
up over all rows before anything is squared.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from navia.evaluation.metrics import wilson
from navia.report.numbers import finite
from navia.report.results.values import Row, Traces

Z95 = 1.96  # two-sided 95 % quantile of the normal distribution
Weighted = Sequence[tuple[float, Row]]  # a sum of accuracies: the weight of each row


@dataclass(frozen=True, eq=False)
class Scored:
    """Images of one collection, by position: which of them a run scored, and which of these it got right."""

    collection: str
    seen: np.ndarray
    right: np.ndarray


Scores = Mapping[str, Sequence[Scored]]  # by the key of a row


def scores_of(traces: Traces) -> dict[str, list[Scored]]:
    """Of all traces that hold them."""
    found = {key: _scored(trace.get("scored")) for key, trace in traces.items()}
    return {key: scored for key, scored in found.items() if scored}


def _scored(told: Any) -> list[Scored]:
    try:
        return [Scored(str(part["collection"]), *(_bits(part[name], part["images"]) for name in ("seen", "right")))
                for part in told or ()]  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return []


def _bits(text: str, count: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count).astype(bool)
    if len(bits) != count:
        raise ValueError(f"{len(bits)} bits for {count} images")
    return bits


def variance(rows: Weighted, scores: Scores) -> tuple[float, int] | None:
    """Of the weighted sum of the rows' accuracies over the images, and the number of different images. None: not all rows
    tell which images they got right."""
    sums: dict[str, np.ndarray] = {}
    seen: dict[str, np.ndarray] = {}
    for weight, row in rows:
        own = scores.get(row["key"])
        count = sum(int(part.seen.sum()) for part in own or ())
        if not own or not count:
            return None
        mean = sum(int(part.right.sum()) for part in own) / count
        if not math.isclose(mean, row["top1"], abs_tol=1e-6):  # a trace of another run
            return None
        for part in own:
            sums.setdefault(part.collection, np.zeros(len(part.seen)))
            seen.setdefault(part.collection, np.zeros(len(part.seen), dtype=bool))
            sums[part.collection] += weight / count * part.seen * (part.right - mean)
            seen[part.collection] |= part.seen
    return sum(float((part**2).sum()) for part in sums.values()), sum(int(part.sum()) for part in seen.values())


def interval(mean: float, rows: Weighted, scores: Scores) -> tuple[float, float]:
    """95 % interval of a mean accuracy (a share) over the images: Wilson's, with as many images as would vary as much.

    Where rows do not tell which images they got right, with the images of a single row: no mean over several runs on the
    same images varies more than that."""
    smallest = min(row["count"] for _, row in rows)
    known = variance(rows, scores) if len(rows) > 1 else None
    if known is None:
        count = float(smallest)
    elif known[0] > 0:
        count = min(mean * (1 - mean) / known[0], float(sum(row["count"] for _, row in rows)))
    else:
        count = float(known[1])
    return wilson(min(mean, 1.0) * count, count)


def gap_interval(gap: float, rows: Weighted, scores: Scores) -> tuple[float, float] | None:
    """95 % interval of a difference of mean accuracies (shares) on the same images. Two images, one for each side, are added
    to the variance (Bonett and Price, 2012), so that few images that were all answered alike do not look certain."""
    known = variance(rows, scores)
    if known is None:
        return None
    half = Z95 * math.sqrt(known[0] + 2 / (known[1] + 2) ** 2)
    return gap - half, gap + half


def tells(rows: Sequence[Row], scores: Scores) -> bool:
    return all(row["key"] in scores for row in rows if finite(row["top1"]) is not None)
