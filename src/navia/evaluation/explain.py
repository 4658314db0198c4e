"""Looking inside: layer by layer, how far the CLS statistics are from the source's, what adaptation moved, how many tokens
are left, and how much of the label a linear probe finds in the CLS features.

The probe is an estimate from below: it finds what is linearly there, with the images that it has. A lower score after a
reduction can mean lost information or information that needs a non-linear reader; differences within the interval mean
nothing; and no probe can show that information was added, only that it became easier to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.errors import InputError
from navia.evaluation.metrics import wilson
from navia.methods.base import Method
from navia.methods.parameters import norm_of
from navia.models.forward import ForwardOutput, forward

FOLDS = 5
RIDGE = 1e-2  # times the number of images: mild, the same for every layer and condition


@dataclass(frozen=True)
class Layer:
    """One block. gap: squared distance of the CLS mean and std from the source's, in units of the source's variance.
    moved: relative change of the block's norms; bias: length of its CLS bias over that of the mean CLS feature.
    probe: accuracy of a held-out linear probe on the CLS feature, with a 95 % interval; None without labels.
    Each by condition."""

    layer: int
    tokens: dict[str, int]
    gap: dict[str, float]
    moved: float
    bias: float
    probe: dict[str, tuple[float, float, float]] | None


@dataclass(frozen=True)
class Explanation:
    """conditions: 'dense' and the reducer without adaptation, and the adapted state. accuracy of each on the same images."""

    conditions: tuple[str, ...]
    layers: tuple[Layer, ...]
    accuracy: dict[str, float] | None
    adapted_on: int
    looked_at: int


def explain(
    adapter: Adapter, stream: Sequence[Tensor], images: Tensor, source: SourceStatistics, dense_source: SourceStatistics,
    labels: Tensor | None = None, batch: int = 64,
) -> Explanation:  # fmt: skip
    """Adapt to `stream`, then look at other `images` [N, C, H, W] of the same domain in each condition.

    source: statistics with the adapter's reducer; dense_source: without one. labels: columns of the adapter's answers."""
    for part in stream:
        adapter(part.to(adapter.source_vit.device))
    reduce, mask = adapter.method.reduce, adapter.method.classes
    dense = adapt(adapter.source_vit, "none", classes=mask)
    reduced = adapt(adapter.source_vit, "none", reduce, classes=mask)
    states = {"dense": dense, str(reduce): reduced, f"{adapter.method.name} + {reduce}": adapter}
    origins = {name: dense_source if name == "dense" else source for name in states}
    seen = {name: _look(state, images, batch) for name, state in states.items()}
    layers = []
    for layer in range(adapter.source_vit.depth):
        features = {name: look[0][:, layer] for name, look in seen.items()}
        layers.append(
            Layer(
                layer,
                tokens={name: look[2][layer + 1] for name, look in seen.items()},
                gap={name: _gap(rows, origins[name], layer) for name, rows in features.items()},
                moved=_moved(adapter, layer),
                bias=_bias(adapter, layer, features[str(reduce)]),
                probe=None if labels is None else {name: probe(rows, labels) for name, rows in features.items()},
            )
        )
    right = None
    if labels is not None:
        right = {name: (look[1].argmax(dim=1) == labels).double().mean().item() for name, look in seen.items()}
    return Explanation(tuple(states), tuple(layers), right, sum(len(part) for part in stream), len(images))


def _look(adapter: Adapter, images: Tensor, batch: int) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """CLS features [N, L, D], logits [N, C] and token counts in the adapter's present state."""
    parts = [part.to(adapter.source_vit.device) for part in images.split(batch)]
    outcomes = [answering_walk(adapter.method, part) for part in parts]
    features = torch.cat([outcome.features.cpu() for outcome in outcomes if outcome.features is not None])
    return features, torch.cat([adapter.predict(part).cpu() for part in parts]), outcomes[0].counts


@torch.no_grad()
def answering_walk(method: Method, images: Tensor) -> ForwardOutput:
    """The forward behind an answer, with the CLS features of all layers: of CoTTA's teacher, not of its student."""
    return forward(
        method.prediction_vit, images, method.reduce, edits=method.token_edits(), classes=method.classes, features=True
    )


def _gap(rows: Tensor, source: SourceStatistics, layer: int) -> float:
    mean, std = source.mean[layer].cpu(), source.std[layer].cpu()
    distance = (rows.mean(dim=0) - mean).square().mean() + (rows.std(dim=0) - std).square().mean()
    return float(distance / std.square().mean().clamp(min=1e-12))


def _moved(adapter: Adapter, layer: int) -> float:
    """Relative move of the two norms of a block."""
    before = dict(adapter.source_vit.model.named_parameters())
    after = dict(adapter.model.named_parameters())
    norms = list(adapter.source_vit.layer_norms())[2 * layer : 2 * layer + 2]
    names = [name for name in before if any(name.startswith(f"{norm}.") for norm in norms)]
    apart = [after[name].detach() - before[name].detach() for name in names]
    return float(norm_of(apart) / norm_of([before[name].detach() for name in names]).clamp(min=1e-12))


def _bias(adapter: Adapter, layer: int, rows: Tensor) -> float:
    bias = adapter.method.token_edits().cls_bias.get(layer)
    return 0.0 if bias is None else float(bias.detach().cpu().norm() / rows.mean(dim=0).norm().clamp(min=1e-12))


def probe(features: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Accuracy and 95 % interval of ridge regression to the classes on standardised features [N, D], held out in 5 folds."""
    kinds, targets = labels.unique(return_inverse=True)
    if len(kinds) < 2 or len(labels) < 2 * FOLDS:
        raise InputError(f"a probe needs at least 2 classes and {2 * FOLDS} images, got {len(kinds)} and {len(labels)}")
    rows = features.double()
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp(min=1e-6)
    fold = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)) % FOLDS)
    right = 0
    for held_out in range(FOLDS):
        train, test = fold != held_out, fold == held_out
        wanted = torch.nn.functional.one_hot(targets[train], len(kinds)).double()
        x = rows[train]
        gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(gram, x.T @ (wanted - wanted.mean(dim=0)))
        answers = (rows[test] @ weights + wanted.mean(dim=0)).argmax(dim=1)
        right += int((answers == targets[test]).sum())
    low, high = wilson(right, len(rows))
    return right / len(rows), low, high
