"""`navia.evaluate`: accuracy, calibration and cost of an adapter on labelled data, domain by domain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from navia.adaptation.adapter import Adapter
from navia.data.layouts import match_classes
from navia.data.loader import iterate_batches, move_images
from navia.data.sources import open_domains
from navia.errors import InputError
from navia.evaluation.cost import Cost, cost
from navia.evaluation.metrics import accuracy, confidence_and_correctness
from navia.models.labels import class_names


@dataclass(frozen=True)
class DomainResult:
    """Result of one domain.

    Attributes:
        name: Name of the domain, such as the corruption.
        images: Number of images.
        top1: Top-1 accuracy.
        interval: Its 95 % interval (Wilson score).
        ece: Expected calibration error; None if a logit was not finite.
        entropy: Mean entropy of the predictions.
        updates: Number of batches that led to an update.
    """

    name: str
    images: int
    top1: float
    interval: tuple[float, float]
    ece: float | None
    entropy: float
    updates: int


@dataclass(frozen=True)
class EvaluationResult:
    """Result over all images; `print` shows it as a table.

    Attributes:
        images: Number of images.
        top1: Top-1 accuracy, with the 95 % interval `interval` (Wilson score).
        ece: Expected calibration error; None if a logit was not finite.
        cost: `navia.cost` of the adapter: `cost.gmacs` counts the forward passes of a step, per image.
        domains: The same for each domain, with the mean entropy and the number of updates.
        update_share: Share of the batches that led to an update.

    Example:
        >>> adapter = navia.adapt("embedded", method="none")
        >>> result = navia.evaluate(adapter, "embedded", limit=64)
        >>> result.images, 0 < result.top1 <= 1, result.to_dict()["images"]
        (64, True, 64)
    """

    images: int
    top1: float
    interval: tuple[float, float]
    ece: float | None
    cost: Cost
    domains: tuple[DomainResult, ...]
    update_share: float = 1.0

    @property
    def gmacs_forward(self) -> float:
        """GMACs of a single forward pass per image."""
        return self.cost.gmacs / self.cost.forwards

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"gmacs_forward": self.gmacs_forward, "gmacs_step": self.cost.gmacs}

    def __str__(self) -> str:
        rows: list[tuple[str, Any]] = [(row.name, row) for row in self.domains]
        rows += [("all", self)] if len(rows) > 1 else []
        width = max(len("domain"), *(len(name) for name, _ in rows))
        lines = [f"{self.cost.model}, {self.cost.method}, reduce {self.cost.reduce}"]
        lines += [f"{'domain':<{width}}  images   top-1    95 % interval    ECE"]
        for name, row in rows:
            ece, (low, high) = "    -" if row.ece is None else f"{row.ece:.3f}", row.interval
            lines += [f"{name:<{width}}  {row.images:6}  {row.top1:6.1%}  {low:6.1%} - {high:6.1%}  {ece}"]
        passes = f"{self.gmacs_forward:.2f} per forward, {self.cost.gmacs:.2f} per step (without backward passes)"
        return "\n".join([*lines, f"GMACs per image: {passes}", f"batches adapted to: {self.update_share:.0%}"])


def evaluate(
    adapter: Adapter,
    data: Any,
    *,
    batch_size: int = 64,
    limit: int | None = None,
    workers: int = 0,
    seed: int = 0,
    corruptions: Sequence[str] | None = None,
    severity: int = 5,
    reset: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
) -> EvaluationResult:
    """Evaluate an adapter on labelled data. Every batch is predicted before the adapter adapts to it.

    Args:
        adapter: As made by `navia.adapt`. It is left in the state after the last domain.
        data: A folder of class folders or in a layout of ImageNet (ImageNet-C: one domain per corruption and severity),
            "embedded" or "datasets:NAME"; a map-style dataset; a `DataLoader` or iterable of labelled batches; a pair of
            tensors (images, labels); or a mapping of domain names to any of these. Class names of folders and datasets are
            matched with the model's classes; other labels are columns of the adapter's logits.
        batch_size: Images per step. A loader has its own batch size and workers.
        limit: Maximum number of images per domain.
        workers: Processes that decode images.
        seed: Order of the images of folders and datasets.
        corruptions: Corrupt the images of a folder on the fly, with one domain per corruption.
        severity: Severity of `corruptions`, 1 to 5.
        reset: Reset the adapter before every domain. False: continue from its present state.
        progress: Called after every batch with the number of images so far and in all (None if unknown).

    Returns:
        Accuracy, calibration error and cost over all images and for each domain.

    Raises:
        InputError: Images without labels, or with labels that the adapter does not predict.

    Example:
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> result = navia.evaluate(adapter, "embedded", corruptions=["fog", "contrast"], limit=64)
        >>> [(row.name, row.images) for row in result.domains]
        [('fog', 64), ('contrast', 64)]
    """
    parts = _open(adapter, "data", data, corruptions or (), severity, batch_size)
    sizes = [None if part.size is None else min(part.size, limit or part.size) for part in parts]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    vit, rows, seen = adapter.source_vit, [], 0
    scored: list[tuple[Tensor, Tensor]] = []  # confidence and correctness of each batch
    for part in parts:
        batches, before, entropy, updates = len(scored), seen, 0.0, 0
        if reset:
            adapter.reset()
        for images, labels in iterate_batches(
            part.data, vit.preprocessing, batch_size, limit, workers, seed, device=vit.device
        ):
            truth = _checked(part, labels, adapter)
            logits = adapter(move_images(images, vit.device)).detach().cpu()
            assert adapter.last is not None
            scored.append(confidence_and_correctness(logits, truth))
            seen += len(truth)
            entropy += adapter.last.entropy * len(truth)
            updates += adapter.last.updated
            if progress is not None:
                progress(seen, total)
        if seen == before:
            raise InputError(f"no images in {part.name!r}")
        rows.append(DomainResult(part.name, *_scores(scored[batches:]), entropy / (seen - before), updates))
    counted = cost(vit, adapter.reduce, method=adapter.method_name, options=vars(adapter.options))
    share = sum(row.updates for row in rows) / len(scored)
    return EvaluationResult(*_scores(scored), counted, tuple(rows), share)


def _scores(scored: Sequence[tuple[Tensor, Tensor]]) -> tuple[int, float, tuple[float, float], float | None]:
    """Images, top-1, its interval and ECE."""
    confidence, correct = map(torch.cat, zip(*scored, strict=True))
    found = accuracy(confidence, correct)
    return len(correct), found.top1, (found.low, found.high), found.ece


@dataclass(frozen=True)
class _Part:
    """A domain. columns: for each label the column of the logits, or -1. size: number of images; None if unknown."""

    name: str
    data: Any
    columns: Tensor
    size: int | None


def _open(adapter: Adapter, name: str, data: Any, corruptions: Sequence[str], severity: int, batch_size: int) -> list[_Part]:
    vit = adapter.source_vit
    if isinstance(data, Mapping):
        found: list[_Part] = []
        for key, value in data.items():
            parts = _open(adapter, str(key), value, corruptions, severity, batch_size)
            found += [replace(part, name=str(key) if len(parts) == 1 else f"{key}/{part.name}") for part in parts]
        if not found:
            raise InputError("a mapping of domains is empty")
        return found
    if isinstance(data, str | Path):
        opened = open_domains(data, vit.num_classes, class_names(vit), corruptions=corruptions, severity=severity)
        for domain in opened.domains:
            if domain.images.labels is None:
                raise InputError(f"{domain.name!r} of {str(data)!r} has no labels to score with: use class folders")
        columns = _columns(adapter, opened.classes or range(vit.num_classes))
        return [_Part(domain.name, domain, columns, len(domain.images)) for domain in opened.domains]
    if corruptions:
        raise InputError(f"corruptions need a folder, 'embedded' or 'datasets:NAME', got {type(data).__name__}")
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor) and data[1].dim() == 1:
        images, labels = data
        if len(images) != len(labels):
            raise InputError(f"{name!r} has {len(images)} images but {len(labels)} labels")
        batches = list(zip(images.split(batch_size), labels.split(batch_size), strict=True))
        return [_Part(name, batches, torch.arange(adapter.num_classes), len(labels))]
    sized = hasattr(data, "__len__") and (isinstance(data, Dataset) or hasattr(data, "column_names"))
    return [_Part(name, data, _dataset_columns(adapter, data), len(data) if sized else None)]


def _columns(adapter: Adapter, classes: Sequence[int]) -> Tensor:
    """Columns of the logits for classes of the model; -1 for classes that are not predicted."""
    predicted = range(adapter.num_classes) if adapter.classes is None else adapter.classes.tolist()
    column = {label: i for i, label in enumerate(predicted)}
    return torch.tensor([column.get(label, -1) for label in classes])


def _dataset_columns(adapter: Adapter, data: Any) -> Tensor:
    """Columns for the labels of a dataset with class names (torchvision's `ImageFolder`, Hugging Face datasets), whose order
    may differ from the model's. A `target_transform` or names that are no strings: labels are columns."""
    while hasattr(data, "dataset") and not hasattr(data, "classes"):  # DataLoader, Subset
        data = data.dataset
    features = getattr(data, "features", None)
    named = features.get("label") if isinstance(features, Mapping) else None
    names = getattr(data, "classes", None) if named is None else getattr(named, "names", None)
    given = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if names is None or not given or getattr(data, "target_transform", None) is not None:
        return torch.arange(adapter.num_classes)
    vit = adapter.source_vit
    match = match_classes(names, vit.num_classes, class_names(vit), numbered=True)
    subset = match.class_indices or range(vit.num_classes)
    return _columns(adapter, [subset[label] for label in match.labels])


def _checked(part: _Part, labels: Tensor | None, adapter: Adapter) -> Tensor:
    """Labels as columns of the logits."""
    if labels is None:
        raise InputError(f"{part.name!r} has no labels to score with: give class folders, or (images, labels)")
    low, high, known = int(labels.min()), int(labels.max()), len(part.columns)
    if low < 0 or high >= known:
        raise InputError(f"labels of {part.name!r} reach {low}..{high}, but there are {known} classes")
    found = part.columns[labels.cpu()]
    if bool((found < 0).any()):
        raise InputError(
            f"label {int(labels[found < 0][0])} of {part.name!r} is not among the {adapter.num_classes} classes that the "
            "adapter predicts: leave out its images, or adapt without `classes`"
        )
    return found
