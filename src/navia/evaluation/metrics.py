"""Quality of predictions: top-k accuracy, negative log-likelihood, expected calibration error, intervals."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import InputError

_BINS = 15  # of the calibration error
_Z95 = 1.96  # two-sided 95 % quantile of the normal distribution


def check(logits: Tensor, labels: Tensor) -> None:
    """Refuse logits and labels that cannot be scored."""
    if logits.dim() != 2 or labels.dim() != 1 or logits.shape[0] != labels.shape[0]:
        raise InputError(f"need logits [N, classes] and labels [N], got {tuple(logits.shape)}, {tuple(labels.shape)}")
    if logits.shape[0] == 0:
        raise InputError("no predictions to score")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers, got {labels.dtype}")
    if not bool(torch.isfinite(logits).all()):
        raise InputError("logits hold NaN or infinite values")
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise InputError(f"labels reach {int(labels.min())}..{int(labels.max())}, logits have {logits.shape[1]} columns")


def top_k(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """Top-k accuracy of logits [N, C] for labels [N]."""
    check(logits, labels)
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return (best == labels.unsqueeze(1)).any(dim=1).double().mean().item()


def nll(logits: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the labels (natural log)."""
    check(logits, labels)
    return F.cross_entropy(logits.double(), labels).item()


def ece(logits: Tensor, labels: Tensor) -> float:
    """Expected calibration error: mean |confidence - accuracy| over 15 equal-width bins, weighted by their counts."""
    check(logits, labels)
    return _calibration_error(*confidence_and_correctness(logits, labels))


@dataclass(frozen=True)
class Accuracy:
    """Top-1 accuracy, its 95 % interval, and the expected calibration error; None if a prediction was not finite."""

    top1: float
    low: float
    high: float
    ece: float | None


def accuracy(confidence: Tensor, correct: Tensor) -> Accuracy:
    """Score predictions by their confidences [N], NaN if not finite, and whether they are correct [N]."""
    right = int(correct.sum())
    error = _calibration_error(confidence, correct) if bool(confidence.isfinite().all()) else None
    return Accuracy(right / len(correct), *wilson(right, len(correct)), error)


def confidence_and_correctness(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both [N]. A prediction whose logits are not finite is wrong, and its confidence is NaN."""
    confidence, finite = logits.double().softmax(dim=1).amax(dim=1), logits.isfinite().all(dim=1)
    return confidence.where(finite, torch.nan), (logits.argmax(dim=1) == labels) & finite


def _calibration_error(confidence: Tensor, correct: Tensor) -> float:
    which = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
    gap = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, which.cpu(), (confidence - correct.double()).cpu())
    return gap.abs().sum().item() / len(confidence)


def wilson(correct: float, total: float) -> tuple[float, float]:
    """95 % interval of the accuracy `correct` / `total` (Wilson score); both may be means over several runs."""
    if not 0 <= correct <= total or total == 0:
        raise InputError(f"{correct} correct of {total} is no accuracy")
    p, zz = correct / total, _Z95 * _Z95 / total
    centre = (p + zz / 2) / (1 + zz)
    half = _Z95 * math.sqrt(p * (1 - p) / total + zz / (4 * total)) / (1 + zz)
    return centre - half, centre + half


def mean_interval(values: Tensor) -> tuple[float, float, float]:
    """Mean of values [N] and its 95 % interval by the normal approximation."""
    mean, half = values.double().mean().item(), _Z95 * values.double().std().item() / math.sqrt(len(values))
    return mean, mean - half, mean + half
