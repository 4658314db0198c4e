"""The t-SNE of a cell: which pictures it shows, in which state, and what is refused."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from navia.adaptation.adapter import Adapter
from navia.bench import cell as bench_cell
from navia.bench.cell import Cell, run_cell
from navia.bench.grid import cells
from navia.bench.row import Row
from navia.bench.run import select_images
from navia.bench.spec import TsneSpec, parse_spec
from navia.data import sample
from navia.data.loader import Loader
from navia.data.sources import OpenedData, open_domains
from navia.data.streams import make_stream
from navia.errors import InputError, NaviaError, SpecError
from navia.evaluation.explain import neighbour_accuracy
from navia.models.load import load

pytestmark = pytest.mark.slow

SPEC = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, severity: 1, images: 96}
source: {images: 16}
runs: {method: [none, navia], reduce: tome:8, adapt_for: 2, tsne: {blocks: [3, 11]}}
batch: 16
"""


def both() -> list[Cell]:
    return cells(parse_spec(SPEC, "a"))


@pytest.fixture(scope="module")
def run() -> dict[str, tuple[Row, dict[str, Any], Adapter]]:
    """Row, trace and adapter by method. The adapter is the cell's own, kept while the cell makes it."""
    made: list[Adapter] = []
    original = bench_cell.adapt

    def kept(*arguments: Any, **options: Any) -> Adapter:
        made.append(original(*arguments, **options))
        return made[-1]

    bench_cell.adapt = kept
    try:
        return {one.method: (*run_cell(one), made[-1]) for one in both()}
    finally:
        bench_cell.adapt = original


def last_third() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels that the cells score, read afresh."""
    vit = load("embedded")
    domains = open_domains("embedded", 10, corruptions=["contrast"], severity=1).domains
    batches = list(Loader(make_stream(domains, seed=0, limit=96), vit.preprocessing, 16))[4:]
    return torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])


def test_the_trace_has_a_finite_point_for_every_held_out_picture_of_the_most_frequent_classes(run: Any) -> None:
    _, labels = last_third()
    counts = Counter(labels.tolist())
    for row, trace, _ in run.values():
        found = trace["tsne"]
        assert len(found["classes"]) == 8
        fewest = min(counts[label] for label in found["classes"])
        assert all(counts[label] <= fewest for label in range(10) if label not in found["classes"])
        assert found["names"] == [sample.CLASSES[label] for label in found["classes"]]
        wanted = [label for label in labels.tolist() if label in found["classes"]]
        assert [found["classes"][place] for place in found["labels"]] == wanted
        assert [panel["block"] for panel in found["panels"]] == [3, 11]
        for panel in found["panels"]:
            assert torch.tensor(panel["points"]).shape == (len(wanted), 2)
            assert bool(torch.isfinite(torch.tensor(panel["points"])).all())
        assert "points" not in str(row)
        assert row.tsne == TsneSpec(blocks=(3, 11))
        assert row.count == len(labels) == 32


def test_neighbours_are_those_of_the_features_in_the_state_that_was_reached(run: Any) -> None:
    """The whole last third in one batch through the one forward, in the adapter's state after the cell."""
    images, labels = last_third()
    for _, trace, adapter in run.values():
        found = trace["tsne"]
        kept = torch.tensor([label in found["classes"] for label in labels.tolist()])
        with torch.no_grad():
            features = adapter.method.forward(images, features=True).features
        assert features is not None
        for panel in found["panels"]:
            assert panel["neighbours"] == neighbour_accuracy(features[kept, panel["block"]], labels[kept])
    none, navia = (trace["tsne"]["panels"] for _, trace, _ in run.values())
    assert none[0]["points"] != navia[0]["points"]


def test_cotta_is_shown_as_its_teacher_who_answers(run: Any) -> None:
    """One who never moves sees what the model sees without adaptation, whatever the student learns."""
    still = both()[1].model_copy(update={"method": "cotta", "options": {"lr": 0.1, "ema_decay": 1.0}})
    assert run_cell(still)[1]["tsne"]["panels"] == run["none"][1]["tsne"]["panels"]


def test_looking_changes_neither_the_row_nor_the_key_of_others(run: Any) -> None:
    plain = both()[1].model_copy(update={"tsne": None})
    row, trace = run_cell(plain)
    seen, told, adapter = run["navia"]
    assert "tsne" not in trace
    assert adapter.steps == 2
    assert (row.correct, row.nll, row.ece) == (seen.correct, seen.nll, seen.ece)
    assert {name: told[name] for name in trace} == trace
    assert row.key != seen.key


def test_chosen_classes_are_shown_in_the_order_given() -> None:
    chosen = both()[0].model_copy(update={"tsne": TsneSpec(blocks=(0,), classes=(8, 3, 4))})
    _, trace = run_cell(chosen)
    assert trace["tsne"]["names"] == ["bag", "dress", "coat"]
    _, labels = last_third()
    wanted = [label for label in labels.tolist() if label in (8, 3, 4)]
    assert [(8, 3, 4)[place] for place in trace["tsne"]["labels"]] == wanted


def test_what_the_model_lacks_is_refused_by_name_before_anything_adapts() -> None:
    one = both()[1]
    with pytest.raises(SpecError, match=r"tsne names blocks 12, 30, but the model has blocks 0\.\.11"):
        run_cell(one.model_copy(update={"tsne": TsneSpec(blocks=(3, 12, 30))}))
    with pytest.raises(SpecError, match=r"tsne names class 11, but the model has classes 0\.\.9"):
        run_cell(one.model_copy(update={"tsne": TsneSpec(blocks=(3,), classes=(1, 11))}))


def held_out(tsne: TsneSpec, opened: OpenedData, images: int | None = None, batch: int = 16) -> Any:
    vit = load("embedded")
    loader = Loader(make_stream(opened.domains, limit=images), vit.preprocessing, batch)
    stream, shown = select_images(tsne, vit, opened, loader)
    return SimpleNamespace(stream=stream, **shown)


def test_classes_without_a_picture_are_refused_or_give_way() -> None:
    opened = open_domains("embedded", 10)
    few = held_out(TsneSpec(blocks=(3,)), opened, 48)
    absent = next(label for label in range(10) if label not in few.classes)
    with pytest.raises(InputError, match=rf"class {absent} \({sample.CLASSES[absent]}\), but the last third .* no image"):
        held_out(TsneSpec(blocks=(3,), classes=(absent, few.classes[0])), opened, 48)
    for lacking in ((absent, few.classes[0]), (1, 99)):
        assert held_out(TsneSpec(blocks=(3,), classes=lacking, or_frequent=True), opened, 48).classes == few.classes


def test_too_few_pictures_and_pictures_without_labels_are_refused() -> None:
    with pytest.raises(InputError, match="needs at least 2 classes and 6 labelled images in the last third"):
        held_out(TsneSpec(blocks=(3,)), open_domains("embedded", 10), images=12, batch=4)
    unlabelled = open_domains("embedded", 10)
    nameless = replace(unlabelled.domains[0], images=replace(unlabelled.domains[0].images, labels=None))
    with pytest.raises(InputError, match="there are 0 and 0"):
        held_out(TsneSpec(blocks=(3,)), replace(unlabelled, domains=(nameless,)))


def test_labels_of_data_with_fewer_classes_are_the_models_classes() -> None:
    """As of ImageNet-R: the data count 5 classes of their own, which are every second one of the model."""
    opened = open_domains("embedded", 10)
    whole = opened.domains[0].images
    halved = replace(whole, labels=[label // 2 for label in whole.labels])
    masked = replace(opened, domains=(replace(opened.domains[0], images=halved),), classes=(1, 3, 5, 7, 9))
    found = held_out(TsneSpec(blocks=(3,)), masked)
    assert found.classes == [1, 3, 5, 7, 9]
    assert found.names == [sample.CLASSES[label] for label in (1, 3, 5, 7, 9)]
    (segment,) = found.stream.segments
    assert [halved.labels[position] for _, position in segment.indices] == found.labels
    assert set(held_out(TsneSpec(blocks=(3,), classes=(9, 5)), masked).labels) == {0, 1}


def test_several_seeds_hold_out_other_pictures_also_without_adaptation() -> None:
    whole = SPEC.replace(", images: 96", "") + "seeds: [0, 1]\n"
    assert [(one.method, one.seed) for one in cells(parse_spec(whole, "a"))] == [
        ("none", 0),
        ("navia", 0),
        ("none", 1),
        ("navia", 1),
    ]
    with pytest.raises(NaviaError, match="200 batches to adapt to"):
        run_cell(both()[0].model_copy(update={"adapt_for": 200}))
