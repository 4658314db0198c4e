"""The t-SNE of a cell: CLS features of some blocks, for the held-out images of some classes, after adaptation has ended."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from navia.adaptation.adapter import Adapter
from navia.bench.run import held_out_from
from navia.bench.spec import TsneSpec
from navia.data.loader import Loader
from navia.data.sources import OpenedData
from navia.data.streams import Segment, Stream
from navia.errors import InputError, SpecError
from navia.evaluation.explain import NEIGHBOURS, check_sklearn, neighbour_accuracy, tsne_points
from navia.models.base import ViT
from navia.models.labels import class_names

FREQUENT = 8  # classes, if the spec names none
MAX_IMAGES = 1000  # more can neither be told apart in a panel nor fit into a page


def select_images(tsne: TsneSpec, vit: ViT, opened: OpenedData, loader: Loader) -> tuple[Stream, dict[str, Any]]:
    """Choose images of the last third of the stream. What is missing is refused by name, before the cell adapts.

    Returns:
        The images; and for the trace, the classes of the model, their names, and the labels as indices into the classes.
    """
    check_sklearn()
    beyond = [block for block in tsne.blocks if block >= vit.depth]
    if beyond:
        raise SpecError(f"tsne names {_plural('block', beyond)}, but the model has blocks 0..{vit.depth - 1}")
    shots = [(domain, position) for batch in loader.plan[held_out_from(len(loader)) :] for _, domain, position in batch]
    labels = [loader.stream.domains[domain].label(position) for domain, position in shots]
    if opened.classes:  # data with fewer classes than the model number their own
        labels = [opened.classes[label] if label >= 0 else label for label in labels]
    names = opened.names or class_names(vit) or tuple(f"class {i}" for i in range(vit.num_classes))
    times = Counter(names)  # two classes of ImageNet are called crane
    names = tuple(name if times[name] == 1 else f"{name} ({i})" for i, name in enumerate(names))
    classes = _classes(tsne, labels, names)
    kept = [i for i, label in enumerate(labels) if label in classes][:MAX_IMAGES]
    if len(classes) < 2 or len(kept) <= NEIGHBOURS:
        raise InputError(
            f"t-SNE needs at least 2 classes and {NEIGHBOURS + 1} labelled images in the last third of the stream, there "
            f"are {len(classes)} and {len(kept)}: give more images"
        )
    stream = Stream(loader.stream.domains, (Segment("held out", np.array([shots[i] for i in kept])),))
    shown = {"classes": list(classes), "names": [names[label] for label in classes]}
    return stream, {**shown, "labels": [classes.index(labels[i]) for i in kept]}


def _classes(tsne: TsneSpec, labels: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    counts = Counter(label for label in labels if label >= 0)
    frequent = tuple(sorted(sorted(counts, key=lambda label: (-counts[label], label))[:FREQUENT]))
    if tsne.classes is None:
        return frequent
    unknown = [label for label in tsne.classes if label >= len(names)]
    absent = [f"{label} ({names[label]})" for label in tsne.classes if label < len(names) and not counts[label]]
    if not unknown and not absent:
        return tsne.classes
    if tsne.or_frequent:
        return frequent
    if unknown:
        raise SpecError(f"tsne names {_plural('class', unknown)}, but the model has classes 0..{len(names) - 1}")
    raise InputError(f"tsne names {_plural('class', absent)}, but the last third of the stream has no image of it")


def _plural(kind: str, things: Sequence[object]) -> str:
    many = f"{kind}{'es' if kind == 'class' else 's'}"
    return f"{kind if len(things) == 1 else many} {', '.join(map(str, things))}"


def tsne_panels(
    adapter: Adapter, blocks: Sequence[int], stream: Stream, labels: Sequence[int], batch: int, workers: int = 0
) -> list[dict[str, Any]]:
    """For each block the points, and the accuracy of the nearest neighbours in the space of the features."""
    device, found = adapter.source_vit.cls_token.device, []
    for part in Loader(stream, adapter.source_vit.preprocessing, batch, workers):
        features = adapter.features(part.images.to(device)).features
        assert features is not None
        found.append(features[:, list(blocks)].cpu())
    panels = []
    for block, features in zip(blocks, torch.cat(found).unbind(dim=1), strict=True):
        layout, accuracy = tsne_points(features), neighbour_accuracy(features, torch.tensor(labels))
        points = None if layout is None else [[round(x, 2), round(y, 2)] for x, y in layout.tolist()]
        panels.append({"block": block, "neighbours": accuracy, "points": points})
    return panels
