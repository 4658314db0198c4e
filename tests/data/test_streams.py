"""Streams: which image comes when. Every image exactly once, in an order that the seed alone decides."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from navia.data.corruptions import corrupt, corruption_seed, names
from navia.data.preprocessing import Preprocessing
from navia.data.sources import ArrayImages, Domain, Subset, corrupted, gradual, scan
from navia.data.streams import (
    Segment,
    continual,
    label_shifted,
    limited,
    make_stream,
    mixed,
    sequential,
    shuffled,
)
from navia.errors import InputError, SpecError

PLAIN = Preprocessing((32, 32), (0.0,) * 3, (1.0,) * 3)
LABELS = [i % 10 for i in range(400)]


def pixels(count: int, labels: list[int] | None = None) -> ArrayImages:
    return ArrayImages(np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), labels)


def domains(*counts: int) -> list[Domain]:
    return [Domain(f"domain {i}", pixels(count, LABELS[:count])) for i, count in enumerate(counts)]


def indices(segment: Segment) -> list[tuple[int, int]]:
    return [(int(domain), int(position)) for domain, position in segment.indices]


def every_image_once(segments: list[Segment], *counts: int) -> bool:
    seen = Counter(index for segment in segments for index in indices(segment))
    return seen == Counter((domain, position) for domain, count in enumerate(counts) for position in range(count))


def mean_run(segment: Segment) -> float:
    """How many images of one class follow each other on average."""
    labels = [LABELS[position] for _, position in indices(segment)]
    changes = sum(a != b for a, b in pairwise(labels))
    return len(labels) / (changes + 1)


def purity(segment: Segment, window: int = 40) -> float:
    """Share of the most frequent class among `window` images in a row, on average."""
    labels = [LABELS[position] for _, position in indices(segment)]
    parts = [labels[begin : begin + window] for begin in range(0, len(labels), window)]
    return float(np.mean([max(Counter(part).values()) / len(part) for part in parts]))


def test_sequential_is_in_the_order_of_the_collections() -> None:
    first, second = sequential(domains(3, 2))
    assert indices(first) == [(0, 0), (0, 1), (0, 2)]
    assert indices(second) == [(1, 0), (1, 1)]
    assert (first.name, second.name) == ("domain 0", "domain 1")
    assert first.reset
    assert second.reset
    assert (len(first), len(second)) == (3, 2)


def test_the_seed_decides_the_order() -> None:
    plain = sequential(domains(50, 50, 40))
    orders = [[indices(segment) for segment in shuffled(plain, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[2][0]
    assert orders[0][0] != indices(plain[0])
    assert every_image_once(shuffled(plain, 0), 50, 50, 40)


def test_domains_of_equal_length_come_in_equal_order() -> None:
    """So that two corruptions of the same images are compared on the same batches."""
    first, second = shuffled(sequential(domains(50, 50)), 3)
    assert [p for _, p in indices(first)] == [p for _, p in indices(second)]


def test_orders_stay_the_same_from_version_to_version() -> None:
    """Published numbers are on these orders."""
    (segment,) = shuffled(sequential(domains(10)), 0)
    assert [p for _, p in indices(segment)] == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]


def test_continual_starts_once() -> None:
    before = shuffled(sequential(domains(5, 6, 7)), 0)
    after = continual(before)
    assert [segment.reset for segment in after] == [True, False, False]
    assert [indices(segment) for segment in after] == [indices(segment) for segment in before]


def test_mixed_is_one_segment_of_all() -> None:
    segments = mixed(sequential(domains(60, 60)), 0)
    assert [segment.name for segment in segments] == ["mixed"]
    assert segments[0].reset
    assert every_image_once(segments, 60, 60)
    order = [domain for domain, _ in indices(segments[0])]
    assert 20 < sum(order[:60]) < 40  # both domains in both halves
    assert indices(mixed(sequential(domains(60, 60)), 0)[0]) == indices(segments[0])
    assert indices(mixed(sequential(domains(60, 60)), 1)[0]) != indices(segments[0])


def test_limited_takes_the_first_of_each() -> None:
    plain = shuffled(sequential(domains(9, 4)), 0)
    cut = limited(plain, 5)
    assert [len(segment) for segment in cut] == [5, 4]
    assert indices(cut[0]) == indices(plain[0])[:5]
    assert [len(segment) for segment in limited(plain, None)] == [9, 4]


@pytest.mark.parametrize("count", [0, -1])
def test_a_limit_below_one_is_refused(count: int) -> None:
    with pytest.raises(SpecError, match="limit"):
        limited(sequential(domains(9)), count)


def test_small_concentrations_give_bursts() -> None:
    everything = [Domain("all", pixels(400, LABELS))]
    plain = shuffled(sequential(everything), 0)
    shifted = {c: label_shifted(plain, everything, c, 0) for c in (0.01, 0.1, 1.0, 1000.0)}
    for segments in shifted.values():
        assert every_image_once(segments, 400)
    purities = [purity(segments[0]) for segments in shifted.values()]
    runs = [mean_run(segments[0]) for segments in shifted.values()]
    assert purities == sorted(purities, reverse=True)
    assert runs == sorted(runs, reverse=True)
    assert purities[0] > 0.6
    assert purities[-1] < 0.15  # every class everywhere
    assert runs[0] > 20
    assert runs[-1] < 5


def test_within_a_slot_class_comes_after_class() -> None:
    """As in NOTE. Were the classes of a slot mixed, there would be hardly any bursts."""
    everything = [Domain("all", pixels(400, LABELS))]
    for seed in range(5):
        (segment,) = label_shifted(shuffled(sequential(everything), seed), everything, 1.0, seed)
        assert 400 / mean_run(segment) <= 10 * 10  # at most one run per class and slot


def test_bursts_depend_on_the_seed_alone() -> None:
    everything = [Domain("all", pixels(400, LABELS))]
    plain = shuffled(sequential(everything), 0)
    first, again, other = (indices(label_shifted(plain, everything, 0.1, seed)[0]) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_bursts_in_a_mixed_stream() -> None:
    two = domains(200, 200)
    segments = label_shifted(mixed(sequential(two), 0), two, 0.01, 0)
    assert every_image_once(segments, 200, 200)
    assert purity(segments[0]) > 0.6
    assert {domain for domain, _ in indices(segments[0])[:40]} == {0, 1}


def test_bursts_of_one_class_and_of_a_single_image() -> None:
    for labels in ([3] * 5, [7]):
        one = [Domain("one", pixels(len(labels), labels))]
        assert every_image_once(label_shifted(sequential(one), one, 0.1, 0), len(labels))


def test_bursts_of_unlabelled_images_are_refused() -> None:
    unlabelled = [Domain("all", pixels(4))]
    with pytest.raises(InputError, match="needs labelled images"):
        label_shifted(sequential(unlabelled), unlabelled, 0.1, 0)
    partly = [Domain("all", pixels(4, [0, 1, -1, 0]))]
    with pytest.raises(InputError, match="needs labelled images"):
        make_stream(partly, concentration=0.1)


@pytest.mark.parametrize("concentration", [0.0, -1.0, float("nan"), float("inf")])
def test_concentrations_that_are_none_are_refused(concentration: float) -> None:
    labelled = domains(10)
    with pytest.raises(SpecError, match="concentration"):
        label_shifted(sequential(labelled), labelled, concentration, 0)


def test_streams_by_name() -> None:
    three = domains(30, 30, 20)
    reset = make_stream(three, "reset", seed=5)
    assert [segment.reset for segment in reset.segments] == [True, True, True]
    assert every_image_once(list(reset.segments), 30, 30, 20)
    assert len(reset) == 80
    going_on = make_stream(three, "continual", seed=5)
    assert [indices(s) for s in going_on.segments] == [indices(s) for s in reset.segments]
    assert [segment.reset for segment in going_on.segments] == [True, False, False]
    together = make_stream(three, "mixed", seed=5)
    assert len(together.segments) == 1
    assert every_image_once(list(together.segments), 30, 30, 20)
    assert together.domains == tuple(three)


def test_without_a_seed_images_come_by_name() -> None:
    (segment,) = make_stream(domains(6), seed=None).segments
    assert [p for _, p in indices(segment)] == list(range(6))


def test_a_limit_counts_per_domain_even_when_mixed() -> None:
    stream = make_stream(domains(30, 30), "mixed", seed=0, limit=10)
    assert Counter(domain for domain, _ in indices(stream.segments[0])) == {0: 10, 1: 10}


def test_a_limited_stream_is_the_beginning_of_the_whole_one() -> None:
    whole, part = (make_stream(domains(30), seed=2, limit=limit).segments[0] for limit in (None, 7))
    assert indices(part) == indices(whole)[:7]


def test_streams_that_are_none_are_refused() -> None:
    with pytest.raises(SpecError, match=r"unknown stream 'shuffled'; known: reset, continual, mixed"):
        make_stream(domains(3), "shuffled")
    for kind in ("reset", "mixed"):
        with pytest.raises(InputError, match="no images"):
            make_stream([], kind)
    with pytest.raises(InputError, match="'empty'"):
        make_stream([Domain("empty", pixels(0, []))], concentration=0.1)


def test_gradual_severities_come_and_go() -> None:
    collection = pixels(2)
    both = gradual(collection, ["fog", "snow"], seed=4)
    assert [domain.severity for domain in both] == [1, 2, 3, 4, 5, 4, 3, 2, 1] * 2
    assert [domain.corruption for domain in both] == ["fog"] * 9 + ["snow"] * 9
    assert len({domain.name for domain in both}) == 18
    assert {domain.seed for domain in both} == {4}
    assert all(domain.images is collection for domain in both)


def test_corrupted_domains() -> None:
    made = corrupted(pixels(2), names(), severity=3, seed=9)
    assert [domain.name for domain in made] == list(names())
    assert {(domain.severity, domain.seed) for domain in made} == {(3, 9)}


def test_a_domain_corrupts_what_the_model_would_see(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    (tmp_path / "n01").mkdir()
    Image.fromarray(image).save(tmp_path / "n01" / "a.png")
    folder = scan(tmp_path)
    seen = image[9:41, 19:51]
    clean = Domain("clean", folder)
    assert np.array_equal(clean.pixels(0, PLAIN), seen)
    assert clean.label(0) == 0
    noisy = Domain("noise", folder, "gaussian_noise", 3, seed=5)
    expected = corrupt(seen, "gaussian_noise", 3, seed=corruption_seed("n01/a.png", "gaussian_noise", 3, 5))
    assert np.array_equal(noisy.pixels(0, PLAIN), expected)
    assert np.array_equal(noisy.tensor(0, PLAIN).numpy(), expected.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    others = (Domain("noise", folder, "gaussian_noise", 3, seed=6), Domain("noise", folder, "gaussian_noise", 4, seed=5))
    for other in others:
        assert not np.array_equal(other.pixels(0, PLAIN), expected)


def test_images_of_one_collection_are_corrupted_differently() -> None:
    alike = ArrayImages(np.full((2, 32, 32, 3), 128, np.uint8))
    noisy = Domain("noise", alike, "gaussian_noise", 3)
    assert not np.array_equal(noisy.pixels(0, PLAIN), noisy.pixels(1, PLAIN))


def test_a_image_of_a_subset_is_corrupted_as_in_the_whole() -> None:
    whole = pixels(9, LABELS[:9])
    part = Subset(whole, [7, 2])
    of_whole, of_part = (Domain("noise", collection, "shot_noise", 5) for collection in (whole, part))
    assert np.array_equal(of_part.pixels(0, PLAIN), of_whole.pixels(7, PLAIN))
    assert (of_part.label(1), len(part), part.name(1)) == (LABELS[2], 2, whole.name(2))


def test_grey_images_stay_grey_for_a_model_of_one_channel() -> None:
    grey = Preprocessing((32, 32), (0.0,), (1.0,))
    noisy = Domain("noise", ArrayImages(np.full((1, 32, 32), 128, np.uint8)), "gaussian_noise", 3)
    assert noisy.pixels(0, grey).shape == (32, 32)
    assert noisy.tensor(0, grey).shape == (1, 32, 32)


def test_domains_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="unknown corruption 'rain'; known: gaussian_noise"):
        Domain("rain", pixels(1), "rain", 3)
    for severity in (-1, 6):
        with pytest.raises(InputError, match="severity"):
            Domain("fog", pixels(1), "fog", severity)
    with pytest.raises(InputError, match="severity"):
        corrupted(pixels(1), ["fog"], severity=9)


def test_unlabelled_images_have_label_minus_one() -> None:
    assert Domain("all", pixels(2)).label(1) == -1
