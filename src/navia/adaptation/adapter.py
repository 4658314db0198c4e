"""`navia.adapt`: a model that answers and adapts. Life of an adapter: call, reset, save, load, resume."""

import copy
import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from navia.adaptation.delta import check_delta, read_delta, save_delta
from navia.adaptation.distributed import World
from navia.adaptation.guard import Guard, GuardOptions
from navia.adaptation.statistics import SourceStatistics
from navia.data.loader import batch_images
from navia.errors import InputError, SpecError
from navia.integrations.loggers import Callback, Callbacks
from navia.methods.base import METHODS, Learned, Look, Method
from navia.methods.losses import entropy
from navia.methods.parameters import fingerprint, relative_move
from navia.models.base import ViT
from navia.models.load import load
from navia.reduction import ReducerLike, parse

if TYPE_CHECKING:
    from navia.export.parity import Parity


@dataclass(frozen=True)
class Step:
    """What the last call saw. kept: images that the update used (0: none was made). guard: its verdict, None when all
    is well. Times in seconds: until the answer was ready, and for the update after it."""

    number: int
    images: int
    entropy: float
    loss: float | None
    discrepancy: float | None
    kept: int
    guard: str | None
    note: str | None
    seconds_answer: float
    seconds_update: float


class Adapter:
    """Predicts and adapts. The model it was made from is never changed; its frozen weights are shared."""

    def __init__(self, vit: ViT, method: Method, guard: Guard | None, callbacks: Iterable[Callback] = ()) -> None:
        self.source_vit = vit
        self.method = method
        self.guard = guard
        self.callbacks = Callbacks(callbacks)
        self.steps = 0
        self.last: Step | None = None
        self._source_state = guard.source if guard else method.state()
        self._state_id = object()  # replaced whenever the state changes: tells looks of the present state from older ones
        self.callbacks.start(self)

    def __call__(self, images: Any) -> Tensor:
        """Predict, then adapt: logits [B, C] from before the update.

        images: a tensor [B, C, H, W], or a batch of a loader: a tuple or list (images first), a dict (pixel_values, images
        or image), or one of navia's own."""
        _, look = self.answer(images)
        self.update(look)
        return look.logits

    def answer(self, images: Any) -> tuple[Tensor, Look]:
        """The first half of a call: logits now, and what `update` needs to learn from the batch afterwards."""
        images = batch_images(images)
        self.method.vit.check_images(images)
        start = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():  # callers may well be inside no_grad or inference_mode
            look = self.method.look(images.clone() if images.is_inference() else images)
        look.seconds = time.perf_counter() - start
        look.state_id = self._state_id
        return look.logits, look

    def update(self, look: Look) -> Step:
        """The second half: adapt to a batch that has been answered, under the guard. It must be the batch answered last:
        a look from before another update, a reset or a load is refused."""
        if look.state_id is not self._state_id:
            raise InputError(
                "this look is out of date: the adapter changed after `answer` made it (an update, reset or load), or another"
                " adapter made it; call update(look) once, before the next answer"
            )
        self._state_id = object()
        start = time.perf_counter()
        with torch.inference_mode(False), torch.enable_grad():
            learned = self.method.learn(look)
            verdict = self.guard.watch(self.method, look, learned) if self.guard else None
        self.steps += 1
        if verdict and not bool(torch.isfinite(look.logits).all()):
            look.logits = self.method.predict(look.images)  # answers from a broken state are worth nothing
        self.last = self._report(look, learned, verdict, time.perf_counter() - start)
        self.callbacks.step(self.last)
        return self.last

    def predict(self, images: Any) -> Tensor:
        """Logits in the present state; nothing adapts. images: as for a call."""
        images = batch_images(images)
        self.method.vit.check_images(images)
        return self.method.predict(images)

    @torch.inference_mode(False)  # the optimiser cannot go on with tensors that were made in the caller's inference mode
    def reset(self) -> None:
        """Back to the source: parameters, optimiser, statistics and random numbers, to the bit."""
        self._state_id = object()
        self.method.load_state(self._source_state)
        self.steps, self.last = 0, None
        if self.guard:
            self.guard.clear()

    def save(self, path: str | Path, notes: Mapping[str, str] | None = None) -> None:
        """Write what moved (safetensors with provenance). notes: kept in its metadata, and returned by `load`."""
        save_delta(path, self.method, self.method.tensors_in(self._source_state), self._weights, self.steps, notes)

    @torch.inference_mode(False)
    def load(self, path: str | Path) -> dict[str, str]:
        """Start from a saved delta of the same model, method and reducer; the optimiser starts anew. Its metadata."""
        tensors, metadata = read_delta(path)
        check_delta(tensors, metadata, self.method, self._weights)
        self.reset()
        self.method.load_tensors(tensors)
        self.steps = int(metadata.get("steps", 0))
        return metadata

    def export(
        self,
        path: str | Path,
        format: str | None = None,
        *,
        tolerance: float = 1e-4,
        images: Tensor | None = None,
        force: bool = False,
    ) -> "Parity":
        """Write what `predict` answers now as onnx, torch (torch.export) or checkpoint, and how near the file comes to it;
        see `navia.export.export`."""
        from navia.export import export

        return export(self, path, format, tolerance=tolerance, images=images, force=force)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on with a stream exactly where it was left."""
        guard = copy.deepcopy(self.guard.state()) if self.guard else None
        return {"method": self.method.state(), "guard": guard, "steps": self.steps}

    @torch.inference_mode(False)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; a guard that was not there then begins anew."""
        self._state_id = object()
        self.method.load_state(state["method"])
        if self.guard:
            self.guard.clear()
            self.guard.load_state(copy.deepcopy(state["guard"] or {}))
        self.steps = state["steps"]

    @functools.cached_property
    def _weights(self) -> str:
        return fingerprint(self.source_vit)

    @property
    def model(self) -> nn.Module:
        """The library's own module (timm, transformers, torchvision) with the weights that answer now: a live view, which
        moves with every step. What a method adds beside the weights (NAVIA's shift of the CLS embedding and CLS biases,
        FOA's prompts, activation shifts) and the reducer are no part of it; `predict` has them."""
        return self.method.answering.model

    @property
    def drift(self) -> float:
        """How far the model's own tuned parameters moved from the source, relative to their size."""
        return relative_move(self.method.parameters, self._source_state["parameters"], self.method.vit)

    @property
    def trainable(self) -> int:
        """How many numbers the method tunes."""
        return sum(p.numel() for p in self.method.parameters.values())

    def _report(self, look: Look, learned: Learned, verdict: str | None, seconds: float) -> Step:
        with torch.no_grad():
            mean_entropy = entropy(look.logits.float()).mean().item()
        return Step(
            number=self.steps,
            images=len(look.images),
            entropy=mean_entropy,
            loss=learned.loss,
            discrepancy=learned.discrepancy,
            kept=learned.kept,
            guard=verdict,
            note=learned.note,
            seconds_answer=look.seconds,
            seconds_update=seconds,
        )


def adapt(
    model: Any,
    method: str = "navia",
    reduce: ReducerLike = None,
    source: SourceStatistics | str | Path | None = None,
    *,
    classes: Sequence[int] | Tensor | None = None,
    guard: bool | GuardOptions = True,
    distributed: bool = False,
    seed: int = 2020,
    callbacks: Iterable[Callback] = (),
    **options: Any,
) -> Adapter:
    """An adapter of `model` (a navia ViT, a name, or a library's module).

    method: one of `navia.list_methods()`; its options as keyword arguments. reduce: 'tome:8', 'evit:8', 'tofu:8', ...
    source: statistics of clean images, or the file they were saved to; align, navia, foa and foa_bp need them, none with
    shift=True too, and eata with fisher=True (unless its option fisher is 0).
    classes: columns to answer with (ImageNet-R: its 200 classes). guard: watch for collapse and go back if need be.
    distributed: one stream over the processes of torch.distributed, each with its share of the batch.
    seed: of the method's own random numbers (CoTTA's views and restored weights, DeYO's shuffles, FOA's candidates).
    callbacks: told about every step, see `navia.integrations.loggers`; one that fails is logged and never costs an answer.
    """
    vit = model if isinstance(model, ViT) else load(model)
    kind = METHODS.get(method)
    if distributed and not dist.is_initialized():
        raise SpecError("distributed=True needs torch.distributed.init_process_group first")
    if isinstance(source, str | Path):
        source = SourceStatistics.load(source)
    reducer = parse(reduce)
    reducer.check(vit.depth)
    made = kind(
        vit,
        reducer,
        kind.Options.of(method, options),
        source,
        vit.class_mask(classes),
        World(distributed, vit.cls_token.device),
        seed,
    )
    watcher = Guard(made, guard if isinstance(guard, GuardOptions) else None) if guard else None
    return Adapter(vit, made, watcher, callbacks)
