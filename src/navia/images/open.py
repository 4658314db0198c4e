"""From what the user typed (a folder, a data set, "embedded") to domains with the model's own labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from navia.errors import InputError, NaviaError
from navia.images import sample
from navia.images.domain import Collection, DatasetPictures, Domain, Subset, corrupted
from navia.images.folder import scan
from navia.images.layouts import labelled, match_classes, recognise


@dataclass(frozen=True)
class Opened:
    """kind: the layout that was recognised. classes: columns to answer with, where the data has fewer classes than the model
    (ImageNet-R, ImageNet-A)."""

    kind: str
    domains: tuple[Domain, ...]
    classes: tuple[int, ...] | None = None


def open_domains(
    where: str | Path,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    *,
    corruptions: Sequence[str] = (),
    severity: int = 5,
    seed: int = 0,
) -> Opened:
    """Domains of a folder in any of the known layouts, of "embedded", or of "datasets:NAME" / "datasets:NAME:SPLIT" (a
    Hugging Face data set by name, or a folder that `save_to_disk` or `imagefolder` understands).

    corruptions: one domain per corruption instead of the pictures as they are."""
    if str(where) == "embedded":
        parts: list[tuple[str, Collection]] = [("clean", sample.unseen_images())]
        kind, classes = "embedded", None
    elif str(where).startswith("datasets:"):
        parts = [_from_datasets(str(where).removeprefix("datasets:"))]
        kind, classes = "datasets", None
    else:
        kind, parts, classes = _from_folder(Path(where), num_classes, class_names)
    for name, collection in parts:
        _check_labels(name, collection, len(classes) if classes else num_classes)
    if not corruptions:
        return Opened(kind, tuple(Domain(name, collection) for name, collection in parts), classes)
    if len(parts) > 1:
        raise InputError(f"{str(where)!r} is corrupted already ({len(parts)} parts): leave out the corruption")
    return Opened(kind, tuple(corrupted(parts[0][1], corruptions, severity, seed)), classes)


def leave_out_source(opened: Opened, count: int) -> tuple[Opened, Domain]:
    """Clean images for the source statistics, and the domains without them: no image is both source and stream. They are
    the first `count` of a fixed deal; the embedded sample has some of its own."""
    if opened.kind == "embedded":
        return opened, Domain("source", Subset(sample.source_images(), range(count)))
    whole = opened.domains[0].collection
    if len(opened.domains) > 1 and not all(domain.corruption for domain in opened.domains):
        raise InputError("these images are corrupted already: give a folder of clean ones as the source")
    if len(whole) <= 2 * count:
        raise InputError(f"{len(whole)} images are too few to leave {count} out as the source: give a folder of clean ones")
    dealt = [int(i) for i in np.random.default_rng(0).permutation(len(whole))]
    rest = Subset(whole, sorted(dealt[count:]))
    domains = tuple(replace(domain, collection=rest) for domain in opened.domains)
    return replace(opened, domains=domains), Domain("source", Subset(whole, sorted(dealt[:count])))


def _from_folder(
    root: Path, num_classes: int, class_names: Sequence[str] | None
) -> tuple[str, list[tuple[str, Collection]], tuple[int, ...] | None]:
    layout = recognise(root)
    parts: list[tuple[str, Collection]] = []
    mask: tuple[int, ...] | None = None
    for part in layout.parts:
        folder = scan(part.path)
        if folder.class_names is None:
            parts.append((part.name or root.name, folder))
            continue
        classes = match_classes(folder.class_names, num_classes, class_names)
        mask = classes.mask
        parts.append((part.name or root.name, labelled(folder, classes)))
    return layout.kind, parts, mask


def _from_datasets(name: str) -> tuple[str, Collection]:
    try:
        import datasets
    except ImportError as error:
        raise NaviaError("Hugging Face data sets need the datasets package: pip install 'navia[hf]'") from error
    place, _, split = name.partition(":")
    try:
        if (Path(place) / "dataset_info.json").exists() or (Path(place) / "dataset_dict.json").exists():
            found = datasets.load_from_disk(place)
            found = found[split or next(iter(found))] if isinstance(found, datasets.DatasetDict) else found
        else:
            found = datasets.load_dataset(place, split=split or "test")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"cannot open data set {name!r}: {error}") from error
    return name, DatasetPictures(found)


def _check_labels(name: str, collection: Collection, count: int) -> None:
    labels = collection.labels
    if labels is not None and len(labels) and not 0 <= min(labels) <= max(labels) < count:
        raise InputError(f"labels of {name!r} reach {min(labels)}..{max(labels)}, the model answers {count} classes")
