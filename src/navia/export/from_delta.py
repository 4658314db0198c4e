"""An adapter that only has to answer, from a saved delta: all but the shift's target is in the file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.delta import BrokenDeltaError, DeltaError, classes_of, describe_classes, read_delta
from navia.adaptation.statistics import Provenance, SourceStatistics
from navia.errors import SourceError
from navia.methods.parameters import fingerprint
from navia.models.base import ViT
from navia.reduction import Reducer, parse


def open_delta(
    vit: ViT,
    path: str | Path,
    source: SourceStatistics | None = None,
    *,
    reduce: str | None = None,
    classes: Sequence[int] | None = None,
) -> Adapter:
    """The adapter that a delta was saved from, in its state. source: needed only for methods with the activation shift.
    reduce: that of the delta if not given; any other is refused. classes: those of the delta if not given; a delta of all
    classes may answer with fewer, any other is refused."""
    _, metadata = read_delta(path)
    try:
        method, reducer, options = metadata["method"], parse(reduce or metadata["reduce"]), json.loads(metadata["options"])
    except (KeyError, json.JSONDecodeError) as error:
        raise BrokenDeltaError(f"delta {Path(path).name} does not say what it was made with") from error
    if source is None:
        source = _statistics_of_nothing(vit, reducer, method, options)
    given = None if classes is None else list(classes)
    learned = classes_of(metadata, unknown=given)
    if given is not None and learned not in (None, given):
        raise DeltaError(
            f"delta {Path(path).name} predicts classes {describe_classes(learned)},"
            f" not {describe_classes(given)}: give none, or these"
        )
    adapter = adapt(vit, method, reducer, source, classes=learned, guard=False, **options)
    adapter.load(path)
    if learned is None:
        adapter.method.classes = vit.class_indices(given)
    return adapter


def _statistics_of_nothing(vit: ViT, reducer: Reducer, method: str, options: dict[str, Any]) -> SourceStatistics:
    """Statistics are for learning; who only answers gets some that would spoil any number they came near."""
    if options.get("shift"):
        raise SourceError(
            f"method {method!r} shifts its answers towards the source statistics: give them too (--source, `navia stats`)"
        )
    pre, nothing = vit.preprocessing, torch.full((vit.depth, vit.embed_dim), torch.nan)
    origin = Provenance(vit.name, fingerprint(vit), str(reducer), 0, pre.size, tuple(pre.mean), tuple(pre.std))
    return SourceStatistics(nothing, nothing, origin, fisher={"nothing": nothing})
