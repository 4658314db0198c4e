"""The guard: watches any method for trouble, and on trouble goes back to the last good state.

It looks at what a step leaves behind anyway (logits, loss, the tuned parameters), so that its cost is a few small sums.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navia.adaptation.distributed import World
from navia.errors import SpecError
from navia.methods.base import Learned, Look, Method
from navia.methods.losses import effective_classes, entropy
from navia.methods.parameters import norm_of, relative_move

log = logging.getLogger("navia.guard")

_COLLAPSE = "predictions collapse"


@dataclass(frozen=True)
class GuardOptions:
    """every: steps between snapshots of good states. images: so many images set the reference for entropy and diversity.

    diversity, certainty: collapse is when the predicted classes beyond one (effective number) fall below `diversity` times
    their reference while the mean entropy falls below `certainty` times its own, or rises although the source, asked about
    the batch, sees more classes in it; the way there is tainted, so it ends at the source. drift: largest relative move of
    the model's own parameters. away: largest discrepancy to the source, in multiples of the source features' own variance
    (corruptions at severity 5 stay near 0.5). patience: so many troubles within ten times as many steps send it back to the
    source instead of the last good state.
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
            if not value >= least:  # neither is NaN
                raise SpecError(f"the guard's {name} must be at least {least}, got {value}")


class Guard:
    """Judges every step of one method. `source`: its state before the first; `good`: the last one without trouble."""

    def __init__(self, method: Method, options: GuardOptions | None = None) -> None:
        self.options = options or GuardOptions()
        self.world: World = method.world
        self.source = method.state()
        self.clear()

    def clear(self) -> None:
        """Forget the stream: at the start and after a reset."""
        self.good = self.source
        self.seen = 0
        self.steps = 0
        self.entropy = 0.0
        self.histogram: Tensor | None = None
        self.reference: tuple[float, float] | None = None  # entropy, effective classes
        self.troubles: list[int] = []
        self.asked = -self.options.every  # step at which the source was last asked

    def watch(self, method: Method, look: Look, learned: Learned) -> str | None:
        """Look at a finished step; on trouble restore a good state and say why, else None."""
        self.steps += 1
        trouble = self._trouble(method, look, learned)
        if trouble is None:
            if learned.kept and self.steps % self.options.every == 0:
                self.good = method.state()
            return None
        self.troubles = [step for step in self.troubles if self.steps - step < 10 * self.options.patience]
        self.troubles.append(self.steps)
        hopeless = trouble.startswith(_COLLAPSE) or len(self.troubles) >= self.options.patience
        method.load_state(self.source if hopeless else self.good)
        if hopeless:
            self.good, self.troubles = self.source, []
        self.histogram, self.entropy, self.seen, self.reference = None, 0.0, 0, None
        verdict = f"{trouble}; restored {'the source' if self.good is self.source else 'the last good state'}"
        log.warning("step %d: %s", self.steps, verdict)
        return verdict

    def _trouble(self, method: Method, look: Look, learned: Learned) -> str | None:
        """What is wrong, the same on every process: each makes the same sums, then trouble on one is trouble on all."""
        collapsed = self._collapsed(method, look.logits.nan_to_num(), look.images)
        infinite = self._infinite(method, look.logits, learned)
        trouble = infinite or self._drifted(method) or self._strayed(method, learned) or collapsed
        return trouble or ("trouble on another process" if self.world.anywhere(trouble is not None) else None)

    def _infinite(self, method: Method, logits: Tensor, learned: Learned) -> str | None:
        if learned.loss is not None and not math.isfinite(learned.loss):
            return "the loss is not finite"
        if not math.isfinite(float(norm_of([p.detach() for p in method.parameters.values()]))):
            return "a parameter is not finite"
        return None if bool(torch.isfinite(logits).all()) else "the logits are not finite"

    def _drifted(self, method: Method) -> str | None:
        drift = relative_move(method.parameters, self.source["parameters"], method.vit)
        return f"the parameters moved by {drift:.2f} of their size" if drift > self.options.drift else None

    def _strayed(self, method: Method, learned: Learned) -> str | None:
        if learned.discrepancy is None or method.source is None:
            return None
        away = learned.discrepancy / max(float(method.source.std.square().mean()), 1e-12)
        return f"the CLS statistics are {away:.1f} variances off the source's" if away > self.options.away else None

    def _collapsed(self, method: Method, logits: Tensor, images: Tensor) -> str | None:
        histogram, total = self._predicted(logits)
        count = int(histogram.sum())
        keep = 0.7 ** (count / 64) if self.seen else 0.0
        self.histogram = histogram if self.histogram is None else keep * self.histogram + histogram
        self.entropy = keep * self.entropy + (1 - keep) * total / count
        self.seen += count
        diversity = float(effective_classes(self.histogram))
        if self.seen < self.options.images:
            return None
        if self.reference is None:
            self.reference = (self.entropy, diversity)
        low = self.entropy < self.options.certainty * self.reference[0]
        if not self._narrow(diversity, self.reference[1]):
            return None
        if low or (self.entropy > self.reference[0] and self._source_sees_more(method, histogram, images)):
            return f"{_COLLAPSE}: {diversity:.1f} effective classes of {self.reference[1]:.1f} at first"
        return None

    def _narrow(self, classes: float, reference: float) -> bool:
        return classes - 1 < self.options.diversity * (reference - 1)

    def _predicted(self, logits: Tensor) -> tuple[Tensor, float]:
        """How often each class was predicted, and the sum of the entropies, over all processes."""
        histogram = torch.bincount(logits.argmax(dim=1), minlength=logits.shape[1]).double()
        summary = torch.cat([histogram, entropy(logits.float()).sum().double().reshape(1)])
        summary = self.world.total_(summary.cpu())
        return summary[:-1], float(summary[-1])

    @torch.no_grad()
    def _source_sees_more(self, method: Method, predicted: Tensor, images: Tensor) -> bool:
        """Few classes, and not even sure of them: a hard stream of one class, or collapse? The source tells them apart. It
        costs a forward, so it is asked now and then only."""
        if self.steps - self.asked < self.options.every:
            return False
        self.asked = self.steps
        now = method.state()
        method.load_state(self.source)
        sees, _ = self._predicted(method.predict(images))
        method.load_state(now)
        return self._narrow(float(effective_classes(predicted)), float(effective_classes(sees)))

    def state(self) -> dict[str, Any]:
        """What it knows of the stream; a good state that is still the source is None."""
        kept = ("seen", "steps", "entropy", "histogram", "reference", "troubles", "asked")
        return {"good": None if self.good is self.source else self.good} | {name: getattr(self, name) for name in kept}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, self.source if name == "good" and value is None else value)
