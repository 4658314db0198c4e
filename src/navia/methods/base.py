"""What every adaptation method is: it looks at a batch (and answers), then learns from what it saw."""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from navia.adaptation.distributed import World
from navia.adaptation.statistics import SourceError, SourceStatistics
from navia.errors import SpecError, known_names
from navia.methods.losses import entropy
from navia.methods.parameters import norm_parameters, private_copy
from navia.models.base import ViT
from navia.models.forward import Outcome, Touch, compiled, run
from navia.reduction import Reducer
from navia.registry import Registry

METHODS: Registry[type["Method"]] = Registry("method", "navia.methods")


_KINDS: tuple[tuple[type, type, str], ...] = (
    (bool, bool, "true or false"),
    (int, Integral, "a whole number"),
    (float, Real, "a number"),
)


def check_kind(option: str, value: object, like: object) -> None:
    """Raise SpecError unless `value` is a switch, whole number or number where `like` is one: texts are truthy, whatever
    they say, and True counts as 1."""
    for kind, accepted, words in _KINDS:
        if isinstance(like, kind):
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                raise SpecError(f"option {option} must be {words}, got {value!r}")
            return


@dataclass(frozen=True)
class Options:
    """Base of the methods' options: one frozen dataclass per method, checked when it is made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            check_kind(field.name, value, field.default)
            if not isinstance(value, bool) and isinstance(value, Real):
                if not math.isfinite(value):
                    raise SpecError(f"option {field.name} must be finite, got {value}")
                if value < 0:
                    raise SpecError(f"option {field.name} must not be negative, got {value}")

    @classmethod
    def of(cls, method: str, given: Mapping[str, Any]) -> "Options":
        """Options from keyword arguments; an unknown one is refused together with the list of known ones."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise SpecError(f"method {method!r} has no option {name!r}{known_names(name, known)}")
        return cls(**given)


def changed_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Only what differs from the method's defaults: an option spelled out and one left out are the same run."""
    usual = METHODS.get(method).Options()
    return {name: value for name, value in given.items() if value != getattr(usual, name)}


@dataclass(frozen=True)
class Sgd(Options):
    """lr, momentum: stochastic gradient descent, v <- momentum v + g, p <- p - lr v."""

    lr: float = 1e-3
    momentum: float = 0.9


@dataclass
class Look:
    """What a method saw of a batch. logits [B, C]: the answer, before any update from this batch."""

    logits: Tensor
    images: Tensor
    outcome: Outcome | None = None
    learned: "Learned | None" = None  # set by methods that must learn before they can answer
    seconds: float = 0.0  # that the answer took
    state_id: object = None  # of the adapter's state that answered; see Adapter.update


@dataclass
class Learned:
    """loss, discrepancy of the step; kept: images that the update used (0: no update was made)."""

    kept: int
    loss: float | None = None
    discrepancy: float | None = None
    note: str | None = None


class Method(ABC):
    """A private model, the parameters that move, and the memory of the stream. Subclasses: `look` and `learn`.

    `memory` holds everything but parameters and optimiser that changes from batch to batch: with those it is the whole
    state of a method, so that reset, resume and the guard's rollback need no code per method.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    needs_source: ClassVar[bool] = False
    needs_fisher: ClassVar[bool] = False
    distributable: ClassVar[bool] = False
    per_picture: ClassVar[bool] = True  # whether an answer depends on its own picture alone
    effort: ClassVar[float] = 2  # time of a step in dense forwards, roughly: for the time left of a benchmark
    answers_by: ClassVar[tuple[str, ...]] = ()  # options that shape answers beside the tensors: a delta belongs to theirs

    def __init__(
        self,
        vit: ViT,
        reduce: Reducer,
        options: Any,
        source: SourceStatistics | None = None,
        classes: Tensor | None = None,
        world: World | None = None,
        seed: int = 2020,
    ) -> None:
        self.reduce = reduce
        self.options = options
        self.classes = classes
        self.world = world or World()
        if self.world.distributed and not self.distributable:
            raise SpecError(f"method {self.name!r} does not run over several processes")
        if source is None and self._wants_source():
            how = "vit, images, reduce, fisher=True" if self.needs_fisher else "vit, images, reduce"
            needs = f"method {self.name!r} needs source statistics"
            option = "--source FOLDER, with clean images (or the file that `navia stats` wrote)"
            raise SourceError(f"{needs}: navia.SourceStatistics.measure({how})", command_line=f"{needs}: give {option}")
        if source is not None:
            source.check(vit, reduce)
            source = source.to(vit.cls_token.device)
        if self.needs_fisher and self._wants_source() and not (source and source.fisher):
            needs = f"method {self.name!r} needs source statistics measured with"
            raise SourceError(f"{needs} fisher=True", command_line=f"{needs} `navia stats --fisher`")
        self.source = source
        self.vit = private_copy(vit, self.tuned(vit, options))
        self.generator = torch.Generator().manual_seed(seed)
        self.seed = seed
        self.breathe: Callable[[], None] | None = None  # see vit.forward.run
        self.memory: dict[str, Any] = {}
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in self.vit.model.named_parameters() if p.requires_grad
        }
        self.start()
        self.optimizer = self.make_optimizer() if self.parameters else None

    # ---- what a method is made of

    @classmethod
    def tuned(cls, vit: ViT, options: Any) -> list[str]:
        """Names of the model's parameters that this method tunes: all LayerNorms unless a method says otherwise."""
        return norm_parameters(vit)

    @classmethod
    def added(cls, vit: ViT, options: Any) -> int:
        """How many numbers it tunes beside the model's own parameters."""
        return 0

    @classmethod
    def forwards(cls, vit: ViT, options: Any) -> int:
        """Forward passes of a step."""
        return 1

    @classmethod
    def backwards(cls, vit: ViT, options: Any) -> int:
        """Backward passes of a step."""
        return int(bool(cls.tuned(vit, options)))

    @classmethod
    def extra_tokens(cls, options: Any) -> int:
        """Tokens that it adds to every image."""
        return 0

    def start(self) -> None:  # noqa: B027 (most methods have nothing to add)
        """Add parameters beside the model's own and fill the memory."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [{"params": list(p.values()), "lr": lr} for p, lr in self.groups()], momentum=self.options.momentum
        )

    def groups(self) -> list[tuple[dict[str, nn.Parameter], float]]:
        """Parameters by learning rate."""
        return [(self.parameters, self.options.lr)]

    def touch(self) -> Touch:
        """What the method adds on the way of the forward."""
        return Touch()

    @abstractmethod
    def look(self, images: Tensor) -> Look:
        """Answer a batch, and keep what `learn` needs of it."""

    def learn(self, look: Look) -> Learned:
        """Adapt to a batch that has been looked at."""
        return Learned(kept=0)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The answer in the present state; changes nothing."""
        return self.walk(images).logits

    @property
    def answering(self) -> ViT:
        """The model whose weights answer."""
        return self.vit

    # ---- what methods are written with

    @property
    def num_classes(self) -> int:
        return self.vit.num_classes if self.classes is None else len(self.classes)

    @property
    def log_classes(self) -> float:
        """ln C, the largest possible entropy."""
        return math.log(self.num_classes)

    def walk(self, images: Tensor, features: bool = False) -> Outcome:
        walk = run if self.vit.compiler is None else compiled(self.vit.compiler)
        return walk(
            self.vit, images, self.reduce, touch=self.touch(), classes=self.classes, features=features, breathe=self.breathe
        )

    def look_with_gradient(self, images: Tensor, features: bool = False) -> Look:
        with torch.enable_grad():
            outcome = self.walk(images, features)
        return Look(outcome.logits.detach(), images, outcome)

    def descend(self, loss: Tensor) -> None:
        """One step of the optimiser down this process's share of the loss."""
        self.pull(loss)
        self.advance()

    def pull(self, loss: Tensor) -> None:
        """The first half of `descend`: the gradients, at the parameters as they are now."""
        loss.backward()
        self.world.sum_gradients(self.parameters.values())

    def advance(self) -> None:
        """The second half: the parameters move along the gradients, which are then forgotten."""
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def reliable(self, logits: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Entropy of each row, and which rows stay below share * ln C."""
        h = entropy(logits)
        return h, h < share * self.log_classes

    def _wants_source(self) -> bool:
        return self.needs_source

    # ---- state

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes of the tensors that come into the memory with the stream, by name; None: of any length."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that shapes the answers, by name: tuned parameters, and tensors in the memory as `memory.NAME`."""
        return _named({name: p.detach() for name, p in self.parameters.items()}, self.memory)

    def tensors_in(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """The same of a state from `state()`; not copied."""
        return _named(state["parameters"], state["memory"])

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors under the names of `tensors()`."""
        for name, value in tensors.items():
            if name.startswith("memory."):
                self.memory[name.removeprefix("memory.")] = value.to(self.vit.cls_token.device)
            else:
                self.parameters[name].copy_(value)

    def state(self) -> dict[str, Any]:
        """Everything that moves, as copies."""
        return {
            "parameters": {name: p.detach().clone() for name, p in self.parameters.items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()) if self.optimizer else None,
            "memory": copy.deepcopy(self.memory),
            "generator": self.generator.get_state(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Back to a state from `state()`, to the bit."""
        for name, parameter in self.parameters.items():
            parameter.copy_(state["parameters"][name])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.memory = copy.deepcopy(state["memory"])
        self.generator.set_state(state["generator"])


def _named(parameters: dict[str, Tensor], memory: Mapping[str, Any]) -> dict[str, Tensor]:
    return parameters | {f"memory.{name}": value for name, value in memory.items() if isinstance(value, Tensor)}
