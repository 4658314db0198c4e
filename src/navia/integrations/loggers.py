"""What happens at every step, told to others: TensorBoard, Weights & Biases, MLflow, or a class of one's own.

    adapter = navia.adapt(vit, "navia", "tome:8", source, callbacks=[TensorBoard("logs")])

A callback never costs an answer: where `step` or `finish` raises, the error is logged and the stream
goes on; after three failures in a row the callback is left out. What `start` raises is passed on: nothing is lost yet.
"""

import functools
import importlib
import logging
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self

from navia.errors import NaviaError, SpecError

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter, Step

log = logging.getLogger("navia.integrations.loggers")

_FAILURES = 3  # in a row, after which a callback is left out


class Callback(Protocol):
    """Subclass it and write `step`; the other two may stay as they are."""

    def start(self, adapter: "Adapter") -> None:
        """An adapter was made that will tell its steps."""

    @abstractmethod
    def step(self, step: "Step") -> None:
        """A batch was answered and adapted to."""

    def finish(self) -> None:
        """The stream is over: write what is still in memory."""


class Callbacks:
    """Tells several callbacks, and survives those that fail."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        self._failures: dict[int, int] = {}

    def start(self, adapter: "Adapter") -> None:
        for callback in self.callbacks:
            callback.start(adapter)

    def step(self, step: "Step") -> None:
        for callback in tuple(self.callbacks):
            self._tell(callback, functools.partial(callback.step, step))

    def finish(self) -> None:
        for callback in tuple(self.callbacks):
            self._tell(callback, callback.finish)

    def _tell(self, callback: Callback, what: Callable[[], None]) -> None:
        try:
            what()
            self._failures.pop(id(callback), None)
        except Exception as error:
            failures = self._failures[id(callback)] = self._failures.get(id(callback), 0) + 1
            name = type(callback).__name__
            log.warning("callback %s failed, the stream goes on: %s: %s", name, type(error).__name__, error)
            if failures >= _FAILURES:
                self.callbacks.remove(callback)
                log.error("callback %s failed %d times in a row and is left out from now on", name, failures)


def numbers(step: "Step") -> dict[str, float]:
    """A step as named numbers; what a method does not have is left out. guard: 1 where it went back."""
    measured = {"entropy": step.entropy, "loss": step.loss, "discrepancy": step.discrepancy}
    counted = {"images": step.images, "kept": step.kept, "guard": int(step.guard is not None)}
    seconds = {"seconds_answer": step.seconds_predict, "seconds_update": step.seconds_update}
    every = {**measured, **counted, **seconds}
    return {f"navia/{name}": float(value) for name, value in every.items() if value is not None}


def settings(adapter: "Adapter") -> dict[str, str]:
    """What the steps are made with."""
    method = adapter.method
    return {
        "model": adapter.source_vit.name,
        "method": method.name,
        "options": str(method.options),
        "reduce": str(method.reduce),
        "trainable": str(adapter.trainable),
    }


class _Tracker(Callback):
    """What the three have in common: a place on the axis that only grows, and an end as a context manager."""

    def __init__(self) -> None:
        self.place = 0
        self._before = 0
        self._number = 0

    def step(self, step: "Step") -> None:
        if step.number <= self._number:  # the adapter was reset: its count starts anew, the axis does not
            self._before += self._number
        self._number = step.number
        self.place = self._before + step.number
        self.write(step)

    @abstractmethod
    def write(self, step: "Step") -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *trouble: object) -> None:
        self.finish()


class TensorBoard(_Tracker):
    """Scalars `navia/...` in event files below `log_dir`, and the guard's verdicts as text. A stream that goes on in the
    same folder replaces what was written there from its first step on."""

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        self.log_dir = Path(log_dir)
        self._writer: Any = None
        _needed("tensorboard", "TensorBoard", "pip install 'navia[log]'")
        self._settings: dict[str, str] = {}

    def start(self, adapter: "Adapter") -> None:
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"cannot write TensorBoard's files to {str(self.log_dir)!r}: {error}") from error
        self._settings = settings(adapter)

    def write(self, step: "Step") -> None:
        writer = self._writer or self._open()
        for name, value in numbers(step).items():
            writer.add_scalar(name, value, self.place)
        if step.guard:
            writer.add_text("navia/guard", step.guard, self.place)

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.log_dir), purge_step=self.place)
        weakref.finalize(self, self._writer.close)  # what nobody finished is written when the program ends
        table = "\n".join(f"    {name}: {value}" for name, value in self._settings.items())
        if table:
            self._writer.add_text("navia/settings", table, self.place)
        return self._writer


class WandB(_Tracker):
    """A run of Weights & Biases; options go to `wandb.init` (mode="offline" needs no account)."""

    def __init__(self, project: str = "navia", **options: Any) -> None:
        super().__init__()
        self._wandb = _needed("wandb", "Weights & Biases", "pip install wandb")
        self.options = {"project": project, **options}
        self.run: Any = None

    def start(self, adapter: "Adapter") -> None:
        if self.run is None:
            try:
                self.run = self._wandb.init(**{"config": settings(adapter), **self.options})
            except self._wandb.errors.Error as error:
                raise NaviaError(
                    f"Weights & Biases does not start (WANDB_MODE=offline needs no account): {error}"
                ) from error

    def write(self, step: "Step") -> None:
        self.run.log(numbers(step), step=self.place)

    def finish(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None


class MLflow(_Tracker):
    """A run of MLflow at `uri`: a server (http://localhost:5000) or a database (sqlite:///mlflow.db)."""

    def __init__(self, uri: str, experiment: str = "navia") -> None:
        super().__init__()
        self._mlflow: Any = _needed("mlflow", "MLflow", "pip install mlflow (mlflow-skinny is enough for a server)")
        self.uri = uri
        self.experiment = experiment
        self.client: Any = None
        self.run_id: str | None = None

    def start(self, adapter: "Adapter") -> None:
        if self.run_id is None:
            try:
                self._begin(settings(adapter))
            except self._mlflow.exceptions.MlflowException as error:
                raise NaviaError(f"MLflow cannot write to {self.uri!r}: {error}") from error

    def _begin(self, described: dict[str, str]) -> None:
        self.client = self._mlflow.MlflowClient(tracking_uri=self.uri)  # of its own: the caller's active run is left alone
        known = self.client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known else self.client.create_experiment(self.experiment)
        self.run_id = self.client.create_run(place).info.run_id
        for name, value in described.items():
            self.client.log_param(self.run_id, name, value[:500])  # MLflow refuses longer ones

    def write(self, step: "Step") -> None:
        now = int(1000 * time.time())
        metrics = [self._mlflow.entities.Metric(name, value, now, self.place) for name, value in numbers(step).items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def finish(self) -> None:
        if self.run_id is not None:
            self.client.set_terminated(self.run_id)
            self.run_id = None


KINDS: dict[str, Callable[[str], Callback]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def named(text: str) -> Callback:
    """A callback from its text form: tensorboard:DIR, wandb:PROJECT or mlflow:URI."""
    kind, _, where = text.partition(":")
    if kind not in KINDS or not where:
        raise SpecError(f"a log is tensorboard:DIR, wandb:PROJECT or mlflow:URI, not {text!r}")
    return KINDS[kind](where)


def _needed(module: str, name: str, install: str) -> ModuleType:
    """The module, imported only now, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NaviaError(f"{name} needs the {module} package: {install}") from error
