"""The service without HTTP: a predictor, an adaptation worker behind it, and their status."""

import contextlib
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import torch
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from torch import Tensor

from navia import __version__
from navia.adaptation.adapter import adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import NaviaError
from navia.models.base import ViT
from navia.models.labels import class_names
from navia.reduction import ReducerLike
from navia.serve.adaptation_worker import AdaptationWorker, Checkpoints
from navia.serve.decoding import thumbnail
from navia.serve.predictor import Predictor, RequestOutput
from navia.serve.schemas import AdaptationStatus, CheckpointStatus, ControlReply, Mode, RecentImage, Status
from navia.serve.settings import ServiceSettings
from navia.serve.stats import WINDOW, Stats, count


class Service:
    """Predicts images and adapts to them in the background; see `navia.adapt` for most arguments.

    The threads `predictor` and `worker` share the frozen weights; each has its own copy of the tuned parameters. `state` is
    the folder for checkpoints; without it none are written.
    """

    def __init__(
        self,
        vit: ViT,
        method: str = "navia",
        reduce: ReducerLike = None,
        source: SourceStatistics | None = None,
        *,
        settings: ServiceSettings | None = None,
        state: Path | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings or ServiceSettings()
        self.vit, self.method, self.reduce = vit, method, str(reduce or "none")
        self.names = class_names(vit) or tuple(map(str, range(vit.num_classes)))
        self.checkpoints = None if state is None else Checkpoints(state)
        self.ready = False
        adapter = adapt(vit, method, reduce, source, **options)
        predicting = adapt(vit, method, reduce, source, guard=False, **(options | {"adapt_every": 1})).method
        self.stats = Stats(self.names, self.settings.keep_images)
        self.predictor = Predictor(
            predicting, self.settings.batching, self.settings.limits.queue_size, self._predicted, self._broken_state
        )
        self.worker = AdaptationWorker(adapter, self.predictor, self.stats, self.settings, self.checkpoints)
        threads = self.settings.decode_threads or max(2, os.cpu_count() or 1)
        self.decoders = ThreadPoolExecutor(threads, thread_name_prefix="decoder")
        self._stopped, self._lock = threading.Event(), contextlib.ExitStack()

    # ---- start and stop

    def start(self) -> None:
        """Resume from the last checkpoint, warm up, and start the threads."""
        self.stats.event("start", f"{self.vit.name}, {self.method} with {self.reduce}")
        if self.checkpoints is not None:
            self._lock = self.checkpoints.lock()
            counters, messages = self.checkpoints.restore(self.worker.adapter)
            self.stats.restore_counters(counters)
            for message in messages:
                self.stats.event("checkpoint", message)
        self.worker.publish()
        blank = torch.zeros(1, len(self.vit.preprocessing.mean), *self.vit.preprocessing.size, device=self.vit.device)
        self.predictor.method.predict(blank)  # the first forward allocates memory and chooses kernels
        self.predictor.start()
        self.worker.start()
        threading.Thread(target=self._sample_every_second, name="stats", daemon=True).start()
        self.ready = True

    def stop_adapting(self) -> None:
        """Start to stop: abort the running step and write the last checkpoint, while predictions continue."""
        self.ready = False
        self.worker.stop()

    def stop(self) -> None:
        """Finish the running prediction, write a last checkpoint, and end all threads."""
        self.stop_adapting()
        self.predictor.stop()
        self._stopped.set()
        for thread in (self.worker, self.predictor):
            if thread.is_alive():
                thread.join()
        self.decoders.shutdown(wait=False, cancel_futures=True)
        self._lock.close()

    @property
    def alive(self) -> bool:
        return self.predictor.is_alive() and self.worker.is_alive()

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since the newest checkpoint; None: there is none."""
        return self.checkpoints.age if self.checkpoints else None

    # ---- control

    def pause(self, paused: bool) -> ControlReply:
        if self.worker.off:
            return self.control_reply(f"{self.method} does not adapt: nothing to pause")
        if paused != self.worker.paused:
            self.worker.pause(paused)
            self.stats.event("pause" if paused else "resume", f"at step {self.worker.adapter.steps}")
        return self.control_reply("adaptation is paused" if paused else "adaptation continues")

    def reset(self) -> "Future[str]":
        return self._command("reset", self.worker.reset)

    def rollback(self) -> "Future[str]":
        return self._command("rollback", self.worker.rollback)

    def load_delta(self, content: bytes) -> "Future[str]":
        def load() -> str:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "uploaded.safetensors"
                path.write_bytes(content)
                return self.worker.load(path)

        return self._command("delta", load)

    def delta(self) -> "Future[bytes]":
        def save() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "delta.safetensors"
                self.worker.adapter.save(path)
                return path.read_bytes()

        return self.worker.call(save)

    def _command(self, kind: str, action: Callable[[], str]) -> "Future[str]":
        def command() -> str:
            text = action()
            self.stats.event(kind, text)
            return text

        return self.worker.call(command)

    def control_reply(self, text: str) -> ControlReply:
        return ControlReply(step=self.worker.adapter.steps, state=self.worker.mode, text=text)

    # ---- status

    def status(self) -> Status:
        stats, worker, last, checkpoint = self.stats, self.worker, self.worker.last, None
        if self.checkpoints is not None:
            checkpoint = CheckpointStatus(
                every=self.settings.checkpoint_every,
                every_seconds=self.settings.checkpoint_seconds,
                step=self.checkpoints.step,
                seconds_ago=self.checkpoint_age,
                failures=count(stats.checkpoint_failures),
            )
        return Status(
            model=self.vit.name,
            method=self.method,
            reduce=self.reduce,
            version=__version__,
            started=stats.started,
            uptime=time.time() - stats.started,
            window=WINDOW,
            ready=self.ready,
            served=stats.request_stats(self.predictor.waiting, self.settings.limits.queue_size),
            adaptation=AdaptationStatus(
                state=worker.mode,
                policy=self._policy(),
                step=self.predictor.step,
                images_waiting=worker.waiting,
                entropy=last.entropy if last else None,
                discrepancy=last.discrepancy if last else None,
                loss=last.loss if last else None,
                update_share=worker.adapter.update_share,
                drift=worker.drift if math.isfinite(worker.drift) else 0.0,
                step_seconds=last.seconds_predict + last.seconds_update if last else None,
                **stats.saved_counters(),
            ),
            checkpoint=checkpoint,
            classes=stats.classes(),
            events=stats.events(),
            series=stats.series(),
        )

    def recent_images(self, after: int) -> list[RecentImage]:
        """Images predicted after the one with number `after`, newest first."""
        return [
            shown.model_copy(update={"picture": thumbnail(image, self.vit.preprocessing)})
            for image, shown in self.stats.recent_images(after)
        ]

    def metrics(self) -> bytes:
        """Counters of `stats` and gauges of the present state, in the text format of Prometheus."""
        worker, last, registry = self.worker, self.worker.last, CollectorRegistry()
        gauges = {
            ("navia_queue_images", "Images that wait for their prediction."): self.predictor.waiting,
            ("navia_adaptation_step", "Step of the state that predicts."): self.predictor.step,
            ("navia_update_share", "Share of the collected batches that led to an update."): worker.adapter.update_share,
            ("navia_parameter_drift", "Relative change of the tuned parameters."): worker.drift,
            ("navia_checkpoint_age_seconds", "Age of the newest checkpoint."): self.checkpoint_age,
            ("navia_batch_entropy", "Mean entropy of the last step's batch."): last.entropy if last else None,
            ("navia_discrepancy", "Distance from the source."): last.discrepancy if last else None,
        }
        for (name, text), value in gauges.items():
            if value is not None:  # a gauge without a value is left out
                Gauge(name, text, registry=registry).set(value)
        state, mode = Gauge("navia_adaptation_state", "1 for the present state.", ["state"], registry=registry), worker.mode
        for name in get_args(Mode):
            state.labels(name).set(name == mode)
        return generate_latest(self.stats.registry) + generate_latest(registry)

    def _policy(self) -> str:
        batching = self.settings.batching
        if self.worker.off:
            return f"{self.method} does not adapt."
        every = self.worker.adapter.adapt_every
        sparse = {
            1: "", "auto": " Once it has converged, few batches are adapted to until the stream changes."
        }.get(every, f" One batch in {every} is adapted to.")  # fmt: skip
        return (
            f"One step for every {batching.adapt_batch} predicted images, or for at least "
            f"{min(batching.min_adapt_batch, batching.adapt_batch)} after {batching.adapt_wait:g} s. A step waits while a "
            f"prediction is running, and none starts while {batching.batch_size} or more images wait for prediction, but "
            f"adaptation gets at least {batching.adapt_share:.0%} of the time. The last {2 * batching.adapt_batch} images "
            f"predicted meanwhile are kept for it, older ones are shed.{sparse}"
        )

    # ---- callbacks of the threads

    def _predicted(self, images: Tensor, output: RequestOutput) -> None:
        self.stats.predicted(images, output)
        self.worker.offer(images)

    def _broken_state(self, text: str) -> None:
        self.stats.event("error", text)
        with contextlib.suppress(NaviaError):  # the service stops
            self.worker.call(self.worker.reset)

    def _sample_every_second(self) -> None:
        while not self._stopped.is_set():
            last = self.worker.last
            self.stats.sample(last.discrepancy if last else None, self.worker.drift, self.predictor.step)
            self._stopped.wait(1.0)
