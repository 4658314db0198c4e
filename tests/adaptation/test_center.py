"""Forward-only adaptation: `none` with `center` re-centres the final CLS feature on the stream."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import navia
from navia.data.sample import unseen_images
from navia.data.sources import Domain
from navia.errors import SpecError
from navia.models.forward import forward, head

VIT = navia.load("embedded")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return Domain("shifted", unseen_images(), "contrast", 3).tensors(range(40), VIT.preprocessing)


def expected(images: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """The equation of the docstring, batch by batch."""
    mean, count, found = torch.zeros(VIT.embed_dim), 0, []
    with torch.no_grad():
        for part in images[: sum(sizes)].split(list(sizes)):
            pooled = forward(VIT, part).pooled
            mean = mean + len(part) / (count + len(part)) * (pooled[:, 0].mean(dim=0) - mean)
            count = min(count + len(part), 128)
            found.append(head(VIT, pooled, -count / (count + 1) * mean))
    return found


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 16), (40,)])
def test_logits_follow_the_equation_from_the_first_batch_on(sizes: tuple[int, ...], images: Tensor) -> None:
    adapter = navia.adapt(VIT, "none", center=True)
    parts = images[: sum(sizes)].split(list(sizes))
    for part, want in zip(parts, expected(images, sizes), strict=True):
        torch.testing.assert_close(adapter(part), want)
        assert adapter.last is not None
        assert not adapter.last.updated


def test_the_count_is_bounded_so_that_the_mean_follows_the_stream(images: Tensor) -> None:
    adapter = navia.adapt(VIT, "none", center=True)
    for _ in range(4):
        adapter(images)
    assert float(adapter.method.memory["stream_count"]) == 128


def test_predict_uses_the_stream_so_far_and_changes_nothing(images: Tensor) -> None:
    adapter = navia.adapt(VIT, "none", center=True)
    with torch.no_grad():
        assert torch.equal(adapter.predict(images[:4]), VIT(images[:4]))
    adapter(images[:16])
    first, together = adapter.predict(images[16:17]), adapter.predict(images[16:24])
    torch.testing.assert_close(first, together[:1])
    assert not torch.equal(first, VIT(images[16:17]))


def test_state_is_saved_reset_and_left_alone_by_adapt_every(images: Tensor, tmp_path: Path) -> None:
    adapter, sparse = navia.adapt(VIT, "none", center=True), navia.adapt(VIT, "none", center=True, adapt_every=3)
    for part in images.split(8):
        assert torch.equal(adapter(part), sparse(part))
    adapter.save(tmp_path / "delta.safetensors")
    other = navia.adapt(VIT, "none", center=True)
    other.load(tmp_path / "delta.safetensors")
    assert torch.equal(other.predict(images[:4]), adapter.predict(images[:4]))
    first = expected(images, (8,))[0]
    adapter.reset()
    torch.testing.assert_close(adapter(images[:8]), first)


def test_shift_and_center_exclude_each_other() -> None:
    with pytest.raises(SpecError, match="one of them"):
        navia.adapt(VIT, "none", source="embedded", shift=True, center=True)
    with pytest.raises(SpecError, match="one of them"):
        navia.adapt(VIT, "foa_bp", source="embedded", center_skipped=True)


def test_batches_that_are_left_out_are_centred_on_request(images: Tensor) -> None:
    """Without learning rates navia is the source model: batches with an update are its own, the others those of `center`."""
    still = {"lr": 0.0, "eta_delta": 0.0, "eta_delta_l": 0.0}
    adapter = navia.adapt(VIT, "navia", source="embedded", adapt_every=2, center_skipped=True, **still)
    wanted = expected(images, (8,) * 5)
    for number, part in enumerate(images.split(8)):
        logits = adapter(part)
        with torch.no_grad():
            torch.testing.assert_close(logits, VIT(part) if number % 2 == 0 else wanted[number], atol=1e-4, rtol=1e-4)
        assert adapter.last is not None
        assert adapter.last.updated == (number % 2 == 0)
