"""What happened lately, for the status, the dashboard and Prometheus. Everything is bounded; any thread may tell."""

import bisect
import collections
import itertools
import math
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor

from navia.serve.predictor import Answer
from navia.serve.schemas import ClassCount, Event, Series

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds to a reply, for Prometheus
WINDOW = 300  # seconds that rates, percentiles, classes and series are about


@dataclass(frozen=True)
class Shown:
    """An answered image that the dashboard may show."""

    number: int
    time: float
    image: Tensor
    best: int
    probability: float
    entropy: float
    step: int


@dataclass
class _Second:
    """latencies: in milliseconds. p50, p95: of them, once the second is over."""

    images: int = 0
    entropy: float = 0.0
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    classes: "collections.Counter[int]" = field(default_factory=collections.Counter)
    p50: float | None = None
    p95: float | None = None
    discrepancy: float | None = None
    drift: float = 0.0
    step: int = 0
    shed: int = 0

    def end(self) -> None:
        known = sorted(self.latencies)
        self.p50, self.p95 = _quantile(known, 0.5), _quantile(known, 0.95)


class Watch:
    """pulse: (discrepancy, drift, step, images shed so far) of the adaptation, looked up once for every second. clock:
    seconds since 1970."""

    def __init__(
        self,
        keep_images: int,
        pulse: Callable[[], tuple[float | None, float, int, int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self.started = clock()
        self.requests = self.images = 0
        self.refused: collections.Counter[str] = collections.Counter()
        self.bucket_counts = [0] * (len(BUCKETS) + 1)
        self.latency_sum = 0.0
        self._pulse = pulse
        self._shed_before: int | None = None  # a restart begins with those of the process before
        self._lock = threading.Lock()
        self._seconds: collections.OrderedDict[int, _Second] = collections.OrderedDict()
        self._events: collections.deque[Event] = collections.deque(maxlen=50)
        self._shown: collections.deque[Shown] = collections.deque(maxlen=keep_images or None)
        self._keep, self._numbered = keep_images > 0, 0

    # ---- what others tell

    def replied(self, seconds: float) -> None:
        with self._lock:
            self.requests += 1
            self.latency_sum += seconds
            self.bucket_counts[bisect.bisect_left(BUCKETS, seconds)] += 1
            self._now().latencies.append(1000 * seconds)

    def answered(self, images: Tensor, answer: Answer) -> None:
        probabilities, classes = answer.probabilities.max(dim=1)
        with self._lock:
            second = self._now()
            self.images += len(images)
            second.images += len(images)
            second.entropy += float(answer.entropy.sum())
            second.classes.update(classes.tolist())
            if self._keep:
                self._keep_pictures(images, answer, probabilities, classes)

    def refuse(self, reason: str) -> None:
        with self._lock:
            self.refused[reason] += 1

    def event(self, kind: str, text: str) -> None:
        with self._lock:
            self._events.appendleft(Event(time=self._clock(), kind=cast(Any, kind), text=text))

    # ---- what is asked

    def percentiles(self) -> tuple[float | None, float | None, float | None]:
        """p50, p95, p99 of the replies in the window, in milliseconds."""
        with self._lock:
            known = sorted(itertools.chain.from_iterable(second.latencies for second in self._window()))
        return _quantile(known, 0.5), _quantile(known, 0.95), _quantile(known, 0.99)

    def window_images(self) -> int:
        with self._lock:
            return sum(second.images for second in self._window())

    def images_per_second(self) -> float:
        """Over the window, or since the start where that is shorter."""
        return self.window_images() / max(1.0, min(WINDOW, self._clock() - self.started))

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def classes(self, names: Sequence[str]) -> list[ClassCount]:
        with self._lock:
            counts: collections.Counter[int] = collections.Counter()
            for second in self._window():
                counts.update(second.classes)
        return [ClassCount(label=names[index], count=count) for index, count in counts.most_common(20)]

    def shown(self, after: int) -> list[Shown]:
        with self._lock:
            return [shown for shown in reversed(self._shown) if shown.number > after]

    def series(self) -> Series:
        """The whole seconds so far; the present one is not over."""
        now = int(self._clock())
        with self._lock:
            self._now()
            first = max(int(self.started), now - WINDOW)
            seconds = [(t, self._seconds.get(t)) for t in range(first, now)]
        points = _carried_on(seconds)
        return Series(
            time=[float(t) for t, _ in points],
            images_per_second=[float(s.images) for _, s in points],
            p50_ms=[s.p50 for _, s in points],
            p95_ms=[s.p95 for _, s in points],
            entropy=[s.entropy / s.images if s.images else None for _, s in points],
            discrepancy=[s.discrepancy for _, s in points],
            drift=[s.drift for _, s in points],
            step=[s.step for _, s in points],
            shed=[s.shed for _, s in points],
        )

    def beat(self) -> None:
        """Once a second: notes where the adaptation is."""
        discrepancy, drift, step, shed = self._pulse()
        with self._lock:
            second = self._now()
            second.discrepancy, second.drift, second.step = discrepancy, drift, step
            second.shed += 0 if self._shed_before is None else shed - self._shed_before
            self._shed_before = shed

    def _window(self) -> list[_Second]:
        """The seconds of the window in which something was told, with the present one."""
        now = int(self._clock())
        return [second for t, second in self._seconds.items() if now - WINDOW < t <= now]

    def _now(self) -> _Second:
        now = int(self._clock())
        if now not in self._seconds:
            before = next(reversed(self._seconds.values()), _Second())
            before.end()
            self._seconds[now] = _Second(discrepancy=before.discrepancy, drift=before.drift, step=before.step)
            while len(self._seconds) > WINDOW + 2:
                self._seconds.popitem(last=False)
        return self._seconds[now]

    def _keep_pictures(self, images: Tensor, answer: Answer, probabilities: Tensor, classes: Tensor) -> None:
        assert self._shown.maxlen is not None
        for i in range(max(0, len(images) - self._shown.maxlen), len(images)):
            values = (int(classes[i]), float(probabilities[i]), float(answer.entropy[i]))
            self._shown.append(Shown(self._numbered + i + 1, self._clock(), images[i].clone(), *values, answer.step))
        self._numbered += len(images)


def _carried_on(seconds: Iterable[tuple[int, _Second | None]]) -> list[tuple[int, _Second]]:
    """A second in which nothing was told still has the state of the one before."""
    points: list[tuple[int, _Second]] = []
    for t, second in seconds:
        before = points[-1][1] if points else _Second()
        points.append((t, second or _Second(discrepancy=before.discrepancy, drift=before.drift, step=before.step)))
    return points


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Of sorted values: the smallest that at least this share of them does not exceed."""
    if not ordered:
        return None
    if share == 0.5:
        return statistics.median(ordered)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
