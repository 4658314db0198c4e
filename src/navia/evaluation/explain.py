"""What happens layer by layer: distance of the CLS statistics from the source, change by adaptation, tokens left, and the
label information in the CLS features; t-SNE and nearest neighbours of features.

A linear probe gives a lower bound: a lower score after a reduction can mean lost information, or information that needs a
non-linear classifier. In t-SNE, distances between groups, their sizes and shapes mean nothing: nearest neighbours in the
space of the features show how well classes are separated.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.data.loader import move_images
from navia.errors import InputError, NaviaError
from navia.evaluation.metrics import confidence_and_correctness, wilson
from navia.methods.parameters import relative_change

FOLDS = 5
RIDGE = 1e-2  # times the number of images; the same for every layer and condition
NEIGHBOURS = 5
_PERPLEXITY = 30.0


@dataclass(frozen=True)
class Layer:
    """One block; dictionaries are by condition. gap: squared distance of the CLS mean and std from the source, in units of
    the source variance. moved: relative change of the norms. bias: length of the CLS bias over that of the mean CLS feature.
    probe: held-out accuracy of a linear probe on the CLS feature with its 95 % interval; None without labels."""

    layer: int
    tokens: dict[str, int]
    gap: dict[str, float]
    moved: float
    bias: float
    probe: dict[str, tuple[float, float, float]] | None


@dataclass(frozen=True)
class Explanation:
    """conditions: "dense" and the reducer without adaptation, and the adapted state. accuracy: of each on the images."""

    conditions: tuple[str, ...]
    layers: tuple[Layer, ...]
    accuracy: dict[str, float] | None
    adapted_on: int
    looked_at: int


def explain(
    adapter: Adapter, stream: Sequence[Tensor], images: Tensor, source: SourceStatistics, dense_source: SourceStatistics,
    labels: Tensor | None = None, batch_size: int = 64,
) -> Explanation:  # fmt: skip
    """Adapt to a stream, then examine other images of the same domain in each condition.

    Args:
        adapter: Is adapted to `stream`.
        stream: Batches of images.
        images: Images [N, C, H, W] to examine, `batch_size` per forward.
        source: Statistics with the adapter's reducer.
        dense_source: Statistics without a reducer.
        labels: Columns [N] of the adapter's logits, for probes and accuracy.
    """
    vit, reduce, classes = adapter.source_vit, adapter.reduce, adapter.classes
    for part in stream:
        adapter(move_images(part, vit.device))
    states = {"dense": adapt(vit, "none", classes=classes), str(reduce): adapt(vit, "none", reduce, classes=classes)}
    states[f"{adapter.method_name} + {reduce}"] = adapter
    origins = {name: dense_source if name == "dense" else source for name in states}
    seen = {name: _examine(state, images, batch_size) for name, state in states.items()}
    layers = []
    for layer in range(vit.depth):
        features = {name: found[0][:, layer] for name, found in seen.items()}
        tokens = {name: found[2][layer + 1] for name, found in seen.items()}
        gaps = {name: _gap(rows, origins[name], layer) for name, rows in features.items()}
        probes = None if labels is None else {name: probe(rows, labels) for name, rows in features.items()}
        added = adapter.prediction_edits().cls_bias.get(layer)
        mean = features[str(reduce)].mean(dim=0)
        bias = 0.0 if added is None else float(added.detach().cpu().norm() / mean.norm().clamp(min=1e-12))
        layers.append(Layer(layer, tokens, gaps, _moved(adapter, layer), bias, probes))
    accuracy = None if labels is None else {
        name: confidence_and_correctness(found[1], labels)[1].double().mean().item() for name, found in seen.items()
    }  # fmt: skip
    return Explanation(tuple(states), tuple(layers), accuracy, sum(len(part) for part in stream), len(images))


def _examine(adapter: Adapter, images: Tensor, batch_size: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """CLS features [N, L, D], logits [N, C] and token counts in the adapter's present state."""
    parts = [move_images(part, adapter.device) for part in images.split(batch_size)]
    outputs = [adapter.features(part) for part in parts]
    features = torch.cat([output.features.cpu() for output in outputs if output.features is not None])
    return features, torch.cat([adapter.predict(part).cpu() for part in parts]), outputs[0].counts


def _gap(rows: Tensor, source: SourceStatistics, layer: int) -> float:
    mean, std = source.mean[layer].cpu(), source.std[layer].cpu()
    distance = (rows.mean(dim=0) - mean).square().mean() + (rows.std(dim=0) - std).square().mean()
    return float(distance / std.square().mean().clamp(min=1e-12))


def _moved(adapter: Adapter, layer: int) -> float:
    """Relative change of the two norms of a block."""
    vit = adapter.source_vit
    norms = tuple(f"{norm}." for norm in list(vit.layer_norms())[2 * layer : 2 * layer + 2])
    now = {name: p for name, p in adapter.model.named_parameters() if name.startswith(norms)}
    return float(relative_change(now, vit.model.state_dict(), vit))


def probe(features: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Accuracy and 95 % interval of ridge regression to the classes on standardised features [N, D], by 5-fold
    cross-validation."""
    classes, targets = labels.unique(return_inverse=True)
    wanted = torch.nn.functional.one_hot(targets).double()
    if len(classes) < 2 or len(labels) < 2 * FOLDS:
        raise InputError(f"a probe needs at least 2 classes and {2 * FOLDS} images, got {len(classes)} and {len(labels)}")
    rows = features.double()
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp(min=1e-6)
    fold = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)) % FOLDS)
    correct = 0
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        x, mean = rows[train], wanted[train].mean(dim=0)
        gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(gram, x.T @ (wanted[train] - mean))
        correct += int(((rows[test] @ weights + mean).argmax(dim=1) == targets[test]).sum())
    return correct / len(rows), *wilson(correct, len(rows))


def check_sklearn() -> None:
    """Refuse t-SNE where scikit-learn is missing, before anything is computed."""
    if importlib.util.find_spec("sklearn") is None:
        raise NaviaError("t-SNE needs scikit-learn: pip install 'navia[bench]'")


def tsne_points(features: Tensor) -> Tensor | None:
    """Features [N, D] -> points [N, 2] by t-SNE (van der Maaten and Hinton, 2008), initialised with the first two principal
    components. The perplexity is 30, or a third of the number of points if there are fewer than 91. None if a feature is not
    finite or all are equal."""
    check_sklearn()
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if not bool(torch.isfinite(features).all()) or bool((features == features[0]).all()):
        return None
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=0)
    with threadpool_limits(1):  # threads do not help with so few points, and would take the cores of other cells
        return torch.from_numpy(tsne.fit_transform(features.double().numpy()))


def neighbour_accuracy(features: Tensor, labels: Tensor) -> float | None:
    """Share of the features [N, D] whose class [N] is that of most of their 5 neighbours by Euclidean distance; among tied
    classes that of the nearest neighbour counts. None if a feature is not finite."""
    if not bool(torch.isfinite(features).all()):
        return None
    distances = torch.cdist(features.double(), features.double(), compute_mode="donot_use_mm_for_euclid_dist")
    nearest = labels[distances.fill_diagonal_(torch.inf).topk(NEIGHBOURS, largest=False).indices]
    weights = 1 + 0.5 ** torch.arange(2, NEIGHBOURS + 2)  # breaks ties: all extra weights together are below one vote
    votes = torch.zeros(len(labels), int(labels.max()) + 1).scatter_add_(1, nearest, weights.expand(len(labels), -1))
    return float((votes.argmax(dim=1) == labels).double().mean())
