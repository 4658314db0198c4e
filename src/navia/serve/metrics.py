"""The status as Prometheus reads it."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from navia.serve.schemas import Mode
from navia.serve.service import Service
from navia.serve.stats import BUCKETS


class _Collector:
    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        watch, learner, answers = self.service.watch, self.service.learner, self.service.answers
        yield CounterMetricFamily("navia_requests", "Requests answered.", watch.requests)
        yield CounterMetricFamily("navia_images", "Images answered.", watch.images)
        refused = CounterMetricFamily("navia_requests_refused", "Requests without an answer.", labels=["reason"])
        for reason, count in sorted(watch.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        yield self._latency()
        yield GaugeMetricFamily("navia_queue_images", "Images that wait for their answer.", answers.waiting)
        yield GaugeMetricFamily("navia_adaptation_step", "Step whose state answers.", answers.step)
        yield CounterMetricFamily("navia_images_adapted", "Images learned from.", learner.counters["images_adapted"])
        yield CounterMetricFamily("navia_images_shed", "Images left out of adaptation.", learner.counters["images_shed"])
        yield CounterMetricFamily("navia_guard_events", "Verdicts of the guard.", learner.counters["guard_events"])
        yield GaugeMetricFamily("navia_parameter_drift", "Relative move of the tuned parameters.", learner.drift)
        checkpoints = self.service.checkpoints
        if checkpoints is not None:
            yield CounterMetricFamily("navia_checkpoint_failures", "Checkpoints not written.", checkpoints.failures)
            if checkpoints.age is not None:
                yield GaugeMetricFamily("navia_checkpoint_age_seconds", "Age of the newest checkpoint.", checkpoints.age)
        mode = GaugeMetricFamily("navia_adaptation_state", "1 for the present state.", labels=["state"])
        now = learner.mode
        for name in get_args(Mode):
            mode.add_metric([name], float(name == now))
        yield mode
        if learner.last is not None:
            yield GaugeMetricFamily("navia_batch_entropy", "Mean entropy of the last step's batch.", learner.last.entropy)
            if learner.last.discrepancy is not None:
                yield GaugeMetricFamily("navia_discrepancy", "Distance to the source.", learner.last.discrepancy)

    def _latency(self) -> HistogramMetricFamily:
        watch = self.service.watch
        counts, total, buckets = list(watch.bucket_counts), 0, []
        for bound, count in zip((*BUCKETS, float("inf")), counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        text = "Seconds from the arrival of a request to its reply."
        return HistogramMetricFamily("navia_reply_seconds", text, buckets=buckets, sum_value=watch.latency_sum)


def metrics(service: Service) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(service))
    return generate_latest(registry)
