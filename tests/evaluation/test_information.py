"""Bounds of the mutual information against cases whose value is known, and against scikit-learn."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from torch import Tensor

from navia.errors import InputError
from navia.evaluation import information
from navia.evaluation.information import FOLDS, estimate, fit, predict_log, probe, split_folds


def gaussian_classes(count: int, classes: int, dims: int, distance: float) -> tuple[Tensor, Tensor, float]:
    """Features and labels of classes with unit covariance, and I(u;Y) by Monte Carlo over p(y|u), which is known."""
    generator = torch.Generator().manual_seed(0)
    means = distance * F.one_hot(torch.arange(classes), dims).double()

    def draw(labels: Tensor) -> Tensor:
        return means[labels] + torch.randn(len(labels), dims, generator=generator, dtype=torch.float64)

    labels, many = torch.arange(count) % classes, torch.arange(100_000) % classes
    posterior = (-torch.cdist(draw(many), means).square() / 2).log_softmax(dim=1)
    return draw(labels), labels, math.log(classes) + posterior.gather(1, many[:, None]).mean().item()


@pytest.mark.parametrize(("classes", "distance"), [(2, 2.0), (4, 3.0)])
def test_the_information_of_gaussian_classes_is_found_from_below(classes: int, distance: float) -> None:
    """A linear probe is the right family here, so that with many images only little is missing."""
    features, labels, truth = gaussian_classes(4000, classes, 8, distance)
    folds = split_folds(labels)
    scores = probe(features, folds)
    found, infonce = estimate(scores.information), estimate(scores.infonce)
    assert found.low < truth
    assert found.high > truth - 0.01
    assert infonce.low < truth
    assert infonce.high > truth - 0.04  # 64 pairs: a lower bound of its own
    assert infonce.value < math.log(folds.num_pairs)


def test_independent_features_have_no_information() -> None:
    """An interval may lie above 0 in one of 40 cases, and below 0 more often: these are lower bounds."""
    folds, found = split_folds(torch.arange(400) % 4), []
    for seed in range(40):
        scores = probe(torch.randn(400, 16, generator=torch.Generator().manual_seed(seed)), folds)
        found += [(estimate(scores.information), estimate(scores.infonce))]
    for estimates in zip(*found, strict=True):
        assert abs(sum(each.value for each in estimates) / 40) < 0.01
        assert sum(each.low > 0 for each in estimates) <= 4
        assert any(each.low <= 0 <= each.high for each in estimates)


def test_the_label_itself_has_its_entropy() -> None:
    labels = torch.tensor([0] * 400 + [1] * 200 + [2] * 200)
    folds = split_folds(labels)
    scores = probe(F.one_hot(labels).float(), folds)
    assert folds.label_entropy == pytest.approx(1.5 * math.log(2))
    assert estimate(scores.information).value == pytest.approx(1.5 * math.log(2), abs=0.02)
    assert bool(scores.correct.all())


def test_a_probe_is_that_of_scikit_learn() -> None:
    """Same folds, penalty and standardising; scikit-learn's C is 1 / (images * penalty)."""
    features, labels, _ = gaussian_classes(300, 3, 6, 1.5)
    folds = split_folds(labels)
    train, test = folds.folds != 0, folds.folds == 0
    mean, std = features[train].mean(dim=0), features[train].std(dim=0)
    x, held_out = (features[train] - mean) / std, (features[test] - mean) / std
    for penalty in (0.3, 0.01):
        ours = predict_log(held_out, fit(x, labels[train], penalty, tolerance=1e-8))
        theirs = LogisticRegression(C=1 / (len(x) * penalty), tol=1e-8, max_iter=1000).fit(x.numpy(), labels[train].numpy())
        log_q = torch.from_numpy(theirs.predict_log_proba(held_out.numpy()))
        torch.testing.assert_close(ours, log_q, atol=1e-4, rtol=0)
        loss = log_loss(labels[test].numpy(), log_q.exp().numpy())
        assert F.nll_loss(ours, labels[test]).item() == pytest.approx(loss, abs=1e-6)


def test_the_estimate_is_entropy_minus_held_out_log_loss_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    penalty = 0.1
    monkeypatch.setattr(information, "PENALTIES", (penalty,))
    features, labels, _ = gaussian_classes(300, 3, 6, 1.5)
    folds, losses = split_folds(labels), 0.0
    for fold in range(FOLDS):
        train, test = folds.folds != fold, folds.folds == fold
        mean, std = features[train].mean(dim=0), features[train].std(dim=0)
        theirs = LogisticRegression(C=1 / (int(train.sum()) * penalty), tol=1e-8, max_iter=1000)
        theirs.fit(((features[train] - mean) / std).numpy(), labels[train].numpy())
        found = theirs.predict_proba(((features[test] - mean) / std).numpy())
        losses += log_loss(labels[test].numpy(), found, normalize=False)
    value = estimate(probe(features, folds).information).value
    assert value == pytest.approx(math.log(3) - losses / 300, abs=1e-4)


def test_held_out_images_are_not_used_for_standardising() -> None:
    """One huge held-out feature would shrink that dimension for all if it were."""
    features, labels, _ = gaussian_classes(200, 2, 4, 3.0)
    folds = split_folds(labels)
    before = probe(features, folds).information
    outlier = int((folds.folds == 0).nonzero()[0])
    features[outlier, 2] = 1e6
    after = probe(features, folds).information
    same_fold = (folds.folds == 0) & (torch.arange(200) != outlier)
    torch.testing.assert_close(after[same_fold], before[same_fold])


def test_folds_share_out_every_label_and_leave_out_what_is_too_rare() -> None:
    labels = torch.tensor([7] * 50 + [3] * 20 + [9] * (FOLDS - 1) + [-1] * 30)
    folds = split_folds(labels)
    assert (folds.num_classes, len(folds.targets), folds.num_pairs) == (2, 70, 14)
    assert labels[folds.positions].tolist() == [[3, 7][target] for target in folds.targets]
    for fold in range(FOLDS):
        counts = torch.bincount(folds.targets[folds.folds == fold])
        assert counts.tolist() == [4, 10]


def test_too_few_images_are_refused() -> None:
    with pytest.raises(InputError, match="2 labels with at least 5 images each, 1 of 3 labels of 14 images"):
        split_folds(torch.tensor([0] * 10 + [1] * 2 + [2] * 2))


def test_features_that_are_not_finite_have_no_estimate() -> None:
    features, labels, _ = gaussian_classes(100, 2, 4, 3.0)
    features[3, 1] = torch.nan
    scores = probe(features, split_folds(labels))
    assert math.isnan(estimate(scores.information).value)
    assert not bool(scores.correct.any())


def test_intervals_cover_the_bound_as_often_as_they_say() -> None:
    """Means of 200 draws of a known distribution."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(1000, 200, generator=generator, dtype=torch.float64)
    inside = [found.low <= 0.5 <= found.high for found in map(estimate, draws)]
    assert 0.93 < sum(inside) / 1000 < 0.97
