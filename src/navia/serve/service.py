"""The service without its network: pictures in, answers out, adaptation behind them."""

import contextlib
import json
import logging
import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navia.adaptation.adapter import adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import InputError, NaviaError
from navia.models.base import ViT
from navia.models.labels import class_names
from navia.reduction import ReducerLike
from navia.report.formatting import finite
from navia.serve.adaptation_worker import Learner
from navia.serve.checkpoints import Checkpoints
from navia.serve.decoding import read_picture
from navia.serve.gate import Gate
from navia.serve.predictor import Answer, Answers
from navia.serve.schemas import Done
from navia.serve.settings import Settings
from navia.serve.stats import Watch

log = logging.getLogger("navia.serve")


class Service:
    """Two threads, `answers` and `learner`, each with a small set of tuned parameters of its own over shared weights."""

    def __init__(
        self,
        vit: ViT,
        method: str = "navia",
        reduce: ReducerLike = None,
        source: SourceStatistics | None = None,
        *,
        settings: Settings | None = None,
        state: Path | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings or Settings()
        self.vit, self.method, self.reduce = vit, method, str(reduce or "none")
        self.names = class_names(vit) or tuple(map(str, range(vit.num_classes)))
        self._labels = [json.dumps(name) for name in self.names]
        self.checkpoints = None if state is None else Checkpoints(state)
        self.ready = False
        adapter = adapt(vit, method, reduce, source, **options)
        front = adapt(vit, method, reduce, source, guard=False, **options).method
        pace, limits = self.settings.pace, self.settings.limits
        gate = Gate(pace.share)
        self.watch = Watch(self.settings.keep_images, self._pulse)
        self.answers = Answers(front, gate, pace, limits.queue, self._answered, self._broken)
        self.learner = Learner(
            adapter, gate, pace, self.answers.publish, self._pressure, self._event, self.checkpoints,
            self.settings.checkpoint_every, self.settings.checkpoint_seconds,
        )  # fmt: skip
        self._decoders = ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1), thread_name_prefix="decoder")
        self._stop = threading.Event()

    # ---- life

    def start(self) -> None:
        """Go on from the last checkpoint, warm up, and be ready."""
        if self.checkpoints is not None:
            self.checkpoints.claim()
        self._event("start", f"{self.vit.name}, {self.method} with {self.reduce}")
        if self.checkpoints is not None:
            counters, said = self.checkpoints.restore(self.learner.adapter)
            self.learner.counters.update(counters)
            for text in said:
                self._event("checkpoint", text)
        self.learner.show()
        self._warm_up()
        self.answers.start()
        self.learner.start()
        self.watch.beat()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        self.ready = True

    def stop_adapting(self) -> None:
        """Begin to stop: the step under way is given up and the last checkpoint written, while answers go on."""
        self.ready = False
        self.learner.stop()

    def stop(self) -> None:
        """Answer what is under way, write a last checkpoint. Both threads have ended when this returns."""
        self.stop_adapting()
        self.answers.stop()
        self._stop.set()
        for thread in (self.learner, self.answers):
            if thread.is_alive():
                thread.join()
        self._decoders.shutdown(wait=False, cancel_futures=True)
        if self.checkpoints is not None:
            self.checkpoints.release()

    @property
    def alive(self) -> bool:
        return self.answers.is_alive() and self.learner.is_alive()

    def _warm_up(self) -> None:
        """The first forward allocates and chooses kernels; nobody should wait for that."""
        height, width = self.vit.preprocessing.size
        blank = torch.zeros(1, len(self.vit.preprocessing.mean), height, width, device=self.vit.cls_token.device)
        self.answers.method.predict(blank)

    # ---- answers

    def decode(self, files: list[bytes]) -> "Future[Tensor]":
        """Pictures -> [B, C, H, W]; a bad one is named by its position."""
        return self._decoders.submit(self._decode, files)

    def _decode(self, files: list[bytes]) -> Tensor:
        images = []
        for position, data in enumerate(files):
            try:
                images.append(read_picture(data, self.vit.preprocessing, self.settings.limits))
            except InputError as error:
                where = f"image {position}: " if len(files) > 1 else ""
                raise InputError(f"{where}{error}") from error
        return torch.stack(images)

    def reply(self, answer: Answer, top: int) -> bytes:
        """A PredictReply as JSON. Written by hand: as objects 64 images times 1,000 classes take most of a second. Guess by
        guess, so that other threads get their turn."""
        values, classes = answer.probabilities.topk(min(top, answer.probabilities.shape[1]), dim=1)
        rows = zip(classes.tolist(), values.tolist(), answer.entropy.tolist(), strict=True)
        predictions = ",".join(
            f'{{"top":[{self._guesses(indices, shares)}],"entropy":{uncertainty!r},"step":{answer.step}}}'
            for indices, shares, uncertainty in rows
        )
        times = f'"queue_ms":{1000 * answer.waited!r},"answer_ms":{1000 * answer.took!r}'
        return f'{{"predictions":[{predictions}],{times}}}'.encode()

    def _guesses(self, indices: list[int], shares: list[float]) -> str:
        return ",".join(
            f'{{"index":{index},"label":{self._labels[index]},"probability":{share!r}}}'
            for index, share in zip(indices, shares, strict=True)
        )

    # ---- control

    def pause(self, paused: bool) -> Done:
        if not self.learner.off and paused != self.learner.paused:
            self.learner.pause(paused)
            self._event("pause" if paused else "resume", f"at step {self.learner.adapter.steps}")
        if self.learner.off:
            return self.done(f"{self.method} does not adapt: nothing to pause")
        return self.done("adaptation is paused" if self.learner.paused else "adaptation goes on")

    def reset(self) -> "Future[str]":
        return self._told("reset", self.learner.reset)

    def rollback(self) -> "Future[str]":
        return self._told("rollback", self.learner.rollback)

    def load_delta(self, content: bytes) -> "Future[str]":
        def load() -> str:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "uploaded.safetensors"
                path.write_bytes(content)
                return self.learner.load(path)

        return self._told("delta", load)

    def delta(self) -> "Future[bytes]":
        def save() -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "delta.safetensors"
                self.learner.adapter.save(path)
                return path.read_bytes()

        return self.learner.call(save)

    def _told(self, kind: str, action: Any) -> "Future[str]":
        def command() -> str:
            text = str(action())
            self._event(kind, text)
            return text

        return self.learner.call(command)

    def done(self, text: str) -> Done:
        return Done(step=self.learner.adapter.steps, state=self.learner.mode, text=text)

    # ---- what the threads tell

    def _answered(self, images: Tensor, answer: Answer) -> None:
        self.watch.answered(images, answer)
        self.learner.offer(images)

    def _broken(self, text: str) -> None:
        self._event("error", text)
        with contextlib.suppress(NaviaError):  # the service stops
            self.learner.call(self.learner.reset)

    def _pressure(self) -> bool:
        return self.answers.waiting >= self.settings.pace.batch

    def _pulse(self) -> tuple[float | None, float, int, int]:
        last = self.learner.last
        discrepancy = finite(last.discrepancy if last else None)
        return discrepancy, self.learner.drift, self.answers.step, self.learner.counters["images_shed"]

    def _beat(self) -> None:
        while not self._stop.wait(1.0):
            self.watch.beat()

    def _event(self, kind: str, text: str) -> None:
        log.info("%s: %s", kind, text)
        self.watch.event(kind, text)
