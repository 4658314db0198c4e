"""One stream through one adapter: every batch is answered when it comes, and adapted to after."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from navia.adapt.adapter import Adapter, Step
from navia.images.loader import Batch


@dataclass(frozen=True)
class Answered:
    """A batch, the logits [B, C] that it got from before its update, and what the step saw."""

    batch: Batch
    logits: Tensor
    step: Step


def run(adapter: Adapter, batches: Iterable[Batch]) -> Iterator[Answered]:
    """Answer and adapt batch by batch; back to the source where the stream says so."""
    device = adapter.source_vit.cls_token.device
    for batch in batches:
        if batch.reset:
            adapter.reset()
        logits = adapter(batch.images.to(device))
        assert adapter.last is not None
        yield Answered(batch, logits.detach().cpu(), adapter.last)
