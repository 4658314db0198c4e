"""Accuracy, likelihood and calibration against torchmetrics, intervals against published values."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from navia.errors import InputError
from navia.evaluation.metrics import ece, nll, top_k, wilson


def predictions(seed: int, count: int = 500, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator)
    guesses = logits.argmax(dim=1)
    labels = torch.randint(classes, (count,), generator=generator)
    return logits, torch.where(torch.rand(count, generator=generator) < 0.6, guesses, labels)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_is_that_of_torchmetrics(seed: int, k: int) -> None:
    logits, labels = predictions(seed)
    theirs = multiclass_accuracy(logits, labels, num_classes=10, top_k=k, average="micro")
    assert top_k(logits, labels, k) == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ece_is_that_of_torchmetrics(seed: int) -> None:
    logits, labels = predictions(seed)
    theirs = multiclass_calibration_error(logits.softmax(dim=1), labels, num_classes=10, n_bins=15, norm="l1")
    assert ece(logits, labels) == pytest.approx(theirs.item(), abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_nll_is_the_mean_surprise(seed: int) -> None:
    logits, labels = predictions(seed)
    by_hand = [
        math.log(sum(math.exp(v) for v in row)) - row[label] for row, label in zip(logits.tolist(), labels, strict=True)
    ]
    assert nll(logits, labels) == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-6)


def test_hand_made_predictions() -> None:
    """Two certain answers, one right; two that are 3 : 1, both right."""
    logits = torch.tensor([[50.0, 0.0], [50.0, 0.0], [math.log(3), 0.0], [0.0, math.log(3)]])
    labels = torch.tensor([0, 1, 0, 1])
    assert top_k(logits, labels) == 0.75
    assert top_k(logits, labels, 2) == top_k(logits, labels, 99) == 1.0
    assert ece(logits, labels) == pytest.approx((2 * 0.5 + 2 * 0.25) / 4)
    assert nll(logits, labels) == pytest.approx((50 + 2 * math.log(4 / 3)) / 4)


def test_wilson_interval_of_published_examples() -> None:
    """Newcombe (1998), table I: 81 of 263 and 0 of 20; it is never empty, not even at the ends."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=1e-4)
    low, high = wilson(20, 20)
    assert low == pytest.approx(1 - 0.1611, abs=1e-4)
    assert high == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("logits", "labels", "complaint"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), r"logits \[N, classes\]"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"\(3, 2\), \(2,\)"),
        (torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.long), r"labels \[N\]"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "no predictions"),
        (torch.full((3, 2), float("nan")), torch.zeros(3, dtype=torch.long), "NaN or infinite"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), r"labels reach 0\.\.2, logits have 2 columns"),
        (torch.zeros(3, 2), torch.tensor([0, 1, -1]), r"labels reach -1\.\.1"),
        (torch.zeros(3, 2), torch.zeros(3), "labels must be integers"),
    ],
)
def test_predictions_that_cannot_be_judged_are_refused(logits: torch.Tensor, labels: torch.Tensor, complaint: str) -> None:
    for judge in (top_k, nll, ece):
        with pytest.raises(InputError, match=complaint):
            judge(logits, labels)


def test_impossible_numbers_are_refused() -> None:
    logits, labels = predictions(0)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        top_k(logits, labels, 0)
    for correct, total in ((3, 2), (-1, 4), (0, 0)):
        with pytest.raises(InputError, match=f"{correct} correct of {total} is no accuracy"):
            wilson(correct, total)
