"""In which order pictures come. A stream is a list of stretches over domains; each function here turns stretches into
stretches, so that they compose:

    stretches = shuffled(one_by_one(domains), seed=0)        every domain by itself, adaptation starts anew before each
    stretches = continual(stretches)                         the same without a new start
    stretches = mixed(stretches, seed=0)                     all domains at once
    stretches = label_shifted(stretches, domains, 0.1, 0)    classes come in bursts
    stretches = limited(stretches, 512)                      the first 512 pictures of each

Positions only: nothing is read here. `loader.py` reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from navia.data.domain import Domain
from navia.errors import InputError, SpecError, known_names

KINDS = ("reset", "continual", "mixed")


@dataclass(frozen=True, eq=False)
class Stretch:
    """Pictures in order: shots [N, 2] are (domain, position). reset: adaptation starts from the source before it."""

    name: str
    shots: np.ndarray
    reset: bool = True

    def __len__(self) -> int:
        return len(self.shots)


@dataclass(frozen=True, eq=False)
class Stream:
    domains: tuple[Domain, ...]
    stretches: tuple[Stretch, ...]

    def __len__(self) -> int:
        return sum(len(stretch) for stretch in self.stretches)


def one_by_one(domains: Sequence[Domain]) -> list[Stretch]:
    """Every domain from its first picture to its last."""
    return [
        Stretch(domain.name, np.stack([np.full(len(domain.collection), i), np.arange(len(domain.collection))], axis=1))
        for i, domain in enumerate(domains)
    ]


def shuffled(stretches: Sequence[Stretch], seed: int) -> list[Stretch]:
    """Each in a random order of its own; the order depends on the seed and the number of pictures alone."""
    return [replace(s, shots=s.shots[np.random.default_rng(seed).permutation(len(s))]) for s in stretches]


def continual(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Adaptation starts once and goes on from domain to domain."""
    return [replace(stretch, reset=i == 0) for i, stretch in enumerate(stretches)]


def mixed(stretches: Sequence[Stretch], seed: int) -> list[Stretch]:
    """One stretch of all, in random order."""
    together = np.concatenate([stretch.shots for stretch in stretches])
    return shuffled([Stretch("mixed", together)], seed)


def limited(stretches: Sequence[Stretch], count: int | None) -> list[Stretch]:
    """The first `count` pictures of each; None: all."""
    if count is not None and count < 1:
        raise SpecError(f"the limit of a stream must be at least 1 picture, not {count}")
    return [replace(stretch, shots=stretch.shots[:count]) for stretch in stretches]


def label_shifted(stretches: Sequence[Stretch], domains: Sequence[Domain], concentration: float, seed: int) -> list[Stretch]:
    """Classes in bursts: each class is dealt over as many slots as there are classes, in shares drawn from a Dirichlet
    distribution; within a slot class comes after class, in random order (Gong et al., 2022, NOTE). The smaller
    `concentration`, the more each slot belongs to few classes."""
    if not 0 < concentration < math.inf:
        raise SpecError(f"the concentration of a label shift must be a positive number, not {concentration}")
    return [replace(s, shots=_bursts(s, domains, concentration, np.random.default_rng(seed))) for s in stretches]


def _bursts(stretch: Stretch, domains: Sequence[Domain], concentration: float, rng: np.random.Generator) -> np.ndarray:
    labels = np.array([domains[d].label(p) for d, p in stretch.shots])
    if (labels < 0).any():
        raise InputError("a label shift needs labelled images")
    present = np.unique(labels)
    slots: list[list[np.ndarray]] = [[] for _ in present]
    for label in present:
        own = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(len(present), concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(own)).astype(int)
        for slot, part in zip(slots, np.split(own, cuts), strict=True):
            slot.append(part)
    order = np.concatenate([slot[i] for slot in slots for i in rng.permutation(len(slot))])
    return stretch.shots[order]


def make_stream(
    domains: Sequence[Domain],
    kind: str = "reset",
    *,
    seed: int | None = 0,
    limit: int | None = None,
    concentration: float | None = None,
) -> Stream:
    """The usual compositions by name. seed None: pictures in the order of their names. limit: pictures per domain.
    concentration: of a label shift."""
    if kind not in KINDS:
        raise SpecError(f"unknown stream {kind!r}{known_names(kind, KINDS)}")
    empty = [domain.name for domain in domains if len(domain.collection) == 0]
    if empty or not domains:
        raise InputError(f"no images in {', '.join(map(repr, empty)) or 'a stream without domains'}")
    stretches = one_by_one(domains)
    if seed is not None:
        stretches = shuffled(stretches, seed)
    stretches = limited(stretches, limit)
    if kind == "mixed":
        stretches = mixed(stretches, seed or 0)
    if kind == "continual":
        stretches = continual(stretches)
    if concentration is not None:
        stretches = label_shifted(stretches, domains, concentration, seed or 0)
    return Stream(tuple(domains), tuple(stretches))
