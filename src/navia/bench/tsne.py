"""What a cell's t-SNE shows: the held-out pictures of some classes, as some blocks see them once nothing adapts any more."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navia.adaptation.adapter import Adapter
from navia.bench.run import held_out_from
from navia.data.loader import Loader
from navia.data.sources import OpenedData
from navia.data.streams import Segment, Stream
from navia.errors import InputError, SpecError
from navia.evaluation.explain import NEIGHBOURS, check_sklearn, forward_with_features, neighbour_accuracy, tsne_points
from navia.models.base import ViT
from navia.models.labels import class_names

FREQUENT = 8  # classes where none are asked for
MOST_PICTURES = 1000  # more would neither be told apart in a panel nor fit into a page


@dataclass(frozen=True)
class Tsne:
    """blocks: counted from 0. classes: of the model; None: the most frequent. or_frequent: these too where the model or the
    held-out pictures lack one of `classes`, which is an error otherwise."""

    blocks: tuple[int, ...]
    classes: tuple[int, ...] | None = None
    or_frequent: bool = False


@dataclass(frozen=True, eq=False)
class Shown:
    """classes: of the model, with their names. labels: of each picture, a place in `classes`. stream: the pictures."""

    blocks: tuple[int, ...]
    classes: tuple[int, ...]
    names: tuple[str, ...]
    labels: tuple[int, ...]
    stream: Stream


def shown(tsne: Tsne, vit: ViT, opened: OpenedData, loader: Loader) -> Shown:
    """Which pictures of the last third of the stream are looked at. Whatever is not there is refused by name, before the
    cell adapts to anything."""
    check_sklearn()
    beyond = [block for block in tsne.blocks if block >= vit.depth]
    if beyond:
        raise SpecError(f"tsne names {_few('block', beyond)}, but the model has blocks 0..{vit.depth - 1}")
    shots = [(domain, position) for batch in loader.plan[held_out_from(len(loader)) :] for _, domain, position in batch]
    found = [_class(opened, loader.stream.domains[domain].label(position)) for domain, position in shots]
    names = _names(vit, opened)
    classes = _classes(tsne, found, names)
    kept = [i for i, label in enumerate(found) if label in classes][:MOST_PICTURES]
    if len(classes) < 2 or len(kept) <= NEIGHBOURS:
        raise InputError(
            f"t-SNE needs at least 2 classes and {NEIGHBOURS + 1} labelled pictures in the last third of the stream, there "
            f"are {len(classes)} and {len(kept)}: give more images"
        )
    segment = Segment("held out", np.array([shots[i] for i in kept]))
    return Shown(
        blocks=tsne.blocks,
        classes=classes,
        names=tuple(names[label] for label in classes),
        labels=tuple(classes.index(found[i]) for i in kept),
        stream=Stream(loader.stream.domains, (segment,)),
    )


def _class(opened: OpenedData, label: int) -> int:
    """The model's class of a label: data with fewer classes than the model count their own."""
    return opened.classes[label] if opened.classes and label >= 0 else label


def _names(vit: ViT, opened: OpenedData) -> tuple[str, ...]:
    """Of all classes; a name that several have (ImageNet's crane) is told apart by the number."""
    names = opened.names or class_names(vit) or tuple(f"class {i}" for i in range(vit.num_classes))
    times = Counter(names)
    return tuple(name if times[name] == 1 else f"{name} ({i})" for i, name in enumerate(names))


def _classes(tsne: Tsne, found: Sequence[int], names: Sequence[str]) -> tuple[int, ...]:
    counts = Counter(label for label in found if label >= 0)
    often = sorted(counts, key=lambda label: (-counts[label], label))[:FREQUENT]
    if tsne.classes is None:
        return tuple(sorted(often))
    unknown = [label for label in tsne.classes if label >= len(names)]
    absent = [label for label in tsne.classes if label < len(names) and not counts[label]]
    if not unknown and not absent:
        return tsne.classes
    if tsne.or_frequent:
        return tuple(sorted(often))
    if unknown:
        raise SpecError(f"tsne names {_few('class', unknown)}, but the model has classes 0..{len(names) - 1}")
    told = [f"{label} ({names[label]})" for label in absent]
    raise InputError(f"tsne names {_few('class', told)}, of which the last third of the stream has no picture")


def _few(kind: str, things: Sequence[object]) -> str:
    many = f"{kind}{'es' if kind == 'class' else 's'}"
    return f"{kind if len(things) == 1 else many} {', '.join(map(str, things))}"


def look(adapter: Adapter, what: Shown, batch: int, workers: int = 0) -> dict[str, Any]:
    """For the trace: per block the points, and in the space of the features the accuracy of the neighbours."""
    device, seen = adapter.source_vit.device, []
    for part in Loader(what.stream, adapter.source_vit.preprocessing, batch, workers):
        features = forward_with_features(adapter.method, part.images.to(device)).features
        assert features is not None
        seen.append(features[:, list(what.blocks)].cpu())
    by_block, labels = torch.cat(seen).unbind(dim=1), torch.tensor(what.labels)
    panels = []
    for block, features in zip(what.blocks, by_block, strict=True):
        points = tsne_points(features)
        laid_out = None if points is None else [[round(x, 2), round(y, 2)] for x, y in points.tolist()]
        panels.append({"block": block, "neighbours": neighbour_accuracy(features, labels), "points": laid_out})
    return {"classes": list(what.classes), "names": list(what.names), "labels": labels.tolist(), "panels": panels}
