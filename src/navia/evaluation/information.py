"""Information about the label in a feature u: two lower bounds of the mutual information I(u;Y), in nats, by a linear probe
that is fitted on some images and scored on others.

Probe. For any distribution q, E[-log q(Y|u)] is at least H(Y|u), with equality for q = p(Y|u). So

    H(Y) - E[-log q(Y|u)]  <=  H(Y) - H(Y|u) = I(u;Y)

for the softmax q of a probe that is scored on images it was not fitted on (Barber and Agakov, 2003). H(Y) is estimated by
the entropy of the label frequencies f of the scored images, which in expectation is at most H(Y), so the bound stays one. It
is the mean of -log f(y), so the estimate is a mean over images of log q(y|u) - log f(y), with an interval.

InfoNCE (van den Oord et al., 2018; Poole et al., 2019). For N pairs (u_i, y_i) of held-out images and a critic c(u, y) that
was fitted on other images

    E[1/N sum_i log( exp c(u_i, y_i) / (1/N sum_j exp c(u_i, y_j)) )]  <=  I(u;Y),  and never more than log N.

It is log N minus the cross-entropy of finding a feature's own label among the N labels. The critic is the probe's
log q(y|u) - log f(y), with f of the training folds: the best critic if q is p(Y|u).

Both can be below zero: a poor probe is worse than the label frequencies. Folds hold equal shares of each label up to
rounding, so a fold is a stratified sample rather than an independent one: the bounds hold for these label frequencies.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import InputError
from navia.evaluation.metrics import mean_interval

FOLDS = 5
NUM_PAIRS = 64  # of InfoNCE; fewer if a fold has fewer images
PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
_MAX_STEPS = 200  # a probe that has not converged still gives a lower bound


@dataclass(frozen=True)
class Estimate:
    """A mean over images with its 95 % interval. The interval is that of the held-out images: the probes are taken as
    given, although other training images would give slightly different ones."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Folds:
    """The images that are probed: positions [N] among all images, targets [N] in 0..num_classes-1, folds [N]. All conditions
    and layers share them, so that their scores can be compared image by image."""

    positions: Tensor
    targets: Tensor
    folds: Tensor
    num_classes: int
    num_pairs: int

    def frequencies(self, images: Tensor | None = None) -> Tensor:
        """Log of the label frequencies [num_classes], of all images or of a mask [N]."""
        targets = self.targets if images is None else self.targets[images]
        counts = torch.bincount(targets, minlength=self.num_classes).double()
        return (counts / len(targets)).log()

    @property
    def label_entropy(self) -> float:
        """Entropy of the label frequencies in nats, the largest possible estimate."""
        return float(-self.frequencies()[self.targets].mean())


@dataclass(frozen=True, eq=False)
class Scores:
    """Held-out scores of a probe; their means are the estimates. information [N] per image: log q(y|u) - log f(y).
    infonce [M]: the term of each image that is in a batch of pairs. correct [N]: whether the probe predicts the label."""

    information: Tensor
    infonce: Tensor
    correct: Tensor


def split_folds(labels: Tensor) -> Folds:
    """Divide images into folds, each label evenly.

    Args:
        labels: Labels [N]; images with a negative one are left out, and so are labels with fewer images than folds.

    Raises:
        InputError: Fewer than two labels remain: a probe cannot be fitted.
    """
    found, counts = labels[labels >= 0].unique(return_counts=True)
    kept = found[counts >= FOLDS]
    if len(kept) < 2:
        have = f"{len(kept)} of {len(found)} labels of {len(labels)} images have as many"
        raise InputError(
            f"a probe needs 2 labels with at least {FOLDS} images each, {have}: use more images, or group the classes"
        )
    positions = torch.isin(labels, kept).nonzero().flatten()
    targets = torch.searchsorted(kept, labels[positions])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(targets)))
    order = order[targets[order].argsort(stable=True)]
    folds = torch.empty_like(targets)
    folds[order] = torch.arange(len(targets)) % FOLDS
    return Folds(positions, targets, folds, len(kept), min(NUM_PAIRS, len(targets) // FOLDS))


def probe(features: Tensor, folds: Folds) -> Scores:
    """Fit a linear softmax probe on all folds but one and score it on that one, in turn.

    Means and standard deviations for standardising come from the training folds, and so does the ridge penalty: the one of
    PENALTIES with the lowest loss on one of the training folds after fitting on the others.

    Args:
        features: Features [N, D] of the images of `folds`.

    Returns:
        The scores; NaN and wrong if a feature is not finite.
    """
    total, logs = len(folds.targets), folds.frequencies()
    if not bool(torch.isfinite(features).all()):
        return Scores(torch.full((total,), torch.nan), torch.full((1,), torch.nan), torch.zeros(total, dtype=torch.bool))
    information, correct = torch.empty(total, dtype=torch.float64), torch.empty(total, dtype=torch.bool)
    infonce = []
    for fold in range(FOLDS):
        train, test = folds.folds != fold, folds.folds == fold
        fitted = features[train].double()
        mean, std = fitted.mean(dim=0), fitted.std(dim=0).clamp(min=1e-6)
        targets = folds.targets[train]
        weights = _fit_with_best_penalty((fitted - mean) / std, targets, folds.folds[train] == (fold + 1) % FOLDS)
        log_q = predict_log((features[test].double() - mean) / std, weights)
        own = folds.targets[test]
        information[test] = log_q.gather(1, own[:, None])[:, 0] - logs[own]
        correct[test] = log_q.argmax(dim=1) == own
        infonce.append(_infonce_terms(log_q - folds.frequencies(train), own, folds.num_pairs, fold))
    return Scores(information, torch.cat(infonce), correct)


def estimate(values: Tensor) -> Estimate:
    """Mean of values [N] and its 95 % interval."""
    return Estimate(*mean_interval(values))


def fit(features: Tensor, targets: Tensor, penalty: float, start: Tensor | None = None, tolerance: float = 1e-5) -> Tensor:
    """Multinomial logistic regression by L-BFGS: minimise the mean cross-entropy plus penalty / 2 times the squared weights;
    the biases, in the last row, are free.

    Args:
        features: Standardised features [N, D], float64.
        targets: Classes [N], all of 0..K-1 present.
        penalty: Of the weights.
        start: Weights [D + 1, K] to start from; zeros by default.
        tolerance: Largest entry of the gradient at which to stop.

    Returns:
        Weights [D + 1, K].
    """
    count, (images, dims) = int(targets.max()) + 1, features.shape
    weights = torch.zeros(dims + 1, count, dtype=features.dtype) if start is None else start.clone()
    own = F.one_hot(targets, count).to(features.dtype)
    steps = torch.optim.LBFGS(
        [weights],
        max_iter=_MAX_STEPS,
        tolerance_grad=tolerance,
        tolerance_change=1e-10,
        line_search_fn="strong_wolfe",
    )

    def loss_and_gradient() -> Tensor:
        log_q = predict_log(features, weights)
        residual = (log_q.exp() - own) / images
        weights.grad = torch.cat([features.T @ residual + penalty * weights[:-1], residual.sum(dim=0, keepdim=True)])
        return -(log_q * own).sum() / images + penalty / 2 * weights[:-1].square().sum()

    steps.step(loss_and_gradient)
    return weights


def predict_log(features: Tensor, weights: Tensor) -> Tensor:
    """Log-probabilities [N, K] of a probe [D + 1, K] for features [N, D]."""
    return (features @ weights[:-1] + weights[-1]).log_softmax(dim=1)


def _fit_with_best_penalty(features: Tensor, targets: Tensor, validation: Tensor) -> Tensor:
    """Try penalties from the largest on, each from the last one's weights, until the validation loss rises."""
    best, lowest, weights = PENALTIES[0], math.inf, None
    for penalty in PENALTIES:
        weights = fit(features[~validation], targets[~validation], penalty, weights, tolerance=1e-3)
        loss = F.nll_loss(predict_log(features[validation], weights), targets[validation]).item()
        if not loss < lowest:
            break
        best, lowest = penalty, loss
    return fit(features, targets, best, weights)


def _infonce_terms(critic: Tensor, targets: Tensor, num_pairs: int, seed: int) -> Tensor:
    """Terms of the images in random batches of `num_pairs`; critic [N, K] for each image and label, targets [N]."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(targets)))
    batches = order[: len(order) // num_pairs * num_pairs].reshape(-1, num_pairs)
    pairs = torch.stack([critic[batch][:, targets[batch]] for batch in batches])  # [M, N, N]: image i, label of image j
    return (pairs.diagonal(dim1=1, dim2=2) - pairs.logsumexp(dim=2) + math.log(num_pairs)).flatten()
