"""Source statistics: mean and std of the CLS features of a few clean, unlabelled images, and EATA's Fisher information."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from navia import __version__
from navia.data import SOURCE_IMAGES
from navia.data.loader import batch_images, move_images
from navia.data.sources import Domain, default_order, open_source, scan
from navia.errors import InputError, SourceError
from navia.io import read_tensors, write_tensors
from navia.methods.features import StreamMoments
from navia.methods.parameters import fingerprint, norm_parameters, private_copy
from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import Reducer, ReducerLike, parse

_KIND = "source statistics"

Images = Tensor | str | Path | Iterable[Any]


@dataclass(frozen=True)
class Provenance:
    """What the statistics were measured with; they are refused for any other model, reducer, precision or preprocessing."""

    model: str
    weights: str
    reduce: str
    count: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    version: str = __version__
    precision: str = "float32"


@dataclass(frozen=True)
class SourceStatistics:
    """CLS statistics of the source images, which alignment methods need.

    Attributes:
        mean: Mean of the CLS features of every layer [L, D].
        std: Their unbiased standard deviation [L, D].
        provenance: What they were measured with.
        fisher: EATA's importance of each LayerNorm parameter, by name.

    Example:
        >>> vit = navia.load("embedded")
        >>> navia.SourceStatistics.measure(vit, "embedded", reduce="tome:8")
        SourceStatistics(model='embedded', reduce='tome:8', images=64, layers=12, dim=64, fisher=False)
    """

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
        batch_size: int = 64,
    ) -> "SourceStatistics":
        """Measure statistics on clean, unlabelled images in one pass.

        Args:
            vit: The model.
            images: A tensor [N, C, H, W]; a loader of tensors, tuples or lists (images first) or dicts (pixel_values, images
                or image); a folder of images, "embedded" or "datasets:NAME".
            reduce: The reducer that adaptation will use.
            fisher: Also measure the Fisher information that EATA needs (2,000 images are usual).
            classes: Class indices, as for `navia.adapt`.
            limit: Largest number of images; by default all of a tensor or loader, and 64 of a folder.
            batch_size: Images per forward.

        Raises:
            InputError: Fewer than two images, or images that do not fit the model.
        """
        reducer = parse(reduce)
        indices = vit.class_indices(classes)
        moments, rounds = StreamMoments(), 0
        importance: dict[str, Tensor] = {}
        model = private_copy(vit, norm_parameters(vit) if fisher else [])
        if isinstance(images, str | Path):
            images = _sampled(vit, images, batch_size, SOURCE_IMAGES if limit is None else limit)
        for chunk in image_batches(vit, images, batch_size, limit):
            with torch.set_grad_enabled(fisher):
                output = forward(model, chunk, reducer, classes=indices, features=True)
            assert output.features is not None
            moments.add(output.features.detach())
            if fisher:
                rounds += 1
                _add_squared_gradients(importance, model, output.logits)
        if moments.count < 2:
            raise InputError(f"source statistics need at least 2 images (64 are usual), got {moments.count}")
        mean, std = moments.result()
        pre = vit.preprocessing
        origin = Provenance(
            vit.name, fingerprint(vit), str(reducer), moments.count, pre.size, tuple(pre.mean), tuple(pre.std),
            precision=vit.precision,
        )  # fmt: skip
        return cls(mean, std, origin, {name: value / rounds for name, value in importance.items()})

    def __repr__(self) -> str:
        found, (layers, dim) = self.provenance, self.mean.shape
        return (
            f"SourceStatistics(model={found.model!r}, reduce={found.reduce!r}, images={found.count}, layers={layers},"
            f" dim={dim}, fisher={bool(self.fisher)})"
        )

    def check(self, vit: ViT, reducer: Reducer) -> None:
        """Raise SourceError unless these statistics belong to this model, reducer and preprocessing."""
        found, pre = self.provenance, vit.preprocessing
        if found.reduce != str(reducer):
            raise SourceError(f"source statistics are of reducer {found.reduce}, not {reducer}: measure them again")
        if found.precision != vit.precision:
            raise SourceError(
                f"source statistics were measured in {found.precision}, not {vit.precision}: measure them again"
            )
        if (found.size, found.mean, found.std) != (tuple(pre.size), tuple(pre.mean), tuple(pre.std)):
            raise SourceError("source statistics were measured under another preprocessing: measure them again")
        if self.mean.shape != (vit.depth, vit.embed_dim) or found.weights != fingerprint(vit):
            raise SourceError(f"source statistics are of {found.model} with other weights than {vit.name}'s")

    def to(self, device: torch.device) -> "SourceStatistics":
        """The same on another device."""
        moved = {name: value.to(device) for name, value in self.fisher.items()}
        return SourceStatistics(self.mean.to(device), self.std.to(device), self.provenance, moved)

    def save(self, path: str | Path) -> None:
        """Write them with their provenance (safetensors)."""
        tensors = {"mean": self.mean, "std": self.std, **{f"fisher.{k}": v for k, v in self.fisher.items()}}
        write_tensors(path, _KIND, tensors, {"provenance": json.dumps(asdict(self.provenance))})

    @classmethod
    def load(cls, path: str | Path) -> "SourceStatistics":
        """Read what `save` wrote; SourceError for anything else."""
        tensors, metadata = read_tensors(path, _KIND, SourceError)
        raw = json.loads(metadata["provenance"])
        raw |= {key: tuple(raw[key]) for key in ("size", "mean", "std")}
        fisher = {k.removeprefix("fisher."): v for k, v in tensors.items() if k.startswith("fisher.")}
        return cls(tensors["mean"], tensors["std"], Provenance(**raw), fisher)


def _sampled(vit: ViT, where: str | Path, batch_size: int, count: int) -> Iterator[Tensor]:
    source = open_source(where, count, allow_fewer=True)
    for start in range(0, len(source.images), batch_size):
        yield source.tensors(range(start, min(start + batch_size, len(source.images))), vit.preprocessing)


def image_batches(vit: ViT, images: Images, batch_size: int, limit: int | None) -> Iterator[Tensor]:
    """Checked batches on the model's device, of a tensor, a loader (labels are ignored) or a folder."""
    if batch_size < 1 or (limit is not None and limit < 1):
        raise InputError("batch_size and limit must be at least 1")
    if isinstance(images, str | Path):
        folder = scan(images)
        domain, order = Domain("stream", folder), default_order(folder)[:limit]  # the first ones alone may be of one class
        parts = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        source: Iterable[Any] = (domain.tensors(part, vit.preprocessing) for part in parts)
    elif isinstance(images, Tensor):
        source = images.split(batch_size) if images.dim() == 4 else [images]
    else:
        source = images
    seen = 0
    for item in source:
        chunk = batch_images(item)
        if limit is not None and isinstance(chunk, Tensor):
            chunk = chunk[: limit - seen]
        chunk = move_images(chunk, vit.device) if isinstance(chunk, Tensor) else chunk
        vit.check_images(chunk, values=True)
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
