"""Counters, time series, events and recent images. All sizes are bounded; every method may be called from any thread."""

import collections
import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram
from torch import Tensor

from navia.serve.predictor import RequestOutput
from navia.serve.schemas import ClassCount, Event, RecentImage, RequestStats, TimeSeries

log = logging.getLogger("navia.serve")

WINDOW = 300  # seconds that rates, percentiles, classes and series cover
_SAVED = ("images_adapted", "images_skipped", "images_shed", "guard_events")  # counters that continue after a restart
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds of a reply


@dataclass
class _Second:
    """What happened in one second; fields are named as in TimeSeries. Percentiles are set when it is over."""

    time: int
    discrepancy: float | None = None
    drift: float = 0.0
    step: int = 0
    images_per_second: int = 0
    shed: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    entropies: float = 0.0  # summed over the images
    latencies: "array[float]" = field(default_factory=lambda: array("d"))  # milliseconds
    classes: "collections.Counter[int]" = field(default_factory=collections.Counter)

    @property
    def entropy(self) -> float | None:
        return self.entropies / self.images_per_second if self.images_per_second else None

    def next(self, time: int) -> "_Second":
        """End this second; the next one starts with its adaptation state."""
        self.p50_ms, self.p95_ms = _quantile(self.latencies, 0.5), _quantile(self.latencies, 0.95)
        return _Second(time, self.discrepancy, self.drift, self.step)


class Stats:
    """Statistics of a service; its counters are Prometheus metrics in a registry of their own. names: of the classes."""

    def __init__(self, names: Sequence[str], keep_images: int, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self.requests = counter("navia_requests", "Requests answered.")
        self.images = counter("navia_images", "Images predicted.")
        self.refused = counter("navia_requests_refused", "Requests that failed or were refused.", "reason")
        self.images_adapted = counter("navia_images_adapted", "Images adapted to.")
        self.images_skipped = counter("navia_images_skipped", "Images that --adapt-every leaves out of the adaptation.")
        self.images_shed = counter("navia_images_shed", "Images left out of the adaptation.")
        self.guard_events = counter("navia_guard_events", "Events of the guard.")
        self.checkpoint_failures = counter("navia_checkpoint_failures", "Checkpoints that could not be written.")
        self.reply_seconds = Histogram(
            "navia_reply_seconds", "Seconds from request to reply.", buckets=_BUCKETS, registry=self.registry
        )
        self._names, self._clock, self.started, self._lock = names, clock, clock(), threading.Lock()
        self._seconds = collections.deque([_Second(int(self.started))], maxlen=WINDOW + 1)
        self._events: collections.deque[Event] = collections.deque(maxlen=50)
        self._recent: collections.deque[tuple[Tensor, RecentImage]] = collections.deque(maxlen=keep_images)

    # ---- recording

    def replied(self, seconds: float) -> None:
        self.requests.inc()
        self.reply_seconds.observe(seconds)
        with self._lock:
            self._now().latencies.append(1000 * seconds)

    def predicted(self, images: Tensor, output: RequestOutput) -> None:
        probabilities, classes = output.probabilities.max(dim=1)
        before = count(self.images)
        self.images.inc(len(images))
        with self._lock:
            second = self._now()
            second.images_per_second += len(images)
            second.entropies += float(output.entropy.sum())
            second.classes.update(classes.tolist())
            for i in range(max(0, len(images) - (self._recent.maxlen or 0)), len(images)):
                shown = RecentImage(
                    number=before + i + 1,
                    time=self._clock(),
                    picture="",  # made when it is asked for
                    label=self._names[int(classes[i])],
                    probability=float(probabilities[i]),
                    entropy=float(output.entropy[i]),
                    step=output.step,
                )
                self._recent.append((images[i].clone(), shown))

    def refuse(self, reason: str) -> None:
        self.refused.labels(reason).inc()

    def shed(self, count: int) -> None:
        self.images_shed.inc(count)
        with self._lock:
            self._now().shed += count

    def event(self, kind: str, text: str) -> None:
        log.info("%s: %s", kind, text)
        with self._lock:
            self._events.appendleft(Event(time=self._clock(), kind=cast(Any, kind), text=text))

    def sample(self, discrepancy: float | None, drift: float, step: int) -> None:
        """Record the state of the adaptation; called once a second."""
        with self._lock:
            second = self._now()
            second.discrepancy, second.drift, second.step = discrepancy, drift, step

    def saved_counters(self) -> dict[str, int]:
        """The counters that continue after a restart."""
        return {name: count(getattr(self, name)) for name in _SAVED}

    def restore_counters(self, saved: Mapping[str, int]) -> None:
        for name in self.saved_counters().keys() & saved.keys():
            getattr(self, name).inc(saved[name])

    # ---- reading

    def request_stats(self, queue: int, queue_limit: int) -> RequestStats:
        with self._lock:
            window = self._window()
            latencies = [latency for second in window for latency in second.latencies]
        images = sum(second.images_per_second for second in window)
        refused = next(iter(self.refused.collect())).samples
        return RequestStats(
            requests=count(self.requests),
            images=count(self.images),
            refused={sample.labels["reason"]: int(sample.value) for sample in refused if sample.name.endswith("_total")},
            images_per_second=images / max(1.0, min(WINDOW, self._clock() - self.started)),
            window_images=images,
            p50_ms=_quantile(latencies, 0.5),
            p95_ms=_quantile(latencies, 0.95),
            p99_ms=_quantile(latencies, 0.99),
            queue=queue,
            queue_limit=queue_limit,
        )

    def classes(self) -> list[ClassCount]:
        """The most frequent predicted classes of the window."""
        counts: collections.Counter[int] = collections.Counter()
        with self._lock:
            for second in self._window():
                counts.update(second.classes)
        return [ClassCount(label=self._names[index], count=number) for index, number in counts.most_common(20)]

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def recent_images(self, after: int) -> list[tuple[Tensor, RecentImage]]:
        """Images with a number above `after`, newest first."""
        with self._lock:
            return [(image, shown) for image, shown in reversed(self._recent) if shown.number > after]

    def series(self) -> TimeSeries:
        """The completed seconds of the window."""
        with self._lock:
            self._now()
            seconds = list(self._seconds)[:-1]
        return TimeSeries(**{name: [getattr(second, name) for second in seconds] for name in TimeSeries.model_fields})

    def _window(self) -> list[_Second]:
        """The seconds of the window, with the present one."""
        self._now()
        return list(self._seconds)[-WINDOW:]

    def _now(self) -> _Second:
        """The present second; the seconds since the last call are added before it."""
        now = int(self._clock())
        if now < self._seconds[-1].time - WINDOW:  # the clock was set back
            self._seconds = collections.deque([self._seconds[-1].next(now)], maxlen=WINDOW + 1)
        for second in range(max(self._seconds[-1].time + 1, now - WINDOW), now + 1):
            self._seconds.append(self._seconds[-1].next(second))
        return self._seconds[-1]


def count(counter: Counter) -> int:
    """Value of a counter without labels."""
    return int(next(iter(counter.collect())).samples[0].value)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed; the usual median for 0.5."""
    return float(np.quantile(values, share, method="linear" if share == 0.5 else "inverted_cdf")) if values else None
