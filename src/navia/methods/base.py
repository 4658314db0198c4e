"""The base class of adaptation methods: predict a batch (`forward_step`), then adapt to it (`update`)."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from navia.errors import SourceError, SpecError
from navia.methods.features import ActivationShift, entropy
from navia.methods.options import Options
from navia.methods.parameters import norm_parameters, private_copy
from navia.models.base import ViT
from navia.models.forward import ForwardOutput, TokenEdits, compiled_forward, forward, head
from navia.reduction import Reducer
from navia.registry import Registry

if TYPE_CHECKING:
    from navia.adaptation.distributed import Distributed
    from navia.adaptation.statistics import SourceStatistics

METHODS: Registry[type["Method"]] = Registry("method", "navia.methods")

_FLOAT16_SCALE = 4096.0  # of the loss: gradients of single tokens are near 1e-6, where float16 has no digits left


@dataclass
class Prediction:
    """What `forward_step` returns and `update` takes.

    Attributes:
        logits: Logits before any update from this batch [B, C].
        images: The batch [B, C, H, W].
        output: Result of the forward, with its graph where `update` needs gradients.
        update_result: Set by methods that must adapt before they can predict.
        due: Whether the batch is adapted to; False: `predict_step` made it, without a graph. Set by the adapter.
        seconds: Time of the prediction.
        state_id: Identifies the adapter's state that predicted, see `Adapter.update`.

    Example:
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> prediction = adapter.forward_step(torch.zeros(2, 1, 28, 28))
        >>> step = adapter.update(prediction)
        >>> prediction.logits.shape, step.kept
        (torch.Size([2, 10]), 2)
    """

    logits: Tensor
    images: Tensor
    output: ForwardOutput
    update_result: "UpdateResult | None" = None
    due: bool = True
    seconds: float = 0.0
    state_id: object = None


@dataclass
class UpdateResult:
    """What `update` returns.

    Attributes:
        kept: Number of images that the update used; 0: no update.
        loss: Loss of the step.
        discrepancy: Distance of the CLS statistics to the source, for methods that align them.
        note: Why no update was made, or what else happened.

    Numbers may be tensors of one element: the adapter reads them together with its own, because each read waits for a GPU.

    Example:
        >>> from navia.methods.base import UpdateResult
        >>> UpdateResult(kept=0, note="too few images")
        UpdateResult(kept=0, loss=None, discrepancy=None, note='too few images')
    """

    kept: int | Tensor
    loss: float | Tensor | None = None
    discrepancy: float | Tensor | None = None
    note: str | None = None


class Method(ABC):
    """Base class of adaptation methods. Register a subclass with `@METHODS.register(name)`.

    Override `forward_step` and `update`, and where needed `setup`, `tuned_names`, `param_groups` and `token_edits`. Batches
    that are not adapted to (`adapt_every`) go through `predict_step` and `skip_update` instead, which suit most methods. The
    state is `parameters`, the optimizer, `memory` and a random generator, so reset, resume and the guard's rollback need no
    code per method: keep in `memory` everything else that changes from batch to batch.

    Args:
        vit: The model. It is not changed: the method tunes a private copy that shares all other weights.
        reduce: Token reducer.
        options: An instance of the method's `Options`.
        source: Source statistics, where the method needs them.
        classes: Class indices to predict; None for all.
        distributed: The processes that adapt together.
        seed: Seed of the method's random numbers.

    Attributes:
        name: Name in the registry.
        Options: Dataclass of the method's options.
        needs_source: Whether it needs source statistics.
        needs_fisher: Whether these must contain EATA's Fisher information.
        supports_distributed: Whether one stream may run over several processes.
        per_image: Whether a prediction depends on its own image alone.
        uses_features: Whether `skip_update` reads the CLS features of all layers.
        relative_cost: Rough time of a step in dense forwards, to estimate the time left of a benchmark.
        output_options: Options that change predictions beside the tensors; a saved delta is checked for them.
        timing_options: Options with which every step makes its update, whatever the images: `navia cost --measure` times
            the step with them.

    Example:
        >>> from navia.methods.base import METHODS, Method, UpdateResult
        >>> from navia.methods.features import entropy
        >>> @METHODS.register("my_tent")
        ... class MyTent(Method):
        ...     name = "my_tent"
        ...     Options = METHODS.get("tent").Options
        ...     def forward_step(self, images):
        ...         return self.forward_with_grad(images)
        ...     def update(self, prediction):
        ...         loss = entropy(prediction.output.logits).mean()
        ...         self.optimize(loss)
        ...         return UpdateResult(kept=len(prediction.images), loss=loss)
        >>> logits = navia.adapt("embedded", "my_tent", "tome:8")(torch.zeros(2, 1, 28, 28))
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    needs_source: ClassVar[bool] = False
    needs_fisher: ClassVar[bool] = False
    supports_distributed: ClassVar[bool] = False
    per_image: ClassVar[bool] = True
    uses_features: ClassVar[bool] = False
    relative_cost: ClassVar[float] = 2
    output_options: ClassVar[tuple[str, ...]] = ()
    timing_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        vit: ViT,
        reduce: Reducer,
        options: Any,
        source: "SourceStatistics | None",
        classes: Tensor | None,
        distributed: "Distributed",
        seed: int = 2020,
    ) -> None:
        self.reduce = reduce
        self.options = options
        self.classes = classes
        self.distributed = distributed
        if distributed.enabled and not self.supports_distributed:
            raise SpecError(f"method {self.name!r} does not run over several processes")
        self.source = self._check_source(vit, source)
        self.vit = private_copy(vit, self.tuned_names(vit, options))
        self.generator = torch.Generator().manual_seed(seed)
        self.seed = seed
        self.on_block: Callable[[], None] | None = None  # see `navia.models.forward.forward`
        self.patch_variance = False  # likewise: set by a schedule that watches for changes of the stream
        self.memory: dict[str, Any] = {}
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in self.vit.model.named_parameters() if p.requires_grad
        }
        self.setup()
        self.optimizer = self.make_optimizer() if self.parameters else None

    # ---- overridden by methods

    @classmethod
    def tuned_names(cls, vit: ViT, options: Any) -> list[str]:
        """Names of the model's parameters to tune; all LayerNorms by default."""
        return norm_parameters(vit)

    @classmethod
    def num_added_parameters(cls, vit: ViT, options: Any) -> int:
        """Number of tuned values that are not parameters of the model."""
        return 0

    @classmethod
    def num_forwards(cls, vit: ViT, options: Any) -> int:
        """Forward passes per step."""
        return 1

    @classmethod
    def num_backwards(cls, vit: ViT, options: Any) -> int:
        """Backward passes per step."""
        return int(bool(cls.tuned_names(vit, options)))

    @classmethod
    def num_extra_tokens(cls, options: Any) -> int:
        """Tokens added to every image."""
        return 0

    def setup(self) -> None:  # noqa: B027 (most methods add nothing)
        """Add parameters to `self.parameters` and initial values to `self.memory`."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Optimizer of `param_groups`: SGD with the options' momentum."""
        return torch.optim.SGD(
            [{"params": list(p.values()), "lr": lr} for p, lr in self.param_groups()], momentum=self.options.momentum
        )

    def param_groups(self) -> list[tuple[dict[str, nn.Parameter], float]]:
        """Parameters with their learning rates."""
        return [(self.parameters, self.options.lr)]

    def token_edits(self) -> TokenEdits:
        """What the method adds to the tokens during the forward."""
        return TokenEdits()

    def prediction_edits(self) -> TokenEdits:
        """The edits of a prediction: `token_edits` and, with the option `shift`, FOA's shift before the classifier."""
        if not getattr(self.options, "shift", False):
            return self.token_edits()
        return replace(self.token_edits(), head_shift=self.activation_shift.vector())

    @abstractmethod
    def forward_step(self, images: Tensor) -> Prediction:
        """Predict a batch and keep what `update` needs.

        Args:
            images: Checked, normalised images [B, C, H, W].
        """

    def update(self, prediction: Prediction) -> UpdateResult:
        """Adapt to a batch after its prediction.

        Args:
            prediction: What `forward_step` returned for the batch.
        """
        return UpdateResult(kept=0)

    def after_update(self, loss: float | None) -> str | None:
        """Decide what depends on the loss, once it has been read.

        Args:
            loss: Loss of the update; None if there was none.

        Returns:
            A note if the method restored an earlier state, else None.
        """
        return None

    @torch.no_grad()
    def predict_step(self, images: Tensor) -> Prediction:
        """Predict a batch that is not adapted to: one forward without a graph, with the logits of `predict`.

        Override it if `predict` is more than this forward.

        Args:
            images: Checked, normalised images [B, C, H, W].
        """
        edits = self.prediction_edits()
        output = self.forward(images, self.uses_features, self.prediction_vit, edits)
        return Prediction(output.logits, images, output)

    @torch.no_grad()
    def skip_update(self, prediction: Prediction) -> UpdateResult:
        """Called instead of `update` for a batch that is not adapted to. Parameters stay as they are; a method that follows
        statistics of the stream follows them here too.

        Args:
            prediction: What `predict_step` returned for the batch.
        """
        return UpdateResult(kept=0)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits in the current state [B, C]; changes nothing."""
        return self.forward(images, vit=self.prediction_vit, edits=self.prediction_edits()).logits

    @property
    def is_static(self) -> bool:
        """Whether nothing ever changes from batch to batch."""
        return False

    @property
    def prediction_vit(self) -> ViT:
        """The model that predicts."""
        return self.vit

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes of the tensors that `memory` gets during the stream, by name; None: any length."""
        return {}

    # ---- called by methods

    @property
    def num_classes(self) -> int:
        return self.vit.num_classes if self.classes is None else len(self.classes)

    @property
    def log_classes(self) -> float:
        """ln C, the largest possible entropy."""
        return math.log(self.num_classes)

    def forward(
        self, images: Tensor, features: bool = False, vit: ViT | None = None, edits: TokenEdits | None = None
    ) -> ForwardOutput:
        """The one forward with this method's reducer, classes and token edits.

        Args:
            images: Images [B, C, H, W].
            features: Also return the CLS features of all layers.
            vit: Another model than the tuned one (CoTTA's teacher).
            edits: Other edits than `token_edits` (FOA's candidates).
        """
        vit = vit or self.vit
        function = forward if vit.compile_backend is None else compiled_forward(vit.compile_backend)
        edits = self.token_edits() if edits is None else edits
        return function(
            vit, images, self.reduce, edits=edits, classes=self.classes, features=features,
            patch_variance=self.patch_variance, on_block=self.on_block,
        )  # fmt: skip

    def forward_with_grad(self, images: Tensor, features: bool = False) -> Prediction:
        """A prediction whose output keeps its graph for `update`."""
        with torch.enable_grad():
            output = self.forward(images, features)
        return Prediction(output.logits.detach(), images, output)

    @property
    def activation_shift(self) -> ActivationShift:
        """FOA's shift of the final CLS feature towards the source mean."""
        assert self.source is not None
        return ActivationShift(self.source, self.memory)

    @torch.no_grad()
    def shifted_logits(self, output: ForwardOutput) -> Tensor:
        """Logits of a forward, with the activation shift if the option `shift` is on."""
        shift = self.prediction_edits().head_shift
        return output.logits.detach() if shift is None else head(self.vit, output.pooled.detach(), shift, self.classes)

    def optimize(self, loss: Tensor, where: Tensor | None = None) -> None:
        """One optimizer step on this process's share of the loss. where: as for `optimizer_step`."""
        self.backward(loss)
        self.optimizer_step(where)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients at the current parameters, summed over the processes."""
        scale = _FLOAT16_SCALE if self.vit.precision == "float16" else 1.0
        (loss * scale if scale != 1 else loss).backward()
        if scale != 1:
            torch._foreach_div_([p.grad for p in self.parameters.values() if p.grad is not None], scale)
        self.distributed.sum_gradients(self.parameters.values())

    def optimizer_step(self, where: Tensor | None = None) -> None:
        """Move the parameters along their gradients and clear these.

        Args:
            where: A tensor of one boolean: make no step if it is false. It is not read where that would wait for the device;
                the step is undone there.
        """
        assert self.optimizer is not None
        if where is None:
            self.optimizer.step()
        elif self.vit.reads_synchronize:
            self._step_where(where)
        elif bool(where):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _step_where(self, where: Tensor) -> None:
        assert self.optimizer is not None
        before = {id(tensor): tensor.clone() for tensor in self._optimized()}
        self.optimizer.step()
        for tensor in self._optimized():  # momentum that the step made is zero without it
            tensor.copy_(torch.where(where, tensor, before.get(id(tensor), torch.zeros_like(tensor))))

    def _optimized(self) -> list[Tensor]:
        """The tensors that an optimizer step changes."""
        assert self.optimizer is not None
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        return [*self.parameters.values(), *(value for value in state if isinstance(value, Tensor))]

    def none_kept(self, kept: Tensor) -> bool:
        """Whether no image is kept [B], if that can be read without waiting for the device; False where it cannot: give
        `where=kept.any()` to the optimizer step."""
        return not self.vit.reads_synchronize and not bool(kept.any())

    def reliable_entropy(self, logits: Tensor, margin: float) -> tuple[Tensor, Tensor]:
        """Entropy of each row [B], and which rows are below margin * ln C [B]."""
        h = entropy(logits)
        return h, h < margin * self.log_classes

    def _wants_source(self) -> bool:
        return self.needs_source

    def _check_source(self, vit: ViT, source: "SourceStatistics | None") -> "SourceStatistics | None":
        needs = f"method {self.name!r} needs source statistics"
        if source is None and self._wants_source():
            call = "vit, images, reduce, fisher=True" if self.needs_fisher else "vit, images, reduce"
            option = "--source FOLDER, with clean images (or the file that `navia stats` wrote)"
            raise SourceError(f"{needs}: navia.SourceStatistics.measure({call})", command_line=f"{needs}: give {option}")
        if source is not None:
            source.check(vit, self.reduce)
            source = source.to(vit.device)
        if self.needs_fisher and self._wants_source() and not (source and source.fisher):
            needs = f"{needs} measured with"
            raise SourceError(f"{needs} fisher=True", command_line=f"{needs} `navia stats --fisher`")
        return source

    # ---- state

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that change predictions: tuned parameters, and tensors of `memory` as `memory.NAME`."""
        return _with_memory({name: p.detach() for name, p in self.parameters.items()}, self.memory)

    def state_tensors(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """The same tensors of a state from `state()`; not copied."""
        return _with_memory(state["parameters"], state["memory"])

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors by the names of `tensors()`."""
        for name, value in tensors.items():
            if name.startswith("memory."):
                self.memory[name.removeprefix("memory.")] = value.to(self.vit.device)
            else:
                self.parameters[name].copy_(value)

    def replace_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load these tensors and remove all others from `memory`."""
        for name in self.tensors().keys() - tensors.keys():
            del self.memory[name.removeprefix("memory.")]
        self.load_tensors(tensors)

    def state(self) -> dict[str, Any]:
        """A copy of everything that changes during adaptation."""
        return {
            "parameters": {name: p.detach().clone() for name, p in self.parameters.items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()) if self.optimizer else None,
            "memory": copy.deepcopy(self.memory),
            "generator": self.generator.get_state(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `state()` exactly."""
        for name, parameter in self.parameters.items():
            parameter.copy_(state["parameters"][name])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.memory = copy.deepcopy(state["memory"])
        self.generator.set_state(state["generator"])


def changed_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from the method's defaults: an option given with its default value is the same run."""
    defaults = METHODS.get(method).Options()
    return {name: value for name, value in given.items() if value != getattr(defaults, name)}


def _with_memory(parameters: dict[str, Tensor], memory: Mapping[str, Any]) -> dict[str, Tensor]:
    return parameters | {f"memory.{name}": value for name, value in memory.items() if isinstance(value, Tensor)}
