"""One batch at a time: what a step that only answers says of itself, and when a clock lets a method adapt."""

import numpy as np
import pytest
import torch

import navia
from navia.adaptation.step import Step
from navia.bench.cell import _ms_per_image
from navia.bench.run import BatchResult, predict_and_adapt, predict_only, run_realtime, step_ratios
from navia.data.loader import Batch
from navia.methods.features import entropy


def batch_of(inputs: dict[str, np.ndarray], number: int, reset: bool = False) -> Batch:
    images = torch.from_numpy(inputs["source_images"])[16 * number : 16 * number + 16]
    return Batch(images, torch.zeros(16, dtype=torch.int64), ("a",) * 16, ("clean",) * 16, number, reset)


def test_answering_alone_tells_of_its_own_batch(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    adapter = navia.adapt(golden_vit, "tent", lr=0.05)
    fresh = predict_only(adapter, batch_of(golden_inputs, 1), "why")  # before any step, as after a reset
    assert fresh.step.entropy == pytest.approx(entropy(fresh.logits).mean().item())
    assert fresh.step.number == 0
    predict_and_adapt(adapter, batch_of(golden_inputs, 0))
    later = predict_only(adapter, batch_of(golden_inputs, 1), "why")
    assert later.step.entropy == pytest.approx(entropy(later.logits).mean().item())
    assert later.step.entropy != fresh.step.entropy
    assert (later.step.number, later.step.kept, later.step.note) == (1, 0, "why")


def test_the_clock_decides_which_batches_are_missed(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    for ratio, expected in ((1.0, "aaaaaa"), (1.67, "a.aa.a"), (2.0, "a.aa.a"), (3.0, "a..a..")):
        batches = [batch_of(golden_inputs, number % 2, reset=number == 3) for number in range(6)]
        answers = run_realtime(navia.adapt(golden_vit, "tent"), batches, ratio)
        assert "".join("." if a.step.note else "a" for a in answers) == expected


def test_the_clock_counts_batches_that_are_not_due_as_forwards(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
) -> None:
    """An update of three forwards misses two batches, a batch that is not due misses none."""
    batches = [batch_of(golden_inputs, number % 2) for number in range(8)]
    answers = run_realtime(navia.adapt(golden_vit, "tent", adapt_every=2), batches, 3.0, 1.0)
    notes = {None: "a", "not due": "s", "missed: still busy": "."}
    assert "".join(notes[answer.step.note] for answer in answers) == "a..sa..s"


def test_both_kinds_of_steps_are_timed_and_change_nothing(
    golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]
) -> None:
    adapter = navia.adapt(golden_vit, "tent", adapt_every="auto")
    before = {name: value.clone() for name, value in adapter.tensors().items()}
    ratios = step_ratios(golden_vit, adapter, batch_of(golden_inputs, 0).images, rounds=1)
    assert all(ratio >= 1 for ratio in ratios)
    assert adapter.steps == adapter.schedule.batches == 0
    assert all(torch.equal(value, before[name]) for name, value in adapter.tensors().items())


def test_the_pace_of_a_row_is_that_of_batches_that_were_adapted_to(golden_inputs: dict[str, np.ndarray]) -> None:
    batch, logits = batch_of(golden_inputs, 0), torch.zeros(16, 10)
    alone, whole = (Step(0, 16, 0.0, None, None, 0, None, None, 0.16, update) for update in (0.0, 0.48))
    assert _ms_per_image([BatchResult(batch, logits, step) for step in (whole, alone, alone)]) == pytest.approx(40)
    assert _ms_per_image([BatchResult(batch, logits, alone)]) == pytest.approx(10)
