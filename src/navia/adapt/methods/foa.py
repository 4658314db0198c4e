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
from navia.adapt.recent import Recent, check_recent
from navia.adapt.shift import ActivationShift
from navia.errors import NaviaError, SpecError
from navia.vit.forward import Outcome, Touch, head, run
from navia.vit.vit import ViT


@dataclass(frozen=True)
class FoaOptions(Options):
    """prompts: tokens that are optimised. population: candidates per batch, one of them the best so far; 0: it and
    4 + 3 ln(dimensions) others. weight: of the squared statistics distance. sigma: first step of CMA-ES. diagonal: estimate
    variances only (much cheaper). enough, recent: as for align."""

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
        check_recent(self.enough, self.recent)
        if self.prompts < 1 or self.population in (1, 2):
            raise SpecError("foa needs at least 1 prompt and a population of at least 3 (or 0: by the model's width)")


@METHODS.register("foa")
class Foa(Method):
    name = "foa"
    Options = FoaOptions
    effort = 27
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
        recent = self._recent.lent(len(images))
        if not self._recent.suffice(len(images) + (0 if recent is None else len(recent))):
            outcome = self.walk(images, features=True)
            return Look(self._answer(outcome), images, outcome, Learned(kept=0, note="too few images for statistics yet"))
        search = pickle.loads(self.memory["search"])
        shape = self.memory["prompts"].shape
        candidates = [*search.ask(), self.memory["prompts"].double().cpu().numpy().reshape(-1)]
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
        answer = self._answer(outcome)
        if math.inf in losses:
            return Look(answer, images, outcome, Learned(kept=0, note="the loss of a candidate is not finite"))
        search.tell(candidates, losses)
        self._shift.update(torch.stack(features).mean(dim=0))
        self.memory.update(prompts=prompts, search=pickle.dumps(search))
        return Look(answer, images, outcome, Learned(kept=len(images), loss=min(losses)))

    def learn(self, look: Look) -> Learned:
        assert look.learned is not None
        assert look.outcome is not None
        assert look.outcome.features is not None
        self._recent.add(look.outcome.features, len(look.images))
        return look.learned

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        return self._answer(self.walk(images))

    def _answer(self, outcome: Outcome) -> Tensor:
        return head(self.vit, outcome.pooled, self._shift.vector() if self.options.shift else None, self.classes)

    @property
    def _recent(self) -> Recent:
        return Recent(self.memory, self.options.enough, self.options.recent)

    def remembers(self) -> dict[str, tuple[int | None, ...]]:
        return {"recent": (None, self.vit.depth, self.vit.dim), "running_feature": (self.vit.dim,)}

    @property
    def _shift(self) -> ActivationShift:
        assert self.source is not None
        return ActivationShift(self.source, self.memory)

    def _fitness(self, outcome: Outcome, recent: Tensor | None) -> float:
        """sum H + weight B/64 (|std_t - std_S|^2 + |mean_t - mean_S|^2); infinite where that is no number."""
        assert self.source is not None
        assert outcome.features is not None
        count = len(outcome.features)
        mean, std = batch_moments(outcome.features, recent=recent)
        distance = (std - self.source.std).square().sum() + (mean - self.source.mean).square().sum()
        loss = float(entropy(outcome.logits).sum() + self.options.weight * count / 64 * distance)
        return loss if math.isfinite(loss) else math.inf


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
