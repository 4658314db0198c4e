"""FOA: forward-only adaptation of prompts by CMA-ES (Niu et al., 2024; arXiv 2404.01650)."""

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navia.adapt.losses import entropy
from navia.adapt.method import METHODS, Learned, Look, Method, Options
from navia.adapt.methods.navia import prompt_bound
from navia.adapt.moments import batch_moments
from navia.adapt.shift import ActivationShift
from navia.errors import NaviaError, SpecError
from navia.vit.forward import Outcome, Touch, head, run
from navia.vit.vit import ViT


@dataclass(frozen=True)
class FoaOptions(Options):
    """prompts: tokens that are optimised. population: candidates per batch; 0: 4 + 3 ln(dimensions). weight: of the squared
    statistics distance. sigma: first step of CMA-ES. diagonal: estimate variances only (much cheaper).
    enough, recent: as for align."""

    prompts: int = 3
    population: int = 0
    weight: float = 0.4
    sigma: float = 1.0
    diagonal: bool = False
    shift: bool = True
    enough: int = 8
    recent: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompts < 1 or self.population == 1:
            raise SpecError("foa needs at least 1 prompt and a population of at least 2")


@METHODS.register("foa")
class Foa(Method):
    name = "foa"
    Options = FoaOptions
    needs_source = True
    answers_by = ("shift",)

    @classmethod
    def tuned(cls, vit: ViT, options: FoaOptions) -> list[str]:
        return []

    @classmethod
    def added(cls, vit: ViT, options: FoaOptions) -> int:
        return options.prompts * vit.dim

    @classmethod
    def forwards(cls, vit: ViT, options: FoaOptions) -> int:
        return population(options.prompts * vit.dim, options) + 1  # and the best so far

    @classmethod
    def extra_tokens(cls, options: FoaOptions) -> int:
        return options.prompts

    def start(self) -> None:
        shape = (self.options.prompts, self.vit.dim)
        bound = prompt_bound(self.vit.patch_size, self.vit.dim)
        first = (torch.rand(shape, generator=self.generator) * 2 - 1) * bound
        self.memory["prompts"] = first.to(self.vit.cls_token.device)
        self.memory["search"] = pickle.dumps(_Search(shape[0] * shape[1], self.options, self.seed))

    def touch(self) -> Touch:
        return Touch(prompts=self.memory["prompts"])

    @torch.no_grad()
    def look(self, images: Tensor) -> Look:
        """Try every candidate and the best prompts so far; answer with the fittest, shifted."""
        search = pickle.loads(self.memory["search"])
        shape = self.memory["prompts"].shape
        candidates = [*search.ask(), self.memory["prompts"].double().cpu().numpy().reshape(-1)]
        recent = self.memory.get("recent")
        recent = recent if len(images) < self.options.enough else None
        losses, best, features = [], None, []
        for candidate in candidates:
            prompts = torch.from_numpy(candidate).to(images).view(shape)
            outcome = run(
                self.vit,
                images,
                self.reduce,
                touch=Touch(prompts=prompts),
                classes=self.classes,
                features=True,
                breathe=self.breathe,
            )
            loss = self._fitness(outcome, recent)
            if best is None or loss < min(losses):
                best = (prompts, outcome)
            losses.append(loss)
            features.append(outcome.pooled[:, 0].mean(dim=0))
        assert best is not None
        prompts, outcome = best
        shift = self._shift
        answer = head(self.vit, outcome.pooled, shift.vector() if self.options.shift else None, self.classes)
        learned = Learned(kept=len(images), loss=min(losses))
        if not all(math.isfinite(loss) for loss in losses):
            return Look(answer, images, outcome, Learned(kept=0, note="too few images for statistics yet"))
        search.tell(candidates, losses)
        shift.update(torch.stack(features).mean(dim=0))
        self.memory.update(prompts=prompts, search=pickle.dumps(search))
        return Look(answer, images, outcome, learned)

    def learn(self, look: Look) -> Learned:
        assert look.learned is not None
        assert look.outcome is not None
        assert look.outcome.features is not None
        if len(look.images) < self.options.enough:
            before = self.memory.get("recent", look.outcome.features[:0])
            self.memory["recent"] = torch.cat([before, look.outcome.features])[-self.options.recent :]
        return look.learned

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        outcome = self.walk(images)
        return head(self.vit, outcome.pooled, self._shift.vector() if self.options.shift else None, self.classes)

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        return {"recent": (None, self.vit.depth, self.vit.dim), "running_feature": (self.vit.dim,)}

    @property
    def _shift(self) -> ActivationShift:
        assert self.source is not None
        return ActivationShift(self.source, self.memory)

    def _fitness(self, outcome: Outcome, recent: Tensor | None) -> float:
        """sum H + weight B/64 (|std_t - std_S|^2 + |mean_t - mean_S|^2); infinite while there are too few images."""
        assert self.source is not None
        assert outcome.features is not None
        count = len(outcome.features)
        seen = count + (0 if recent is None else len(recent))
        if seen < 2 or (count < self.options.enough and seen < self.options.enough):
            return math.inf
        mean, std = batch_moments(outcome.features, recent=recent)
        distance = (std - self.source.std).square().sum() + (mean - self.source.mean).square().sum()
        return float(entropy(outcome.logits).sum() + self.options.weight * count / 64 * distance)


def population(dimensions: int, options: FoaOptions) -> int:
    """Candidates that CMA-ES draws for a batch: as many as Hansen's tutorial advises, if not told otherwise."""
    return options.population - 1 if options.population else int(4 + 3 * math.log(dimensions))


class _Search:
    """CMA-ES around zero with random numbers of its own, so that a stream can be reset and resumed to the bit."""

    def __init__(self, dimensions: int, options: FoaOptions, seed: int) -> None:
        try:
            import cma
        except ImportError as error:
            raise NaviaError("method 'foa' needs the cma package: pip install 'navia[bench]'") from error
        self.random = np.random.RandomState(seed)
        settings: dict[str, Any] = {
            "popsize": population(dimensions, options),
            "verbose": -9,
            "randn": self.random.randn,
            "seed": float("nan"),  # leaves the global generator alone
            "CMA_diagonal": options.diagonal,
        }
        self.strategy = cma.CMAEvolutionStrategy(np.zeros(dimensions), options.sigma, settings)

    def ask(self) -> list[np.ndarray]:
        return list(self.strategy.ask())

    def tell(self, candidates: list[np.ndarray], losses: list[float]) -> None:
        self.strategy.tell(candidates, losses)
