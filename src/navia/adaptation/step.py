"""What a step did, and its numbers: computed on the device and read together, because every read waits for a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.schedule import summarise
from navia.methods.base import Method, Prediction, UpdateResult
from navia.methods.features import entropy
from navia.methods.parameters import norm_of, relative_change


@dataclass(frozen=True)
class Step:
    """What the last call did (`adapter.last`).

    Attributes:
        number: Steps since the start or the last reset.
        images: Number of images of the batch.
        entropy: Mean entropy of the predictions.
        loss: Loss of the update.
        discrepancy: Distance of the CLS statistics to the source.
        kept: Number of images that the update used; 0: no update, see `updated`.
        guard: Why the guard restored an earlier state; None if it did not.
        note: What the method reports; "not due" for a batch that `adapt_every` leaves out.
        seconds_predict: Time until the prediction was ready. A GPU has only been given the work by then: there the sum of
            both times is that of the step.
        seconds_update: Time of the update after it, until its numbers were read.

    Example:
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> logits = adapter(torch.zeros(2, 1, 28, 28))
        >>> adapter.last.number, adapter.last.images, adapter.last.guard
        (1, 2, None)
    """

    number: int
    images: int
    entropy: float
    loss: float | None
    discrepancy: float | None
    kept: int
    guard: str | None
    note: str | None
    seconds_predict: float
    seconds_update: float

    @property
    def updated(self) -> bool:
        """Whether the batch led to an update."""
        return self.kept > 0


@dataclass(frozen=True)
class StepNumbers:
    """What the adapter and the guard decide on.

    Attributes:
        kept: Number of images that the update used.
        loss: Its loss; None if it kept no image.
        discrepancy: Its discrepancy to the source; None if it kept no image.
        entropy: Mean entropy of the predictions.
        value_range: Lowest and highest value of the images; None if they were checked before the step.
        class_counts: How often each class was predicted, over all processes [C].
        entropy_sum: Sum of the entropies, over all processes.
        finite_logits: Whether all logits are finite.
        parameter_norm: Norm of the tuned parameters; not finite if one of them is not.
        drift: Relative change of the model's own parameters since the source.
        summary: Values of `schedule.summarise` over all processes, where the schedule watches the stream; else None.
    """

    kept: int
    loss: float | None
    discrepancy: float | None
    entropy: float
    value_range: tuple[float, float] | None
    class_counts: np.ndarray
    entropy_sum: float
    finite_logits: bool
    parameter_norm: float
    drift: float
    summary: list[float] | None = None

    @classmethod
    @torch.no_grad()
    def read(cls, method: Method, prediction: Prediction, result: UpdateResult, source: Mapping[str, Tensor] | None) -> Self:
        """Compute the numbers of a step and read them at once.

        Args:
            method: The method after its update.
            prediction: The batch and its prediction.
            result: What `method.update` returned.
            source: The tuned parameters of the source, for the guard; None: there is no guard.
        """
        logits, parameters = prediction.logits, [p.detach() for p in method.parameters.values()]
        tensors = {"entropy": entropy(logits.float()).mean()}
        given: dict[str, Any] = {"kept": result.kept, "loss": result.loss, "discrepancy": result.discrepancy}
        tensors |= {name: value for name, value in given.items() if isinstance(value, Tensor)}
        if method.vit.reads_synchronize:
            tensors["value_range"] = torch.stack(torch.aminmax(prediction.images))
        if prediction.output.patch_variance is not None:
            tensors["summary"] = method.distributed.sum_(summarise(prediction.output.patch_variance, logits))
        if source is not None:
            tensors["predicted"] = predicted_classes(method, logits)
            tensors["finite_logits"] = torch.isfinite(logits).all()
            if parameters:
                tensors["parameter_norm"] = norm_of(parameters)
                tensors["drift"] = relative_change(method.parameters, source, method.vit)
        found = read_together(tensors)
        plain = {name: found[name][0] if name in found else value for name, value in given.items()}
        updated = "kept" not in found or bool(plain["kept"])
        low_high, predicted = found.get("value_range"), found.get("predicted", [0.0])
        return cls(
            kept=int(plain["kept"] or 0),
            loss=plain["loss"] if updated else None,
            discrepancy=plain["discrepancy"] if updated else None,
            entropy=found["entropy"][0],
            value_range=None if low_high is None else (low_high[0], low_high[1]),
            class_counts=np.array(predicted[:-1]),
            entropy_sum=predicted[-1],
            finite_logits=bool(found.get("finite_logits", [1.0])[0]),
            parameter_norm=found.get("parameter_norm", [0.0])[0],
            drift=found.get("drift", [0.0])[0],
            summary=found.get("summary"),
        )


def predicted_classes(method: Method, logits: Tensor) -> Tensor:
    """How often each class was predicted, and the sum of the entropies, over all processes [C + 1]."""
    logits = logits.nan_to_num()
    classes = torch.arange(logits.shape[1], device=logits.device)
    counts = (logits.argmax(dim=1, keepdim=True) == classes).sum(dim=0)  # bincount would wait for a GPU
    return method.distributed.sum_(torch.cat([_exact(counts), _exact(entropy(logits.float()).sum()).reshape(1)]))


def read_together(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """The values of tensors on one device, read at once."""
    flat = [_exact(tensor.detach()).reshape(-1) for tensor in tensors.values()]
    values = iter(torch.cat(flat).tolist())
    return {name: [next(values) for _ in range(len(part))] for name, part in zip(tensors, flat, strict=True)}


def _exact(x: Tensor) -> Tensor:
    """x in float64, where the device has it."""
    return x.float() if x.device.type == "mps" else x.double()
