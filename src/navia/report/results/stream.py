"""Accuracy along the stream, from the traces of rows."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from navia.report.results.compare import compared
from navia.report.results.lines import Line
from navia.report.results.tables import Block, Table
from navia.report.results.values import Traces

MOST_CURVES = 16  # in one plot


def legible(table: Table, block: Block) -> list[Line]:
    """The lines that one plot can hold: all, or of too many the most accurate of each method."""
    if len(block.lines) <= MOST_CURVES:
        return list(block.lines)
    by_method: dict[str, list[tuple[float, Line]]] = {}
    for line, value in zip(block.lines, compared(block.lines, table.average), strict=True):
        by_method.setdefault(line.setting.method, []).append((value.mean or 0.0, line))
    return [max(own, key=lambda pair: pair[0])[1] for own in by_method.values()]


def running(line: Line, domain: str, traces: Traces, places: int = 48) -> dict[int, float]:
    """Accuracy in percent up to so many images, at most at `places` of them; mean over the seeds that have a trace."""
    curves = [_running(traces[row["key"]]) for row in line.of(domain) if row["key"] in traces]
    if not curves:
        return {}
    seen = [at for at in curves[0] if all(at in curve for curve in curves)]
    step = max(1, math.ceil(len(seen) / places))
    kept = [at for i, at in enumerate(seen) if i == len(seen) - 1 or (i + 1) % step == 0]
    return {at: statistics.fmean(curve[at] for curve in curves) for at in kept}


def _running(trace: Mapping[str, Any]) -> dict[int, float]:
    right, seen, curve = 0, 0, {}
    for correct, images in zip(trace["right"], trace["images"], strict=True):
        right, seen = right + correct, seen + images
        curve[seen] = 100 * right / seen
    return curve
