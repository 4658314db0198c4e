"""Neighbours in the space of the features against a naive count, and points in the plane that mean what they show."""

import numpy as np
import torch

from navia.evaluation.explain import NEIGHBOURS, neighbour_accuracy, tsne_points


def naive(features: np.ndarray, labels: np.ndarray) -> float:
    """Picture by picture: the class that most of the five nearest others have, of tied ones that of the nearest."""
    right = 0
    for i in range(len(features)):
        others = sorted((float(np.linalg.norm(features[j] - features[i])), j) for j in range(len(features)) if j != i)
        near = [int(labels[j]) for _, j in others[:NEIGHBOURS]]
        most = max(near.count(label) for label in near)
        right += next(label for label in near if near.count(label) == most) == labels[i]
    return right / len(features)


def test_accuracy_of_neighbours_is_the_naive_count() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(72) % 6
    for spread in (0.0, 0.5, 1.5, 20.0):
        features = rng.normal(size=(72, 9)) + spread * np.eye(9)[labels]
        found = neighbour_accuracy(torch.from_numpy(features), torch.from_numpy(labels))
        assert found == naive(features, labels)
    assert found == 1


def test_a_tie_goes_to_the_nearest() -> None:
    """Around picture 0 two of each class; a fifth neighbour of a third class. Only the nearest one decides."""
    places = torch.tensor([[0.0], [1.0], [-1.1], [1.2], [-1.3], [1.4], [50.0], [51.0]])
    for labels in ([0, 0, 1, 1, 0, 2, 3, 3], [1, 1, 0, 0, 1, 2, 3, 3]):
        given = torch.tensor(labels)
        assert neighbour_accuracy(places, given) == naive(places.numpy(), given.numpy())


def test_groups_that_are_apart_stay_apart_and_every_run_gives_the_same_points() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 16, generator=generator) + 20 * torch.nn.functional.one_hot(labels, 16)
    points = tsne_points(features)
    assert points is not None
    assert points.shape == (60, 2)
    assert bool(torch.isfinite(points).all())
    assert neighbour_accuracy(points, labels) == 1
    again = tsne_points(features)
    assert again is not None
    assert torch.equal(points, again)


def test_few_points_are_laid_out_too() -> None:
    points = tsne_points(torch.randn(6, 4))
    assert points is not None
    assert bool(torch.isfinite(points).all())


def test_what_cannot_be_laid_out_is_none() -> None:
    features = torch.randn(12, 4)
    assert tsne_points(features[:1].expand(12, 4)) is None
    features[3, 1] = torch.nan
    assert tsne_points(features) is None
    assert neighbour_accuracy(features, torch.arange(12) % 2) is None
