"""What happens layer by layer: distance of the CLS statistics from the source, change by adaptation, tokens left, and the
information about the label in the CLS features (`information.py`); t-SNE and nearest neighbours of features.

A linear probe gives a lower bound: a lower score after a reduction can mean lost information, or information that needs a
non-linear classifier. In t-SNE, distances between groups, their sizes and shapes mean nothing: nearest neighbours in the
space of the features show how well classes are separated.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import count, pairwise
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.statistics import SourceStatistics
from navia.data.loader import Loader, batch_images, batch_labels, move_images
from navia.errors import InputError, NaviaError
from navia.evaluation.information import Estimate, Folds, Scores, estimate, probe, split_folds
from navia.evaluation.metrics import confidence_and_correctness, wilson
from navia.methods.align import AlignOptions
from navia.methods.features import StreamMoments
from navia.methods.parameters import relative_change
from navia.models.base import ViT
from navia.reduction import ReducerLike, parse

UNADAPTED = ("dense", "merged")  # conditions that are compared with
NEIGHBOURS = 5
_PERPLEXITY = 30.0

Batches = Sequence[Any] | Loader  # of what `batch_images` takes


@dataclass(frozen=True)
class Layer:
    """One block; dictionaries are by condition. tokens: left after it. gap: squared distance of the CLS mean and std from
    the source, in units of the source variance. moved: relative change of the norms. bias: length of the CLS bias over that
    of the mean CLS feature. information, infonce: lower bounds of the information about the label in the CLS feature, in
    nats. probe: held-out accuracy of the probe. differences: of the information of two conditions on the same images. The
    last four are None without labels or with too few images."""

    layer: int
    tokens: dict[str, int]
    gap: dict[str, float]
    moved: dict[str, float]
    bias: dict[str, float]
    information: dict[str, Estimate] | None = None
    infonce: dict[str, Estimate] | None = None
    probe: dict[str, Estimate] | None = None
    differences: dict[str, Estimate] | None = None


@dataclass(frozen=True)
class Probing:
    """What the probes were fitted and scored on. label_entropy: H(Y) in nats, the largest possible information.
    num_pairs: of InfoNCE, whose largest value is the log of it."""

    num_labels: int
    num_images: int
    label_entropy: float
    num_pairs: int


@dataclass(frozen=True)
class Explanation:
    """conditions: their names in order. accuracy: of each on the images, None without labels. probing: None where the
    information could not be estimated; note says why."""

    conditions: tuple[str, ...]
    reduce: str
    layers: tuple[Layer, ...]
    accuracy: dict[str, float] | None
    adapted_on: int
    looked_at: int
    probing: Probing | None
    note: str | None


def make_conditions(
    vit: ViT, method: str = "navia", reduce: ReducerLike = None, source: SourceStatistics | None = None, *,
    classes: Sequence[int] | None = None, **options: Any,
) -> dict[str, Adapter]:  # fmt: skip
    """Adapters to compare: "dense" and "merged" without adaptation, and the method with the reducer. For navia these are
    "align" (norms only), "+E" (with delta), "+S" (with delta_l) and "both", unless its options choose the parts.

    Args:
        vit: The model.
        method: One of `navia.list_methods()`.
        reduce: The reducer; without one there is no "merged".
        source: Statistics with this reducer.
        classes: Class indices, as for `navia.adapt`.
        **options: Options of the method; "align" gets those that it has.
    """
    found = {"dense": adapt(vit, "none", classes=classes)}
    if str(parse(reduce)) != "none":
        found["merged"] = adapt(vit, "none", reduce, classes=classes)
    if method != "navia" or {"embedding", "biases"} & options.keys():
        return found | {method: adapt(vit, method, reduce, source, classes=classes, **options)}
    shared = {name: value for name, value in options.items() if name in {field.name for field in fields(AlignOptions)}}
    found["align"] = adapt(vit, "align", reduce, source, classes=classes, **shared)
    variants: dict[str, dict[str, Any]] = {"+E": {"biases": False}, "+S": {"embedding": False}, "both": {}}
    for name, parts in variants.items():
        found[name] = adapt(vit, "navia", reduce, source, classes=classes, **parts, **options)
    return found


def explain(
    conditions: Mapping[str, Adapter], stream: Batches, images: Batches, sources: Sequence[SourceStatistics],
    groups: Sequence[int] | None = None, on_progress: Callable[[int, int, str], None] | None = None,
) -> Explanation:  # fmt: skip
    """Adapt every condition to the same stream, then examine other images of the same domain in each.

    Each batch is taken once, goes through all conditions and is released. CLS features are written to a temporary file of
    4 x conditions x images x layers x dimensions bytes (ViT-B, 6 conditions, 20,000 images: 4.4 GB; TMPDIR says where). In
    memory are one batch, the adapters, and the features of one layer of one condition, for the probe in float64 (20,000
    images of ViT-B: 123 MB, a few times). No image is kept.

    Args:
        conditions: Adapters by name, see `make_conditions`; all but "dense" and "merged" are adapted to `stream`.
        stream: Batches to adapt to.
        images: Batches to examine. If they have labels, columns of the logits, accuracy and information are estimated.
        sources: Statistics with the reducers of the conditions.
        groups: For each label the label that the probe shall predict instead, -1 to leave its images out.
        on_progress: Called with (done, total, what).
    """
    vit = next(iter(conditions.values())).source_vit
    origins = {name: _origin(adapter, sources) for name, adapter in conditions.items()}
    steps, total = count(1), len(conditions) * (len(stream) + len(images) + vit.depth)

    def report_progress(what: str) -> None:
        if on_progress is not None:
            on_progress(next(steps), total, what)

    adapted_on = 0
    for part in stream:
        batch = move_images(batch_images(part), vit.device)
        adapted_on += len(batch)
        for name, adapter in conditions.items():
            if name not in UNADAPTED:
                adapter(batch)
            report_progress(f"adapting {name}")
        del part, batch  # before the next one is decoded
    with ExitStack() as files:
        seen = {name: _Examined(vit, files.enter_context(tempfile.TemporaryFile())) for name in conditions}
        labels = _examine(conditions, images, seen, report_progress)
        folds, note = _folds(labels, groups)
        layers = []
        for layer in range(vit.depth):
            scores: dict[str, Scores] = {}
            for name, found in seen.items():
                if folds is not None:
                    scores[name] = probe(found.layer(layer)[folds.positions], folds)
                report_progress(f"probing block {layer}, {name}")
            layers.append(
                Layer(
                    layer,
                    {name: found.tokens[layer + 1] for name, found in seen.items()},
                    {name: _gap(found.moments, origins[name], layer) for name, found in seen.items()},
                    {name: _moved(adapter, layer) for name, adapter in conditions.items()},
                    {name: _bias(adapter, seen[name].moments, layer) for name, adapter in conditions.items()},
                    *(() if folds is None else _summary(scores)),
                )
            )
    looked_at = next(iter(seen.values())).moments.count
    accuracy = None if labels is None else {name: found.correct / looked_at for name, found in seen.items()}
    probing = None
    if folds is not None:
        probing = Probing(folds.num_classes, len(folds.targets), folds.label_entropy, folds.num_pairs)
    reduce = str(list(conditions.values())[-1].reduce)
    return Explanation(tuple(conditions), reduce, tuple(layers), accuracy, adapted_on, looked_at, probing, note)


def compared_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of conditions whose difference answers a question: what each step adds, and whether the last one makes up for
    the reduction."""
    parts = [name for name in names if name in ("+E", "+S", "both")]
    steps = [(after, before) for before, after in pairwise(name for name in names if name not in parts)]
    ends = [(names[-1], before) for before in names[1::-1] if before != names[-1]]
    return list(dict.fromkeys([*steps, *((name, "align") for name in parts), *ends]))


class _Examined:
    """What is known of a condition: CLS features in a file, their moments, tokens left and number of correct predictions."""

    def __init__(self, vit: ViT, file: IO[bytes]) -> None:
        self.shape, self.file = (vit.depth, vit.embed_dim), file
        self.moments, self.correct = StreamMoments(), 0
        self.tokens: tuple[int, ...] = ()

    def add(self, adapter: Adapter, images: Tensor, labels: Tensor | None) -> None:
        output = adapter.features(images)
        assert output.features is not None
        self.moments.add(output.features)
        self.tokens = output.counts
        try:
            self.file.write(output.features.float().cpu().contiguous().numpy().data)
            self.file.flush()
        except OSError as error:
            where = f"cannot store features in {tempfile.gettempdir()!r}"
            raise NaviaError(f"{where} ({error}): set TMPDIR to a larger place, or use fewer images") from error
        if labels is not None:
            self.correct += int(confidence_and_correctness(adapter.predict(images).cpu(), labels)[1].sum())

    def layer(self, layer: int) -> Tensor:
        """Features [N, D] of a layer."""
        stored = np.memmap(self.file, np.float32, "r", shape=(self.moments.count, *self.shape))
        return torch.from_numpy(np.ascontiguousarray(stored[:, layer]))


def _examine(
    conditions: Mapping[str, Adapter], images: Batches, seen: dict[str, _Examined], report_progress: Callable[[str], None]
) -> Tensor | None:
    """Run the images through all conditions; their labels [N], or None if any is unknown."""
    labels: list[Tensor] = []
    for part in images:
        batch, own = batch_images(part), batch_labels(part)
        own = torch.full((len(batch),), -1) if own is None else own.cpu()
        labels.append(own)
        for name, adapter in conditions.items():
            seen[name].add(adapter, move_images(batch, adapter.device), own if int(own.min()) >= 0 else None)
            report_progress(f"examining {name}")
        del part, batch
    all_labels = torch.cat(labels)
    return all_labels if int(all_labels.min()) >= 0 else None


def _origin(adapter: Adapter, sources: Sequence[SourceStatistics]) -> SourceStatistics:
    for source in sources:
        if source.provenance.reduce == str(adapter.reduce):
            return source
    raise InputError(f"no source statistics of reducer {adapter.reduce}: measure them with it")


def _folds(labels: Tensor | None, groups: Sequence[int] | None) -> tuple[Folds | None, str | None]:
    """How the images are probed, or why not."""
    if labels is None:
        return None, "the images have no labels"
    try:
        return split_folds(labels if groups is None else torch.tensor(groups)[labels]), None
    except InputError as error:
        return None, str(error)


def _summary(scores: dict[str, Scores]) -> Iterator[dict[str, Estimate]]:
    """Information, InfoNCE, accuracy of the probe, and paired differences of the information."""
    yield {name: estimate(found.information) for name, found in scores.items()}
    yield {name: estimate(found.infonce) for name, found in scores.items()}
    right = {name: (int(found.correct.sum()), len(found.correct)) for name, found in scores.items()}
    yield {name: Estimate(correct / total, *wilson(correct, total)) for name, (correct, total) in right.items()}
    pairs = compared_pairs(list(scores))
    yield {f"{a} - {b}": estimate(scores[a].information - scores[b].information) for a, b in pairs}


def _gap(moments: StreamMoments, source: SourceStatistics, layer: int) -> float:
    mean, std = (found[layer].cpu() for found in moments.result())
    expected, spread = source.mean[layer].cpu(), source.std[layer].cpu()
    distance = (mean - expected).square().mean() + (std - spread).square().mean()
    return float(distance / spread.square().mean().clamp(min=1e-12))


def _moved(adapter: Adapter, layer: int) -> float:
    """Relative change of the two norms of a block."""
    vit = adapter.source_vit
    norms = tuple(f"{norm}." for norm in list(vit.layer_norms())[2 * layer : 2 * layer + 2])
    now = {name: p for name, p in adapter.model.named_parameters() if name.startswith(norms)}
    return float(relative_change(now, vit.model.state_dict(), vit))


def _bias(adapter: Adapter, moments: StreamMoments, layer: int) -> float:
    added = adapter.prediction_edits().cls_bias.get(layer)
    mean = moments.result()[0][layer]
    return 0.0 if added is None else float(added.detach().norm() / mean.norm().clamp(min=1e-12))


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
