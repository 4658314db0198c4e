"""What a method needs to know of the source domain: CLS statistics of a few clean, unlabelled images, and EATA's Fisher."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from navia import __version__, tensorfile
from navia.data import SOURCE_IMAGES
from navia.data.domain import Domain
from navia.data.folder import scan, stream_order
from navia.data.loader import batch_images
from navia.data.open import open_source
from navia.errors import InputError, NaviaError
from navia.methods.moments import StreamMoments
from navia.methods.parameters import fingerprint, norm_parameters, private_copy
from navia.models.base import ViT
from navia.models.forward import run
from navia.reduction import Reducer, ReducerLike, parse

_KIND = "source statistics"

Images = Tensor | str | Path | Iterable[Any]


class SourceError(NaviaError):
    """Source statistics that are missing, broken, or of another model or reducer."""


@dataclass(frozen=True)
class Provenance:
    """What the statistics were measured with; they are refused for anything else."""

    model: str
    weights: str
    reduce: str
    count: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    version: str = __version__


@dataclass(frozen=True)
class SourceStatistics:
    """mean, std [L, D] of the CLS features over the source images; fisher: EATA's importance of each norm parameter."""

    mean: Tensor
    std: Tensor
    provenance: Provenance
    fisher: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def measure(
        cls,
        vit: ViT,
        images: Images,
        reduce: ReducerLike = None,
        *,
        fisher: bool = False,
        classes: Any = None,
        limit: int | None = None,
        batch: int = 64,
    ) -> "SourceStatistics":
        """Measure on clean, unlabelled images: a tensor [N, C, H, W], a loader, or a folder of pictures (or what else
        `navia run --source` takes: "embedded", "datasets:NAME").

        A loader's batches are tensors, tuples or lists (images first), dicts (pixel_values, images or image), or those of
        `navia.data.loader.Loader`.
        fisher: also measure what EATA needs (2,000 images are usual). limit: use at most so many images; if not given, all
        of a tensor or loader, and 64 of a folder, see `open_source` for which. One pass; features are not kept.
        """
        reducer = parse(reduce)
        mask = vit.class_mask(classes)
        moments, rounds = StreamMoments(), 0
        importance: dict[str, Tensor] = {}
        model = private_copy(vit, norm_parameters(vit) if fisher else [])
        if isinstance(images, str | Path):
            images = _drawn(vit, images, batch, SOURCE_IMAGES if limit is None else limit)
        for chunk in image_batches(vit, images, batch, limit):
            with torch.set_grad_enabled(fisher):
                outcome = run(model, chunk, reducer, classes=mask, features=True)
            assert outcome.features is not None
            moments.add(outcome.features.detach())
            if fisher:
                rounds += 1
                _add_squared_gradients(importance, model, outcome.logits)
        if moments.count < 2:
            raise InputError(f"source statistics need at least 2 images (64 are usual), got {moments.count}")
        mean, std = moments.result()
        pre = vit.preprocessing
        origin = Provenance(
            vit.name, fingerprint(vit), str(reducer), moments.count, pre.size, tuple(pre.mean), tuple(pre.std)
        )
        return cls(mean, std, origin, {name: value / rounds for name, value in importance.items()})

    def check(self, vit: ViT, reducer: Reducer) -> None:
        """Raise SourceError unless these statistics belong to this model, reducer and preprocessing."""
        own, pre = self.provenance, vit.preprocessing
        if own.reduce != str(reducer):
            raise SourceError(f"source statistics are of reducer {own.reduce}, not {reducer}: measure them again")
        if (own.size, own.mean, own.std) != (tuple(pre.size), tuple(pre.mean), tuple(pre.std)):
            raise SourceError("source statistics were measured under another preprocessing: measure them again")
        if self.mean.shape != (vit.depth, vit.dim) or own.weights != fingerprint(vit):
            raise SourceError(f"source statistics are of {own.model} with other weights than {vit.name}'s")

    def to(self, device: torch.device) -> "SourceStatistics":
        """The same on another device."""
        moved = {name: value.to(device) for name, value in self.fisher.items()}
        return SourceStatistics(self.mean.to(device), self.std.to(device), self.provenance, moved)

    def save(self, path: str | Path) -> None:
        """Write them with their provenance (safetensors)."""
        tensors = {"mean": self.mean, "std": self.std, **{f"fisher.{k}": v for k, v in self.fisher.items()}}
        tensorfile.write(path, _KIND, tensors, {"provenance": json.dumps(asdict(self.provenance))})

    @classmethod
    def load(cls, path: str | Path) -> "SourceStatistics":
        """Read what `save` wrote; SourceError for anything else."""
        tensors, metadata = tensorfile.read(path, _KIND, SourceError)
        raw = json.loads(metadata["provenance"])
        raw |= {key: tuple(raw[key]) for key in ("size", "mean", "std")}
        fisher = {k.removeprefix("fisher."): v for k, v in tensors.items() if k.startswith("fisher.")}
        return cls(tensors["mean"], tensors["std"], Provenance(**raw), fisher)


def _drawn(vit: ViT, where: str | Path, batch: int, count: int) -> Iterator[Tensor]:
    source = open_source(where, count, fewer=True)
    for start in range(0, len(source.collection), batch):
        yield source.tensors(range(start, min(start + batch, len(source.collection))), vit.preprocessing)


def image_batches(vit: ViT, images: Images, batch: int, limit: int | None) -> Iterator[Tensor]:
    """Checked batches on the model's device, of a tensor, a loader (labels are ignored) or a folder."""
    if batch < 1 or (limit is not None and limit < 1):
        raise InputError("batch and limit must be at least 1")
    if isinstance(images, str | Path):
        folder = scan(images)
        pictures, order = Domain("stream", folder), stream_order(folder)[:limit]  # the first ones alone may be of one class
        parts = (order[i : i + batch] for i in range(0, len(order), batch))
        source: Iterable[Any] = (pictures.tensors(part, vit.preprocessing) for part in parts)
    elif isinstance(images, Tensor):
        source = images.split(batch) if images.dim() == 4 else [images]
    else:
        source = images
    seen = 0
    for item in source:
        chunk = batch_images(item)
        if limit is not None and isinstance(chunk, Tensor):
            chunk = chunk[: limit - seen]
        chunk = chunk.to(vit.cls_token.device) if isinstance(chunk, Tensor) else chunk
        vit.check_images(chunk)
        seen += len(chunk)
        yield chunk
        if limit is not None and seen >= limit:
            return


def _add_squared_gradients(importance: dict[str, Tensor], model: ViT, logits: Tensor) -> None:
    """Squared gradient of the batch's cross entropy against the model's own predictions, per norm parameter (EATA)."""
    tuned = {name: p for name, p in model.model.named_parameters() if p.requires_grad}
    loss = F.cross_entropy(logits, logits.detach().argmax(dim=1))
    for (name, _), gradient in zip(tuned.items(), torch.autograd.grad(loss, list(tuned.values())), strict=True):
        importance[name] = importance.get(name, torch.zeros_like(gradient)) + gradient.square()


def open_source_statistics(
    vit: ViT,
    source: SourceStatistics | Images,
    reduce: ReducerLike = None,
    *,
    method: str | None = None,
    fisher: bool = False,
    limit: int | None = None,
) -> SourceStatistics:
    """Get source statistics from anything that a user may give as the source.

    Args:
        vit: The model that will be adapted.
        source: Statistics (returned as they are), a file from `navia stats`, or clean images: a folder, "embedded",
            "datasets:NAME", a tensor or a loader.
        reduce: The reducer that adaptation will use.
        method: Also measure the Fisher information if this method needs it.
        fisher: Measure it in any case.
        limit: At most so many images; by default 64 of a folder or data set, and all of a tensor or loader.
    """
    from navia.methods.base import METHODS

    if isinstance(source, SourceStatistics):
        return source
    if isinstance(source, str | Path) and Path(source).is_file():
        return SourceStatistics.load(source)
    fisher = fisher or (method is not None and METHODS.get(method).needs_fisher)
    return SourceStatistics.measure(vit, source, reduce, fisher=fisher, limit=limit)
