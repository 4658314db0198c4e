"""One stream through one adapter: every batch is answered when it comes, and adapted to after."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from navia.adaptation.adapter import Adapter, Step
from navia.data.loader import Batch, Loader
from navia.errors import SpecError
from navia.methods.features import entropy


@dataclass(frozen=True)
class Answered:
    """A batch, the logits [B, C] that it got from before its update, and what the step saw. source: logits of the source
    model, where that was asked too."""

    batch: Batch
    logits: Tensor
    step: Step
    source: Tensor | None = None


def run(adapter: Adapter, batches: Iterable[Batch]) -> Iterator[Answered]:
    """Answer and adapt batch by batch."""
    for batch in batches:
        yield answer(adapter, batch)


def answer(adapter: Adapter, batch: Batch) -> Answered:
    """Answer a batch and adapt to it; from the source where the stream says so."""
    if batch.reset:
        adapter.reset()
    logits = adapter(batch.images.to(adapter.source_vit.device))
    assert adapter.last is not None
    return Answered(batch, logits.detach().cpu(), adapter.last)


def adapt_then_score(adapter: Adapter, loader: Loader, count: int) -> Iterator[Answered]:
    """Adapt to the first `count` batches, then answer the last third of the stream in the state that was reached."""
    held_out = held_out_from(len(loader))
    if not 0 < count <= held_out:
        raise SpecError(f"{count} batches to adapt to, but only {held_out} come before the last third of the stream")
    device = adapter.source_vit.device
    for number, batch in enumerate(loader):
        if number < count:
            adapter(batch.images.to(device))
        elif number >= held_out:
            yield answer_only(adapter, batch, "scored only")


def held_out_from(batches: int) -> int:
    """The number of the first batch of the last third of so many."""
    return batches * 2 // 3


def answer_only(adapter: Adapter, batch: Batch, note: str) -> Answered:
    """Answer a batch without adapting to it; the step says why."""
    start = time.perf_counter()
    logits = adapter.predict(batch.images.to(adapter.source_vit.device)).detach()
    took = time.perf_counter() - start
    step = Step(
        number=adapter.steps,
        images=len(batch.images),
        entropy=entropy(logits.float()).mean().item(),
        loss=None,
        discrepancy=None,
        kept=0,
        guard=None,
        note=note,
        seconds_predict=took,
        seconds_update=0.0,
    )
    return Answered(batch, logits.cpu(), step)
