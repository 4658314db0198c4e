"""Order of the images. A stream is a list of segments over domains; each function maps segments to segments:

    segments = shuffled(sequential(domains), seed=0)        one segment per domain, adaptation is reset before each
    segments = continual(segments)                          the same without the resets
    segments = mixed(segments, seed=0)                      all domains in one segment
    segments = label_shifted(segments, domains, 0.1, 0)     images of one class follow each other
    segments = limited(segments, 512)                       the first 512 images of each

Streams hold indices only; `loader.py` reads the images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from navia.data.sources import Domain
from navia.errors import InputError, SpecError, known_names

KINDS = ("reset", "continual", "mixed")


@dataclass(frozen=True, eq=False)
class Segment:
    """Images in order. indices [N, 2]: (domain, image). reset: adaptation restarts from the source before it."""

    name: str
    indices: np.ndarray
    reset: bool = True

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Stream:
    """Segments over domains; `make_stream` builds the usual ones."""

    domains: tuple[Domain, ...]
    segments: tuple[Segment, ...]

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)


def sequential(domains: Sequence[Domain]) -> list[Segment]:
    """One segment per domain, in the order of its images."""
    return [
        Segment(domain.name, np.stack([np.full(len(domain.images), i), np.arange(len(domain.images))], axis=1))
        for i, domain in enumerate(domains)
    ]


def shuffled(segments: Sequence[Segment], seed: int) -> list[Segment]:
    """Shuffle each segment; the order depends on the seed and the number of images only."""
    return [replace(s, indices=s.indices[np.random.default_rng(seed).permutation(len(s))]) for s in segments]


def continual(segments: Sequence[Segment]) -> list[Segment]:
    """Adapt from domain to domain without a reset."""
    return [replace(segment, reset=i == 0) for i, segment in enumerate(segments)]


def mixed(segments: Sequence[Segment], seed: int) -> list[Segment]:
    """Merge all into one shuffled segment."""
    return shuffled([Segment("mixed", np.concatenate([segment.indices for segment in segments]))], seed)


def limited(segments: Sequence[Segment], count: int | None) -> list[Segment]:
    """Keep the first `count` images of each; None: all."""
    if count is not None and count < 1:
        raise SpecError(f"the limit of a stream must be at least 1 image, not {count}")
    return [replace(segment, indices=segment.indices[:count]) for segment in segments]


def label_shifted(segments: Sequence[Segment], domains: Sequence[Domain], concentration: float, seed: int) -> list[Segment]:
    """Group images by class (Gong et al., 2022, NOTE): each class is split over as many slots as there are classes, with
    shares from a Dirichlet distribution; within a slot the classes follow each other in random order. A smaller
    `concentration` gives slots of fewer classes."""
    if not 0 < concentration < math.inf:
        raise SpecError(f"the concentration of a label shift must be a positive number, not {concentration}")
    return [replace(s, indices=_by_class(s, domains, concentration, np.random.default_rng(seed))) for s in segments]


def _by_class(segment: Segment, domains: Sequence[Domain], concentration: float, rng: np.random.Generator) -> np.ndarray:
    labels = np.array([domains[domain].label(index) for domain, index in segment.indices])
    if (labels < 0).any():
        raise InputError("a label shift needs labelled images")
    present = np.unique(labels)
    slots: list[list[np.ndarray]] = [[] for _ in present]
    for label in present:
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(len(present), concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for slot, part in zip(slots, np.split(members, cuts), strict=True):
            slot.append(part)
    order = np.concatenate([slot[i] for slot in slots for i in rng.permutation(len(slot))])
    return segment.indices[order]


def make_stream(
    domains: Sequence[Domain],
    kind: str = "reset",
    *,
    seed: int | None = 0,
    limit: int | None = None,
    concentration: float | None = None,
) -> Stream:
    """Build a stream: "reset" (before each domain), "continual" (no resets) or "mixed" (all domains shuffled together).
    seed: of the order; None: by name. limit: images per domain. concentration: of a label shift, see `label_shifted`."""
    if kind not in KINDS:
        raise SpecError(f"unknown stream {kind!r}{known_names(kind, KINDS)}")
    empty = [domain.name for domain in domains if len(domain.images) == 0]
    if empty or not domains:
        raise InputError(f"no images in {', '.join(map(repr, empty)) or 'a stream without domains'}")
    segments = sequential(domains)
    if seed is not None:
        segments = shuffled(segments, seed)
    segments = limited(segments, limit)
    if kind == "mixed":
        segments = mixed(segments, seed or 0)
    elif kind == "continual":
        segments = continual(segments)
    if concentration is not None:
        segments = label_shifted(segments, domains, concentration, seed or 0)
    return Stream(tuple(domains), tuple(segments))
