"""Features as points in the plane, and beside the picture a number of the original space.

t-SNE keeps neighbours together and little else: how far groups lie apart, how large they are and how they are shaped says
nothing. Whether classes can be told apart is therefore measured before the projection, by the nearest neighbours.
"""

import importlib.util

import torch
from torch import Tensor

from navia.errors import NaviaError

NEIGHBOURS = 5
_PERPLEXITY = 30.0


def check_installed() -> None:
    if importlib.util.find_spec("sklearn") is None:
        raise NaviaError("t-SNE needs scikit-learn: pip install 'navia[bench]'")


def plane(features: Tensor) -> Tensor | None:
    """Features [N, D] -> points [N, 2] by t-SNE (van der Maaten and Hinton, 2008), begun at the first two principal
    components. The perplexity is 30, of fewer than 91 points a third of their number. None: there is nothing to lay out,
    because a feature is not finite or all are the same."""
    check_installed()
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if not bool(torch.isfinite(features).all()) or bool((features == features[0]).all()):
        return None
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    layout = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=0)
    with threadpool_limits(1):  # of so few points threads would mostly wait, and take the cores of other cells
        return torch.from_numpy(layout.fit_transform(features.double().numpy()))


def neighbour_accuracy(features: Tensor, labels: Tensor) -> float | None:
    """Share of the features [N, D] whose class [N] is that of most of their 5 nearest others, by Euclidean distance; of
    tied classes the one with the nearest neighbour counts. None: a feature is not finite."""
    if not bool(torch.isfinite(features).all()):
        return None
    apart = torch.cdist(features.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    nearest = labels[apart.fill_diagonal_(torch.inf).topk(NEIGHBOURS, largest=False).indices]
    weights = 1 + 0.5 ** torch.arange(2, NEIGHBOURS + 2)  # nearer counts more, but all of it less than one more vote
    votes = torch.zeros(len(labels), int(labels.max()) + 1).scatter_add_(1, nearest, weights.expand(len(labels), -1))
    return float((votes.argmax(dim=1) == labels).double().mean())
