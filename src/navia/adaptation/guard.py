"""The guard watches any method for collapse and restores the last good state.

It uses what a step computes anyway (logits, loss, tuned parameters), so it costs a few small sums.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.step import StepNumbers, predicted_classes
from navia.errors import SpecError
from navia.methods.base import Method, Prediction
from navia.methods.features import effective_classes

log = logging.getLogger("navia.guard")

_COLLAPSE = "predictions collapse"


@dataclass(frozen=True)
class GuardOptions:
    """Thresholds of the guard.

    Collapse: the effective number of predicted classes beyond one falls below `diversity` times its reference while the mean
    entropy falls below `certainty` times its own, or rises although the source model sees more classes in the batch. All
    states since then are suspect, so the source is restored.

    Args:
        every: Steps between snapshots of good states.
        images: Number of images that set the reference of entropy and diversity.
        diversity: See above.
        certainty: See above.
        drift: Largest relative change of the model's own parameters.
        away: Largest discrepancy to the source in units of the source features' variance (corruptions at severity 5 stay
            near 0.5).
        patience: So many problems within ten times as many steps restore the source instead of the last good state.

    Example:
        >>> adapter = navia.adapt("embedded", "tent", guard=navia.GuardOptions(every=5))
    """

    every: int = 10
    images: int = 128
    diversity: float = 0.3
    certainty: float = 0.5
    drift: float = 1.0
    away: float = 4.0
    patience: int = 3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name in ("every", "images", "patience") else 0
            if not value >= least:  # also refuses NaN
                raise SpecError(f"the guard's {name} must be at least {least}, got {value}")


class Guard:
    """Checks every step of one method. `source`: the state before the first step; `good`: the last state without problem."""

    def __init__(self, method: Method, options: GuardOptions | None = None) -> None:
        self.options = options or GuardOptions()
        self.distributed = method.distributed
        self.source = method.state()
        source = method.source  # its variance is the unit of discrepancies
        self.variance = None if source is None else max(float(source.std.square().mean()), 1e-12)
        self.clear()

    def clear(self) -> None:
        """Forget the stream, at the start and after a reset."""
        self.good = self.source
        self.seen = 0
        self.steps = 0
        self.entropy = 0.0
        self.histogram: np.ndarray | None = None
        self.reference: tuple[float, float] | None = None  # entropy, effective classes
        self.problems: list[int] = []
        self.last_check = -self.options.every  # step of the last comparison with the source model

    def watch(self, method: Method, prediction: Prediction, numbers: StepNumbers) -> str | None:
        """Check a finished step. Restores a good state and says why if there is a problem, else returns None. A batch that
        is not adapted to is no step here: it changes no parameter, so it needs no snapshot."""
        self.steps += prediction.due
        problem = self._problem(method, prediction.images, numbers)
        if problem is None:
            if numbers.kept and self.steps % self.options.every == 0:
                self.good = method.state()
            return None
        self.problems = [step for step in self.problems if self.steps - step < 10 * self.options.patience]
        self.problems.append(self.steps)
        restart = problem.startswith(_COLLAPSE) or len(self.problems) >= self.options.patience
        method.load_state(self.source if restart else self.good)
        if restart:
            self.good, self.problems = self.source, []
        self.histogram, self.entropy, self.seen, self.reference = None, 0.0, 0, None
        verdict = f"{problem}; restored {'the source' if self.good is self.source else 'the last good state'}"
        log.warning("step %d: %s", self.steps, verdict)
        return verdict

    def _problem(self, method: Method, images: Tensor, numbers: StepNumbers) -> str | None:
        """What is wrong; the same on every process."""
        collapsed = self._collapsed(method, images, numbers)
        problem = self._not_finite(numbers) or self._drifted(numbers) or self._far_from_source(numbers) or collapsed
        return problem or ("problem on another process" if self.distributed.any(problem is not None) else None)

    def _not_finite(self, numbers: StepNumbers) -> str | None:
        if numbers.loss is not None and not math.isfinite(numbers.loss):
            return "the loss is not finite"
        if not math.isfinite(numbers.parameter_norm):
            return "a parameter is not finite"
        return None if numbers.finite_logits else "the logits are not finite"

    def _drifted(self, numbers: StepNumbers) -> str | None:
        drift = numbers.drift
        return f"the parameters moved by {drift:.2f} of their size" if drift > self.options.drift else None

    def _far_from_source(self, numbers: StepNumbers) -> str | None:
        if numbers.discrepancy is None or self.variance is None:
            return None
        away = numbers.discrepancy / self.variance
        return f"the CLS statistics are {away:.1f} variances off the source's" if away > self.options.away else None

    def _collapsed(self, method: Method, images: Tensor, numbers: StepNumbers) -> str | None:
        histogram = numbers.class_counts
        count = int(histogram.sum())
        keep = 0.7 ** (count / 64) if self.seen else 0.0
        self.histogram = histogram if self.histogram is None else keep * self.histogram + histogram
        self.entropy = keep * self.entropy + (1 - keep) * numbers.entropy_sum / count
        self.seen += count
        diversity = effective_classes(self.histogram)
        if self.seen < self.options.images:
            return None
        if self.reference is None:
            self.reference = (self.entropy, diversity)
        low = self.entropy < self.options.certainty * self.reference[0]
        if not self._is_narrow(diversity, self.reference[1]):
            return None
        if low or (self.entropy > self.reference[0] and self._source_predicts_more(method, images, histogram)):
            return f"{_COLLAPSE}: {diversity:.1f} effective classes of {self.reference[1]:.1f} at first"
        return None

    def _is_narrow(self, classes: float, reference: float) -> bool:
        return classes - 1 < self.options.diversity * (reference - 1)

    @torch.no_grad()
    def _source_predicts_more(self, method: Method, images: Tensor, predicted: np.ndarray) -> bool:
        """Few classes with high entropy: a hard stream of one class, or collapse? The source model's predictions tell. This
        costs a forward, so it runs at most once in `every` steps."""
        if self.steps - self.last_check < self.options.every:
            return False
        self.last_check = self.steps
        now = method.state()
        method.load_state(self.source)
        expected = predicted_classes(method, method.predict(images)).tolist()[:-1]
        method.load_state(now)
        return self._is_narrow(effective_classes(predicted), effective_classes(expected))

    def state(self) -> dict[str, Any]:
        """What it knows of the stream; `good` is None while it is the source."""
        kept = ("seen", "steps", "entropy", "histogram", "reference", "problems", "last_check")
        found = {"good": None if self.good is self.source else self.good} | {name: getattr(self, name) for name in kept}
        return found | {"histogram": None if self.histogram is None else torch.from_numpy(self.histogram)}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            name = {"troubles": "problems", "asked": "last_check"}.get(name, name)  # names in states of version 0.1
            value = value.cpu().numpy() if name == "histogram" and isinstance(value, Tensor) else value
            setattr(self, name, self.source if name == "good" and value is None else value)
