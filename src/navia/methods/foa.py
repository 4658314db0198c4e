"""FOA: forward-only adaptation of prompts by CMA-ES (Niu et al., 2024; arXiv 2404.01650)."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from navia.errors import NaviaError, SpecError
from navia.methods.align import BUFFER_NAMES
from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import FeatureBuffer, batch_moments, check_buffer, entropy
from navia.methods.navia import prompt_bound
from navia.methods.options import Options
from navia.methods.parameters import to_float32
from navia.models.base import ViT
from navia.models.forward import ForwardOutput, TokenEdits


@dataclass(frozen=True)
class FoaOptions(Options):
    """Options of foa.

    Args:
        prompts: Number of prompt tokens.
        population: Candidates per batch, the best so far included; 0: it and 4 + 3 ln(dimensions) others.
        discrepancy_weight: Weight of the squared distance of the statistics.
        sigma: Initial step size of CMA-ES.
        diagonal: Estimate variances only, which is much cheaper.
        shift: Apply the activation shift to the predictions.
        min_batch: As for align.
        buffer_size: As for align.
    """

    renamed: ClassVar[Mapping[str, str]] = BUFFER_NAMES

    prompts: int = 3
    population: int = 0
    discrepancy_weight: float = 0.4
    sigma: float = 1.0
    diagonal: bool = False
    shift: bool = True
    min_batch: int = 8
    buffer_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_buffer(self.min_batch, self.buffer_size)
        if self.prompts < 1 or self.population in (1, 2):
            raise SpecError("foa needs at least 1 prompt and a population of at least 3 (or 0: by the model's width)")


@METHODS.register("foa")
class Foa(Method):
    """Prompts optimised by CMA-ES, without gradients."""

    name = "foa"
    Options = FoaOptions
    relative_cost = 27
    needs_source = True
    uses_features = True
    output_options = ("shift",)

    @classmethod
    def tuned_names(cls, vit: ViT, options: FoaOptions) -> list[str]:
        return []

    @classmethod
    def num_added_parameters(cls, vit: ViT, options: FoaOptions) -> int:
        return options.prompts * vit.embed_dim

    @classmethod
    def num_forwards(cls, vit: ViT, options: FoaOptions) -> int:
        return population(options.prompts * vit.embed_dim, options) + 1  # the candidates and the best so far

    @classmethod
    def num_extra_tokens(cls, options: FoaOptions) -> int:
        return options.prompts

    def setup(self) -> None:
        shape = (self.options.prompts, self.vit.embed_dim)
        bound = prompt_bound(self.vit.patch_size, self.vit.embed_dim)
        first = (torch.rand(shape, generator=self.generator, device=self.generator.device) * 2 - 1) * bound
        self.memory["prompts"] = first.to(self.vit.device)
        self.search = _Search(shape[0] * shape[1], self.options, self.seed)

    def token_edits(self) -> TokenEdits:
        return TokenEdits(prompts=self.memory["prompts"])

    @torch.no_grad()
    def forward_step(self, images: Tensor) -> Prediction:
        """Evaluate every candidate and the best prompts so far; predict with the best one, shifted."""
        buffered = self._buffer.get(len(images))
        if not self._buffer.is_enough(len(images) + (0 if buffered is None else len(buffered))):
            output = self.forward(images, features=True)
            return Prediction(
                self.shifted_logits(output), images, output, UpdateResult(kept=0, note="too few images for statistics yet")
            )
        shape = self.memory["prompts"].shape
        candidates = [*self.search.ask(), self.memory["prompts"].double().cpu().numpy().reshape(-1)]
        on_device = torch.from_numpy(np.stack(candidates)).to(self.memory["prompts"], non_blocking=True)
        found: list[Tensor] = []
        best: dict[str, Any] = {}
        features = []
        for prompts in on_device.view(-1, *shape):
            output = self.forward(images, features=True, edits=TokenEdits(prompts=prompts))
            loss = self._fitness(output, buffered)
            new = {"prompts": prompts, "logits": output.logits, "pooled": output.pooled, "features": output.features}
            better = loss < torch.stack(found).min() if found else torch.ones_like(loss, dtype=torch.bool)
            best = {name: torch.where(better, value, best.get(name, value)) for name, value in new.items()}
            found.append(loss)
            features.append(to_float32(output.pooled[:, 0]).mean(dim=0))
        losses = torch.stack(found).tolist()  # for CMA-ES, which runs on the host
        prompts = best.pop("prompts")
        output = replace(output, **best)  # its tokens are of the last candidate: nothing reads them
        logits = self.shifted_logits(output)
        if math.inf in losses:
            self.search.undo_ask()
            return Prediction(logits, images, output, UpdateResult(kept=0, note="the loss of a candidate is not finite"))
        self.search.tell(candidates, losses)
        self.activation_shift.update(torch.stack(features).mean(dim=0))
        self.memory["prompts"] = prompts
        return Prediction(logits, images, output, UpdateResult(kept=len(images), loss=min(losses)))

    def update(self, prediction: Prediction) -> UpdateResult:
        assert prediction.update_result is not None
        assert prediction.output.features is not None
        self._buffer.add(prediction.output.features, len(prediction.images))
        return prediction.update_result

    def skip_update(self, prediction: Prediction) -> UpdateResult:
        assert prediction.output.features is not None
        self._buffer.add(prediction.output.features, len(prediction.images))
        self.activation_shift.update(to_float32(prediction.output.pooled[:, 0]).mean(dim=0))
        return UpdateResult(kept=0)

    @property
    def _buffer(self) -> FeatureBuffer:
        return FeatureBuffer(self.memory, self.options.min_batch, self.options.buffer_size)

    def memory_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"recent": (None, self.vit.depth, self.vit.embed_dim), "running_feature": (self.vit.embed_dim,)}

    def state(self) -> dict[str, Any]:
        return super().state() | {"search": self.search.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.search.load_state(state.get("search"))
        super().load_state(state)

    def _fitness(self, output: ForwardOutput, buffered: Tensor | None) -> Tensor:
        """sum H + weight B/64 (|std_t - std_S|^2 + |mean_t - mean_S|^2); infinite if it is not finite."""
        assert self.source is not None
        assert output.features is not None
        count = len(output.features)
        mean, std = batch_moments(output.features, buffer=buffered)
        distance = (std - self.source.std).square().sum() + (mean - self.source.mean).square().sum()
        loss = entropy(output.logits).sum() + self.options.discrepancy_weight * count / 64 * distance
        return torch.where(loss.isfinite(), loss, math.inf)


def population(dimensions: int, options: FoaOptions) -> int:
    """Candidates that CMA-ES draws per batch; by default Hansen's recommendation."""
    return options.population - 1 if options.population else int(4 + 3 * math.log(dimensions))


class _Search:
    """CMA-ES around zero with its own random numbers. Its state is a dictionary of tensors and numbers, the attributes of
    pycma's strategy that the next generation needs, so a stream resumes exactly."""

    ARRAYS = ("mean", "mean_old", "pc", "pc2", "adapt_sigma.ps", "sigma_vec.scaling")
    NUMBERS = ("sigma", "countiter", "countevals", "adapt_sigma.delta", "sigma_vec.is_identity")
    FULL_ARRAYS = ("sm.C", "sm.B", "sm.D")  # the covariance, its eigenvectors and axes
    FULL_NUMBERS = ("sm.last_update", "sm.count_tell", "sm.count_eigen")

    def __init__(self, dimensions: int, options: FoaOptions, seed: int) -> None:
        self.arguments = (dimensions, options, seed)
        self.random = np.random.RandomState(seed)
        self.strategy = self._strategy()
        self._arrays = self.ARRAYS + (() if options.diagonal else self.FULL_ARRAYS)
        self._numbers = self.NUMBERS + (() if options.diagonal else self.FULL_NUMBERS)

    def _strategy(self) -> Any:
        try:
            import cma
        except ImportError as error:
            raise NaviaError("method 'foa' needs the cma package: pip install 'navia[bench]'") from error
        dimensions, options, _ = self.arguments
        settings: dict[str, Any] = {
            "popsize": population(dimensions, options),
            "verbose": -9,
            "randn": self.random.randn,
            "seed": float("nan"),  # leaves the global generator alone
            "CMA_diagonal": options.diagonal,
            # as in FOA; in many dimensions (a wide ViT) newer versions of cma would adapt the step size in another way
            "AdaptSigma": cma.sigma_adaptation.CMAAdaptSigmaCSA,
            "conditioncov_alleviate": [1e8, 0],  # 0: no change of coordinates, which would be one more state
        }
        strategy = cma.CMAEvolutionStrategy(np.zeros(dimensions), options.sigma, settings)
        strategy.mean_old = strategy.mean
        strategy.timer = cma.utilities.utils.ElapsedWCTime()  # it makes one in the first generation only
        return strategy

    def ask(self) -> list[np.ndarray]:
        self._before_ask = self.random.get_state(legacy=False), self._directions()
        return list(self.strategy.ask())

    def tell(self, candidates: list[np.ndarray], losses: list[float]) -> None:
        self.strategy.tell(candidates, losses)

    def undo_ask(self) -> None:
        """The next `ask` returns the same candidates again."""
        drawn, directions = self._before_ask
        self.random.set_state(drawn)
        self.strategy.pop_injection_directions = list(directions)

    def state(self) -> dict[str, Any]:
        """Copies as tensors and plain numbers. A tensor keeps its array's memory order, because sums depend on it."""
        drawn: Any = self.random.get_state(legacy=False)
        found: dict[str, Any] = {name: torch.from_numpy(np.array(self._get(name), np.float64)) for name in self._arrays}
        found |= {name: np.asarray(self._get(name)).item() for name in self._numbers}
        found["directions"] = torch.from_numpy(self._directions())
        found["random.key"] = torch.from_numpy(drawn["state"]["key"].astype(np.int64))
        found["random.pos"] = int(drawn["state"]["pos"])
        return found | {"random.has_gauss": int(drawn["has_gauss"]), "random.gauss": float(drawn["gauss"])}

    def load_state(self, state: object) -> None:
        """Restore a state from `state()` exactly; anything else is refused before anything changes."""
        own = self.state()
        if not isinstance(state, Mapping) or state.keys() != own.keys():
            raise NaviaError(
                "this state of method 'foa' holds no search that can be read (older versions of navia kept it as a pickle,"
                " which can run code): start the stream anew"
            )
        for name, value in own.items():
            given = state[name]
            fits = isinstance(given, Tensor) and _fits(given, value) if isinstance(value, Tensor) else _is_number(given)
            if not fits:
                raise NaviaError(f"this state of method 'foa' does not fit: {name} is not of the kind or shape it must be")
        self.strategy = self._strategy()
        for name in self._arrays:
            self._set(name, np.array(state[name].cpu().numpy()))
        for name in self._numbers:
            self._set(name, state[name])
        directions = list(np.array(state["directions"].cpu().numpy()))
        self.strategy.pop_injection_directions = directions
        self.strategy._indices_of_selective_mirrors = range(len(directions))
        self.strategy._updateBDfromSM(self.strategy.sm)
        inner = {"key": state["random.key"].cpu().numpy().astype(np.uint32), "pos": state["random.pos"]}
        drawn = {"bit_generator": "MT19937", "state": inner}
        self.random.set_state(drawn | {"has_gauss": state["random.has_gauss"], "gauss": state["random.gauss"]})

    def __getstate__(self) -> tuple[tuple[int, FoaOptions, int], dict[str, Any]]:
        return self.arguments, self.state()

    def __setstate__(self, saved: tuple[tuple[int, FoaOptions, int], dict[str, Any]]) -> None:
        self.__init__(*saved[0])  # type: ignore[misc]
        self.load_state(saved[1])

    def _directions(self) -> np.ndarray:
        """[K, dimensions] mirrors of bad candidates, which a small population tries in the next generation."""
        return np.array(self.strategy.pop_injection_directions, np.float64).reshape(-1, self.arguments[0])

    def _get(self, name: str) -> Any:
        *way, last = name.split(".")
        return getattr(functools.reduce(getattr, way, self.strategy), last)

    def _set(self, name: str, value: Any) -> None:
        *way, last = name.split(".")
        setattr(functools.reduce(getattr, way, self.strategy), last, value)


def _fits(given: Tensor, own: Tensor) -> bool:
    """The scaling has no axes until CMA-ES first changes it, and the number of directions varies."""
    return given.dtype == own.dtype and (given.shape[-1:] == own.shape[-1:] or 0 in (given.dim(), own.dim()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
