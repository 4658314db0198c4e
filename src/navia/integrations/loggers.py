"""Loggers for TensorBoard, Weights & Biases and MLflow: callbacks of an adapter, see `navia.Callback`."""

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from navia.adaptation.callbacks import Callback
from navia.errors import NaviaError, SpecError, import_optional

if TYPE_CHECKING:
    from navia.adaptation.adapter import Adapter
    from navia.adaptation.step import Step


def step_metrics(step: "Step") -> dict[str, float]:
    """A step as named numbers, without those that are None. guard is 1 if the guard restored an earlier state."""
    names = ("entropy", "loss", "discrepancy", "images", "kept", "seconds_predict", "seconds_update")
    values = {name: getattr(step, name) for name in names} | {"guard": step.guard is not None}
    return {f"navia/{name}": float(value) for name, value in values.items() if value is not None}


def adapter_settings(adapter: "Adapter") -> dict[str, str]:
    """Model, method and reducer of an adapter as text."""
    settings = {"model": adapter.source_vit.name, "method": adapter.method_name, "options": adapter.options}
    settings |= {"reduce": adapter.reduce, "trainable": adapter.trainable}
    return {name: str(value) for name, value in settings.items()}


class _Logger(Callback):
    """What the loggers share: a step number that grows over resets of the adapter, and `finish` at the end of `with`."""

    def __init__(self) -> None:
        self.global_step = self._offset = self._number = 0
        self._close: Callable[[], object] | None = None  # set while a file or run is open

    def step(self, step: "Step") -> None:
        if step.number <= self._number:  # the adapter was reset and counts from 1 again
            self._offset += self._number
        self._number = step.number
        self.global_step = self._offset + step.number
        self.write(step)

    @abstractmethod
    def write(self, step: "Step") -> None: ...

    def finish(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()


class TensorBoard(_Logger):
    """Scalars `navia/...` in event files in `log_dir`, and the guard's messages as text. A later stream in the same folder
    replaces what was written there from its first step on.

    Args:
        log_dir: Folder for the event files.

    Example:
        >>> from navia.integrations.loggers import TensorBoard
        >>> with TensorBoard("runs/tent") as log:
        ...     adapter = navia.adapt("embedded", "tent", callbacks=[log])
    """

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__()
        import_optional("tensorboard", "TensorBoard", "pip install 'navia[log]'")
        self.log_dir = Path(log_dir)
        self._writer: Any = None
        self._settings: dict[str, str] = {}

    def start(self, adapter: "Adapter") -> None:
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"cannot write TensorBoard's files to {str(self.log_dir)!r}: {error}") from error
        self._settings = adapter_settings(adapter)

    def write(self, step: "Step") -> None:
        if self._close is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.log_dir), purge_step=self.global_step)
            self._close = self._writer.close
            weakref.finalize(self, self._close)  # if nobody calls finish, write when the program ends
            table = "\n".join(f"    {name}: {value}" for name, value in self._settings.items())
            self._writer.add_text("navia/settings", table, self.global_step)
        for name, value in step_metrics(step).items():
            self._writer.add_scalar(name, value, self.global_step)
        if step.guard:
            self._writer.add_text("navia/guard", step.guard, self.global_step)


class WandB(_Logger):
    """A run of Weights & Biases.

    Args:
        project: Name of the project.
        **options: Passed to `wandb.init` (mode="offline" needs no account).

    Example:
        >>> from navia.integrations.loggers import WandB
        >>> log = WandB("my-project", mode="offline")  # doctest: +SKIP
    """

    def __init__(self, project: str = "navia", **options: Any) -> None:
        super().__init__()
        self._wandb = import_optional("wandb", "Weights & Biases", "pip install wandb")
        self.options = {"project": project, **options}
        self.run: Any = None

    def start(self, adapter: "Adapter") -> None:
        if self._close is not None:
            return
        try:
            self.run = self._wandb.init(**{"config": adapter_settings(adapter), **self.options})
        except self._wandb.errors.Error as error:
            raise NaviaError(f"wandb does not start (WANDB_MODE=offline needs no account): {error}") from error
        self._close = self.run.finish

    def write(self, step: "Step") -> None:
        self.run.log(step_metrics(step), step=self.global_step)


class MLflow(_Logger):
    """A run of MLflow.

    Args:
        uri: A server (http://localhost:5000) or a database (sqlite:///mlflow.db).
        experiment: Name of the experiment.

    Example:
        >>> from navia.integrations.loggers import MLflow
        >>> log = MLflow("sqlite:///mlflow.db")  # doctest: +SKIP
    """

    def __init__(self, uri: str, experiment: str = "navia") -> None:
        super().__init__()
        self._mlflow = import_optional("mlflow", "MLflow", "pip install mlflow (mlflow-skinny is enough for a server)")
        self.uri, self.experiment = uri, experiment
        self.client: Any = None
        self.run_id: str | None = None

    def start(self, adapter: "Adapter") -> None:
        if self._close is not None:
            return
        try:
            self.client = self._mlflow.MlflowClient(tracking_uri=self.uri)  # does not touch the caller's active run
            known = self.client.get_experiment_by_name(self.experiment)
            experiment_id = known.experiment_id if known else self.client.create_experiment(self.experiment)
            self.run_id = self.client.create_run(experiment_id).info.run_id
            for name, value in adapter_settings(adapter).items():
                self.client.log_param(self.run_id, name, value[:500])  # MLflow refuses longer ones
        except self._mlflow.exceptions.MlflowException as error:
            raise NaviaError(f"MLflow cannot write to {self.uri!r}: {error}") from error
        self._close = lambda: self.client.set_terminated(self.run_id)

    def write(self, step: "Step") -> None:
        now, metric = int(1000 * time.time()), self._mlflow.entities.Metric
        metrics = [metric(name, value, now, self.global_step) for name, value in step_metrics(step).items()]
        self.client.log_batch(self.run_id, metrics=metrics)


LOGGERS: dict[str, Callable[[str], Callback]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def from_spec(spec: str) -> Callback:
    """Create a logger from its text form: tensorboard:DIR, wandb:PROJECT or mlflow:URI.

    Example:
        >>> from navia.integrations.loggers import from_spec
        >>> log = from_spec("tensorboard:runs/tent")
    """
    kind, _, target = spec.partition(":")
    if kind not in LOGGERS or not target:
        raise SpecError(f"a log is tensorboard:DIR, wandb:PROJECT or mlflow:URI, not {spec!r}")
    return LOGGERS[kind](target)
