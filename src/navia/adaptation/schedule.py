"""Sparse adaptation: which batches of a stream are adapted to. All others are predicted by a forward without a graph.

A decision is made before its batch, from what the batches before it have shown, so no batch ever needs a second forward. All
decisions are made from sums over all processes, and are the same on each.
"""

import copy
import math
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor

from navia.errors import SpecError
from navia.methods.features import entropy

AdaptEvery = int | Literal["auto"]

WINDOW, LEAST_FALL, MAX_UPDATES = (
    8,
    0.08,
    40,
)  # converged: the mean loss of so many updates is hardly below that of those before
MIN_UPDATES, NEAR_FLOOR = 8, 1.25  # or at once after so many updates, if the discrepancy is near its noise floor
MAX_INTERVAL = 16  # batches from one update to the next, once converged
RISE, DEVIATIONS = 1.25, 4.0  # a change: twice above this multiple of the signal's mean, and so many mean deviations above
DECAY, LEAST_COUNT = 0.9, 8  # of that running mean, and values before the first comparison


def is_interval(value: object) -> TypeGuard[AdaptEvery]:
    """Whether `value` can be given as `adapt_every`."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


class Schedule:
    """Decides before each batch whether it is adapted to (`due`).

    With a number N the first batch after a start or reset is due, and then every N-th. With "auto" every batch is due after
    a start or a change of the stream until the adaptation has converged: after 24 updates, when the mean loss of 8 is less
    than 8 % below that of the 8 before, after 40 updates, or after 8 if the discrepancy to the source is at its noise floor.
    (Fewer losses do not tell: those of batches of 16 images differ by 10 %.) Then the interval between updates doubles from
    2 to 16 batches: early updates serve more predictions than late ones. It stays there until the stream changes. A change
    shows in the images (see `ChangeDetector`), or in two signals in a row far above the ones before: of the discrepancy, or
    of the mean entropy for methods without one.

    Args:
        every: 1, a number of batches, or "auto".

    Attributes:
        batches: Number of batches since the start or the last reset.
        updates: Number of these that led to an update.

    Example:
        >>> from navia.adaptation.schedule import Schedule
        >>> schedule, due = Schedule(3), []
        >>> for _ in range(7):
        ...     due.append(schedule.due)
        ...     schedule.record(updated=schedule.due)
        >>> due
        [True, False, False, True, False, False, True]
    """

    def __init__(self, every: AdaptEvery = 1) -> None:
        if not is_interval(every):
            raise SpecError(f'adapt_every must be a number of batches from 1 on, or "auto", got {every!r}')
        self.every = every
        self.clear()

    def clear(self) -> None:
        """Forget the stream, at the start and after a reset."""
        self.batches = self.updates = 0
        self.detector = ChangeDetector()
        self.restart()

    def restart(self) -> None:
        """Adapt to the next batches as after a start: the stream has changed, or the guard has restored an earlier state."""
        self.wait = 0  # batches until the next one that is due
        self.interval = 1
        self.losses: list[float] = []  # of the updates since the restart, until it has converged
        self.signals: list[float] = []  # likewise
        self.level = self.deviation = 0.0  # afterwards: running mean of the signal and of its distance to that mean
        self.count = 0  # values in these
        self.above = 0  # last signals, in a row, that were far above the mean

    @property
    def due(self) -> bool:
        """Whether the next batch is adapted to."""
        return self.wait == 0

    @property
    def watches(self) -> bool:
        """Whether it needs `summarise` of every batch."""
        return self.every == "auto"

    def record(
        self,
        updated: bool,
        signal: float | None = None,
        floor: float = 0.0,
        changed: bool = False,
        loss: float | None = None,
    ) -> None:
        """Take in a finished batch.

        Args:
            updated: Whether it led to an update.
            signal: What adaptation makes smaller: the discrepancy to the source, or the mean entropy; None if unknown.
            floor: Expected value of the signal without any shift.
            changed: Whether the images of the stream have changed with this batch.
            loss: Of the update; None: there was none, or it has no loss.
        """
        was_due = self.due
        self.batches += 1
        self.updates += updated
        if changed or (self.every == "auto" and self._risen(signal)):
            self.restart()
        elif not was_due:
            self.wait -= 1
        elif self.every != "auto":
            self.wait = self.every - 1
        else:
            if self.interval == 1:
                self.signals.append(math.nan if signal is None else signal)
                self.losses.append(math.nan if loss is None else loss)
            if self.interval > 1 or self._converged(floor):
                self.interval, self.signals, self.losses = min(2 * self.interval, MAX_INTERVAL), [], []
                self.wait = self.interval - 1

    def _converged(self, floor: float) -> bool:
        count, losses = len(self.losses), self.losses
        if count >= MAX_UPDATES:
            return True
        if count >= MIN_UPDATES and sum(self.signals[-WINDOW // 2 :]) < WINDOW // 2 * NEAR_FLOOR * floor:
            return True
        last, before = sum(losses[-WINDOW:]), sum(losses[-2 * WINDOW : -WINDOW])
        return count >= 3 * WINDOW and last > (1 - LEAST_FALL) * before

    def _risen(self, signal: float | None) -> bool:
        """Whether the signals of the last two batches, after convergence, lie far above the ones before."""
        if signal is None or self.interval == 1 or not math.isfinite(signal):
            return False
        above = signal - self.level
        if self.count >= LEAST_COUNT and above > max((RISE - 1) * self.level, DEVIATIONS * self.deviation):
            self.above += 1
            return self.above >= 2  # a single one may be an unusual batch
        self.above = 0
        self.count += 1
        share = max(1 / self.count, 1 - DECAY)
        self.level += share * above
        self.deviation += share * (abs(above) * (self.count > 1) - self.deviation)
        return False

    def state(self) -> dict[str, Any]:
        """Everything that decides about the next batches; plain values and tensors on the CPU."""
        kept = {name: value for name, value in vars(self).items() if name not in ("every", "detector")}
        return copy.deepcopy(kept | {"detector": vars(self.detector)})

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`."""
        state = copy.deepcopy(state)
        vars(self.detector).update(state.pop("detector", {}))
        vars(self).update(state)


class ChangeDetector:
    """Detects from the images alone that a stream has changed.

    Every image is described by x = log(variance of its embedded patches) [D], see `ForwardOutput.patch_variance`: noise,
    blur, fog and contrast change it by several standard deviations. The mean of recent images (the batch; of a small one, a
    decaying mean over about `RECENT` images) is compared with the mean m and the variance v over the images of the stream:

        q = mean_d((recent - m)^2 / v) / (1/n_recent + 1/n)

    is 1 on average if images are drawn independently, whatever the batch size. Streams sorted by class vary more from batch
    to batch: q is compared with its own running mean. It is a change if q exceeds `FACTOR` times that; m and v then start
    anew from this batch.
    """

    RECENT = 16  # images; fewer are too noisy to tell a change from an unusual image
    MAX_RECENT = 32  # beyond, what differs is the content of the batch, not sampling noise
    MIN_IMAGES = 32  # before the first comparison
    MAX_IMAGES = 512  # beyond, m and v follow the stream
    FACTOR = 8.0
    PRIOR, DECAY = 4.0, 0.97  # of the running mean of q: begins with `PRIOR` times 1

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self.count = 0.0  # images in mean and variance
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None
        self.recent: Tensor | None = None  # weighted sum of recent images
        self.weight = self.squared_weight = 0.0  # sum of their weights, and of the squared weights
        self.ratio_sum = self.ratio_weight = self.PRIOR

    def add(self, count: float, total: Tensor, squares: Tensor) -> bool:
        """Take in a batch; whether the stream has changed with it.

        Args:
            count: Number of images.
            total: Sum of their x [D].
            squares: Sum of their x^2 [D].
        """
        self._add_recent(count, total)
        changed = False
        if self.count >= self.MIN_IMAGES:
            q = self._ratio()
            changed = q > self.FACTOR * self.ratio_sum / self.ratio_weight
            self.ratio_sum = self.DECAY * self.ratio_sum + q
            self.ratio_weight = self.DECAY * self.ratio_weight + 1
        if changed:
            self._restart()
            self._add_recent(count, total)
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        if self.mean is None or self.variance is None:
            self.mean, self.variance = mean, variance
        else:
            share, difference = count / (self.count + count), mean - self.mean
            self.variance = (1 - share) * (self.variance + share * difference.square()) + share * variance
            self.mean = self.mean + share * difference
        self.count = min(self.count + count, self.MAX_IMAGES)
        return changed

    def _add_recent(self, count: float, total: Tensor) -> None:
        keep = max(0.0, 1 - count / self.RECENT)
        self.recent = total if self.recent is None else keep * self.recent + total
        self.weight = keep * self.weight + count
        self.squared_weight = keep**2 * self.squared_weight + count

    def _ratio(self) -> float:
        assert self.recent is not None
        assert self.mean is not None
        assert self.variance is not None
        recent = min(self.weight**2 / self.squared_weight, self.MAX_RECENT)  # effective number of images
        distance = (self.recent / self.weight - self.mean).square() / self.variance.clamp(min=1e-6)
        return float(distance.numpy().mean()) / (1 / recent + 1 / self.count)


def summarise(patch_variance: Tensor, logits: Tensor | None = None) -> Tensor:
    """What "auto" has to know of a batch, as one vector to be summed over processes and read from the device at once.

    Args:
        patch_variance: Variance of the embedded patches of each image [B, D].
        logits: Predictions [B, C], if there are any.

    Returns:
        Number of images, sum of the entropies, sums of x and of x^2 [2 + 2D], with x = log(variance).
    """
    x = (patch_variance + 1e-6).log()
    entropies = x.new_zeros(()) if logits is None else entropy(logits.float()).sum()
    return torch.cat([torch.stack([x.new_full((), len(x)), entropies]), x.sum(dim=0), x.square().sum(dim=0)])


def noise_floor(source_images: int, batch_images: int) -> float:
    """Expected discrepancy (Eq. 7) of n source and m batch images without any shift, in units of the features' variance.

    The means differ by a variance of 1/n + 1/m, the standard deviations by 1/(2(n-1)) + 1/(2(m-1)).

    Example:
        >>> from navia.adaptation.schedule import noise_floor
        >>> round(noise_floor(64, 64), 4)
        0.0471
    """
    n, m = max(2, source_images), max(2, batch_images)
    return 1 / n + 1 / m + 0.5 / (n - 1) + 0.5 / (m - 1)
