"""`navia.adapt` makes an adapter: it predicts, adapts, resets, saves, loads and resumes."""

import copy
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from navia.adaptation.callbacks import Callback, Callbacks
from navia.adaptation.delta import check_delta, read_delta, save_delta
from navia.adaptation.distributed import Distributed
from navia.adaptation.guard import Guard, GuardOptions
from navia.adaptation.schedule import AdaptEvery, Schedule, noise_floor, summarise
from navia.adaptation.statistics import SourceStatistics, open_source_statistics
from navia.adaptation.step import Step, StepNumbers
from navia.data.loader import batch_images
from navia.errors import InputError, SpecError
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import entropy
from navia.methods.parameters import fingerprint, relative_change, to_device
from navia.models.base import ViT
from navia.models.forward import ForwardOutput, TokenEdits, patch_variance
from navia.models.load import load
from navia.reduction import Reducer, ReducerLike, parse

if TYPE_CHECKING:
    from navia.export.parity import Parity


class Adapter:
    """Predicts and adapts. Made by `navia.adapt`; the source model is never changed, its frozen weights are shared.

    Args:
        vit: The source model.
        method: The method, on a private copy of the model.
        guard: Watches for collapse; None for no guard.
        callbacks: Called at every step.
        adapt_every: Which batches are adapted to.

    Example:
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> adapter(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
        >>> adapter.last.kept
        2
    """

    def __init__(
        self,
        vit: ViT,
        method: Method,
        guard: Guard | None,
        callbacks: Iterable[Callback] = (),
        adapt_every: AdaptEvery = 1,
    ) -> None:
        self.source_vit = vit
        self.method = method
        self.guard = guard
        self.schedule = Schedule(adapt_every)
        self.method.patch_variance = self.schedule.watches
        self.callbacks = Callbacks(callbacks)
        self.steps = 0
        self.last: Step | None = None
        self._source_state = guard.source if guard else method.state()
        self._state_id = object()  # replaced whenever the state changes, to detect predictions of older states
        variance = 0.0 if method.source is None else float(method.source.std.square().mean())
        self._source_variance = variance  # of the features: the unit of `noise_floor`
        self.callbacks.start(self)

    def __repr__(self) -> str:
        guard = "on" if self.guard else "off"
        sparse = "" if self.adapt_every == 1 else f"adapt_every={self.adapt_every!r}, "
        return (
            f"Adapter(method={self.method_name!r}, reduce={str(self.reduce)!r}, model={self.source_vit.name!r}, "
            f"trainable={self.trainable:,}, steps={self.steps}, {sparse}guard={guard}, device={self.device})"
        )

    def __call__(self, images: Any) -> Tensor:
        """Predict a batch, then adapt to it if it is due (`adapt_every`).

        Args:
            images: A tensor [B, C, H, W], or a batch of a loader: a tuple or list (images first), a dict (pixel_values,
                images or image), or a batch of navia's own loader.

        Returns:
            Logits [B, C] from before the update.
        """
        prediction = self.forward_step(images)
        self.update(prediction)
        return prediction.logits

    def forward_step(self, images: Any) -> Prediction:
        """The first half of a call: predict a batch and keep what `update` needs.

        Args:
            images: As for a call.
        """
        images = batch_images(images)
        self.vit.check_images(images)
        start = time.perf_counter()
        due = self.schedule.due
        with torch.inference_mode(False), torch.set_grad_enabled(due):  # the caller may be inside no_grad or inference_mode
            images = images.clone() if images.is_inference() else images
            prediction = self.method.forward_step(images) if due else self.method.predict_step(images)
        prediction.due = due
        prediction.seconds = time.perf_counter() - start
        prediction.state_id = self._state_id
        return prediction

    def update(self, prediction: Prediction) -> Step:
        """The second half of a call: adapt to the batch that was predicted last, if it was due, under the guard.

        Args:
            prediction: What `forward_step` returned.

        Raises:
            InputError: The state has changed since the prediction (an update, reset or load); or, on a GPU, the images hold
                values that `ViT.check_images` refuses: the guard's last good state is restored then.
        """
        if prediction.state_id is not self._state_id:
            raise InputError(
                "this prediction is out of date: the adapter changed after forward_step (an update, reset or load), or"
                " another adapter made it; call update(prediction) once, before the next forward_step"
            )
        self._state_id = object()
        start = time.perf_counter()
        with torch.inference_mode(False), torch.set_grad_enabled(prediction.due):
            result = (self.method.update if prediction.due else self.method.skip_update)(prediction)
            numbers = self._read(prediction, result)
            note = self.method.after_update(numbers.loss) if prediction.due else "not due"
            if note and prediction.due:  # the method restored an earlier state, which the guard must see
                numbers = self._read(prediction, result)
            verdict = self.guard.watch(self.method, prediction, numbers) if self.guard else None
        self.steps += 1
        self._record(numbers, verdict)
        if verdict and not numbers.finite_logits:
            prediction.logits = self.method.predict(prediction.images)  # predictions of a broken state are useless
            numbers = replace(numbers, entropy=entropy(prediction.logits.float()).mean().item())
        self.last = Step(
            number=self.steps,
            images=len(prediction.images),
            entropy=numbers.entropy,
            loss=numbers.loss,
            discrepancy=numbers.discrepancy,
            kept=numbers.kept,
            guard=verdict,
            note=note or result.note,
            seconds_predict=prediction.seconds,
            seconds_update=time.perf_counter() - start,
        )
        self.callbacks.step(self.last)
        return self.last

    def predict(self, images: Any) -> Tensor:
        """Logits [B, C] in the current state, without adapting.

        Nothing waits for the device: on a GPU the shape and type of the images are checked, but not their values.

        Args:
            images: As for a call.
        """
        images = batch_images(images)
        self.vit.check_images(images)
        return self.method.predict(images)

    def skip(self, images: Any) -> bool:
        """Tell the schedule of a batch that is not due and was predicted elsewhere. This needs no forward: with "auto" the
        patches are embedded, to see whether the stream has changed, and nothing else.

        Args:
            images: As for a call.

        Returns:
            Whether the stream has changed: then the batch is due after all, and not counted yet.
        """
        images, changed = batch_images(images), False
        if self.schedule.watches:
            self.vit.check_images(images)
            with torch.inference_mode(False), torch.no_grad():
                summary = self.method.distributed.sum_(summarise(patch_variance(self.vit, images)))
                changed, _ = self._watch(summary.tolist())
        if changed:
            self.schedule.restart()
        else:
            self.schedule.record(updated=False)
        return changed

    @torch.inference_mode(False)  # the optimizer cannot use tensors made in the caller's inference mode
    def reset(self) -> None:
        """Restore the source exactly: parameters, optimizer, statistics and random numbers."""
        self._state_id = object()
        self.method.load_state(self._source_state)
        self.steps, self.last = 0, None
        self.schedule.clear()
        if self.guard:
            self.guard.clear()

    # ---- files and state

    def save(self, path: str | Path, notes: Mapping[str, str] | None = None) -> None:
        """Write the tensors that changed since the source to a safetensors file, with their provenance.

        Args:
            path: The file.
            notes: More metadata, returned by `load`.
        """
        save_delta(path, self.method, self.method.state_tensors(self._source_state), self._weights, self.steps, notes)

    @torch.inference_mode(False)
    def load(self, path: str | Path) -> dict[str, str]:
        """Start from a saved delta of the same model, method and reducer; the optimizer starts anew.

        Args:
            path: The file that `save` wrote.

        Returns:
            The file's metadata.

        Raises:
            DeltaError: The file is damaged or belongs to something else.
        """
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
        """Write the current predictions as onnx, torch (torch.export) or checkpoint; see `navia.export.export`."""
        from navia.export import export

        return export(self, path, format, tolerance=tolerance, images=images, force=force)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to resume a stream exactly."""
        guard = copy.deepcopy(self.guard.state()) if self.guard else None
        return {"method": self.method.state(), "guard": guard, "steps": self.steps, "schedule": self.schedule.state()}

    @torch.inference_mode(False)
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict`; a guard or schedule that was not saved starts anew."""
        self._state_id = object()
        self.method.load_state(state["method"])
        if self.guard:
            self.guard.clear()
            self.guard.load_state(copy.deepcopy(state["guard"] or {}))
        self.schedule.clear()
        self.schedule.load_state(state.get("schedule") or {})
        self.steps = state["steps"]

    @torch.inference_mode(False)
    def to(self, device: str | torch.device) -> Self:
        """Move the adapter with its state to another device, in place. The given model stays where it is; the adapter gets
        a copy of it on the new device.

        Args:
            device: As for `torch.nn.Module.to`.

        Returns:
            The adapter itself.
        """
        target = torch.empty(0, device=device).device  # "cuda" -> "cuda:0"
        state, last, old = self.state_dict(), self.last, self.method
        if target != self.device:
            self.source_vit = copy.deepcopy(self.source_vit).to(target)
        for kept in (state["method"], (state["guard"] or {}).get("good")):
            if kept is not None:  # parameters and optimizer are copied to the device when they are loaded
                kept["memory"] = to_device(kept["memory"], target)
        source = None if old.source is None else old.source.to(target)
        classes = None if old.classes is None else old.classes.to(target)
        distributed = Distributed(old.distributed.enabled, target)
        self.method = type(old)(self.source_vit, old.reduce, old.options, source, classes, distributed, old.seed)
        self.method.on_block, self.method.patch_variance = old.on_block, old.patch_variance
        if self.guard:
            self.guard = Guard(self.method, self.guard.options)
        self._source_state = self.guard.source if self.guard else self.method.state()
        self.load_state_dict(state)
        self.last = last
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that change predictions, by name; not copied."""
        return self.method.tensors()

    def replace_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors from `tensors()` and forget later ones; the optimizer keeps its state."""
        self._state_id = object()
        self.method.replace_tensors(tensors)

    def clear_gradients(self) -> None:
        """Drop gradients of an update that was interrupted."""
        if self.method.optimizer is not None:
            self.method.optimizer.zero_grad(set_to_none=True)

    def set_on_block(self, on_block: Callable[[], None] | None) -> None:
        """Call `on_block` twice in every block, forward and backward, so that an update can pause there."""
        self.method.on_block = on_block

    # ---- properties

    @property
    def method_name(self) -> str:
        return self.method.name

    @property
    def adapt_every(self) -> AdaptEvery:
        """Which batches are adapted to: 1 for all, N for every N-th, or "auto"."""
        return self.schedule.every

    @property
    def update_share(self) -> float:
        """Share of the batches since the start or the last reset that led to an update."""
        return self.schedule.updates / max(1, self.schedule.batches)

    @property
    def reduce(self) -> Reducer:
        return self.method.reduce

    @property
    def options(self) -> Any:
        """The method's options."""
        return self.method.options

    @property
    def classes(self) -> Tensor | None:
        """Class indices that are predicted; None for all."""
        return self.method.classes

    def set_classes(self, classes: Sequence[int] | Tensor | None) -> None:
        """Predict these class indices from now on; None for all. Nothing else changes."""
        self.method.classes = self.source_vit.class_indices(classes)

    @property
    def num_classes(self) -> int:
        """Number of classes that are predicted."""
        return self.method.num_classes

    @property
    def vit(self) -> ViT:
        """The private copy of the model that the method tunes."""
        return self.method.vit

    @property
    def prediction_vit(self) -> ViT:
        """The model that predicts: `vit`, or CoTTA's teacher."""
        return self.method.prediction_vit

    @property
    def device(self) -> torch.device:
        return self.method.vit.device

    @property
    def is_distributed(self) -> bool:
        """Whether one stream runs over several processes."""
        return self.method.distributed.enabled

    @property
    def model(self) -> nn.Module:
        """The library's module (timm, transformers, torchvision) with the weights that predict now; they change with every
        step. What a method adds to the forward (CLS shift and biases, prompts, activation shift) and the reducer are not
        part of it; `predict` has them."""
        return self.method.prediction_vit.model

    @property
    def drift(self) -> float:
        """Relative change of the model's own tuned parameters since the source."""
        return float(relative_change(self.method.parameters, self._source_state["parameters"], self.vit))

    @property
    def trainable(self) -> int:
        """Number of tuned values."""
        return sum(p.numel() for p in self.method.parameters.values())

    @torch.no_grad()
    def features(self, images: Tensor) -> ForwardOutput:
        """Forward of the model that predicts, with the CLS features of all layers. images: a checked batch."""
        return self.method.forward(images, features=True, vit=self.method.prediction_vit)

    def prediction_edits(self) -> TokenEdits:
        """What the method adds to the forward of a prediction now."""
        return self.method.prediction_edits()

    @functools.cached_property
    def _weights(self) -> str:
        return fingerprint(self.source_vit)

    def _read(self, prediction: Prediction, result: UpdateResult) -> StepNumbers:
        """The numbers of a step, the only ones that are read from the device; InputError if they show unusable images."""
        numbers = StepNumbers.read(self.method, prediction, result, self.guard.source["parameters"] if self.guard else None)
        if numbers.value_range is not None:
            try:
                self.vit.check_range(prediction.images, *numbers.value_range)
            except InputError as error:
                if self.guard is None:
                    raise InputError(f"{error}; the update with them was made: reset or load the adapter") from error
                self.method.load_state(self.guard.good)
                raise
        return numbers

    def _record(self, numbers: StepNumbers, verdict: str | None) -> None:
        """Tell the schedule what came of a batch."""
        signal, floor, changed = None, 0.0, False
        if numbers.summary is not None:
            changed, (images, entropies) = self._watch(numbers.summary)
            signal = entropies / images
            if numbers.discrepancy is not None and self.method.source is not None:
                signal, source = numbers.discrepancy, self.method.source
                floor = noise_floor(source.provenance.count, int(images)) * self._source_variance
        self.schedule.record(numbers.kept > 0, signal, floor, changed, numbers.loss)
        if verdict:
            self.schedule.restart()

    def _watch(self, summary: Sequence[float]) -> tuple[bool, tuple[float, float]]:
        """Whether the stream has changed with a batch; its number of images and the sum of the entropies.

        summary: Values of `schedule.summarise`, over all processes.
        """
        images, entropies, *sums = summary
        total, squares = torch.from_numpy(np.array(sums)).chunk(2)
        return self.schedule.detector.add(images, total, squares), (images, entropies)


def adapt(
    model: Any,
    method: str = "navia",
    reduce: ReducerLike = None,
    source: SourceStatistics | str | Path | None = None,
    *,
    classes: Sequence[int] | Tensor | None = None,
    adapt_every: AdaptEvery = 1,
    guard: bool | GuardOptions = True,
    distributed: bool = False,
    seed: int = 2020,
    callbacks: Iterable[Callback] = (),
    **options: Any,
) -> Adapter:
    """Make an adapter: a model that predicts and adapts to its stream.

    Args:
        model: A `ViT` from `navia.load`, a name that `navia.load` takes, or a library's module.
        method: One of `navia.list_methods()`.
        reduce: Token reducer: "tome:8", "evit:8", "tofu:8"; None for no reduction.
        source: Statistics of clean images, the file they were saved to, or a folder of clean images to measure them on.
            align, navia, foa and foa_bp need them; none with shift=True too, and eata unless its option fisher is 0.
        classes: Class indices to predict (ImageNet-R: its 200 classes); None for all.
        adapt_every: Which batches are adapted to; all are predicted, the others by a forward without a graph. 1: all. N: the
            first and every N-th. "auto": all after a start or a change of the stream until the adaptation has converged,
            then fewer and fewer, down to every 16th.
        guard: Watch for collapse and restore an earlier state; a `GuardOptions` sets its thresholds.
        distributed: One stream over the processes of torch.distributed, each with its share of the batch.
        seed: Seed of the method's random numbers (CoTTA's views and restored weights, DeYO's shuffles, FOA's candidates).
        callbacks: Called at every step, see `navia.Callback`. A callback that fails is logged and never costs a prediction.
        **options: Options of the method, see `navia methods`.

    Returns:
        The adapter. Call it with batches; `adapter.predict` does not adapt.

    Raises:
        SpecError: Unknown method, reducer or option.
        SourceError: Source statistics are missing or belong to another model or reducer.

    Example:
        >>> vit = navia.load("embedded")
        >>> source = navia.SourceStatistics.measure(vit, "embedded", reduce="tome:8")
        >>> adapter = navia.adapt(vit, method="navia", reduce="tome:8", source=source)
        >>> adapter
        Adapter(method='navia', reduce='tome:8', model='embedded', trainable=3,648, steps=0, guard=on, device=cpu)
    """
    vit = model if isinstance(model, ViT) else load(model)
    kind = METHODS.get(method)
    if distributed and not dist.is_initialized():
        raise SpecError("distributed=True needs torch.distributed.init_process_group first")
    reducer = parse(reduce)
    reducer.check(vit.depth)
    if source is not None:
        source = open_source_statistics(vit, source, reducer, method=method)
    made = kind(
        vit,
        reducer,
        kind.Options.from_kwargs(method, options),
        source,
        vit.class_indices(classes),
        Distributed(distributed, vit.device),
        seed,
    )
    watcher = Guard(made, guard if isinstance(guard, GuardOptions) else None) if guard else None
    return Adapter(vit, made, watcher, callbacks, adapt_every)
