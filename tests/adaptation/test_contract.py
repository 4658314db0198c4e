"""What every method promises with every reducer on every library's ViT."""

import copy
import io
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import navia
from navia.errors import InputError
from tests.families import THREE, build, images_for

# lively settings, so that every method really moves within a few small batches of random images
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "tent": {"lr": 1e-2},
    "lame": {},
    "cotta": {"lr": 1e-2, "restore": 0.05},
    "sar": {"lr": 1e-2, "margin": 1.0},
    "eata": {"lr": 1e-2, "margin": 1.0, "redundancy": 1.0},
    "deyo": {"lr": 1e-2, "filter_margin": 1.0, "plpd": 0.0},
    "foa": {"population": 4},
    "foa_bp": {},
    "align": {},
    "navia": {},
}
ANSWERS_AFTER_LEARNING = ("lame", "foa")
REDUCERS = ("none", "tome:2", "evit:2", "tofu:2")

HALF = "timm plain, bfloat16"
PRECISIONS = {f"timm plain in {name}": name for name in ("bfloat16", "int8")}


def case(method: str, reduce: str, family: str) -> Any:
    """The quick tests see one library."""
    return pytest.param(method, reduce, family, marks=() if family == THREE[0] else pytest.mark.slow)


every = pytest.mark.parametrize(
    ("method", "reduce", "family"),
    [
        case(m, r, f)
        for f in (*THREE, HALF, *PRECISIONS)
        for r in REDUCERS
        for m in OPTIONS
        if f not in PRECISIONS or m != "cotta"  # it tunes the layers that would be frozen
    ],
)

# What is written once for all methods: every pair of method and reducer on one library, and on the others every method with
# one reducer and one method with every reducer.
pairs = pytest.mark.parametrize(
    ("method", "reduce", "family"),
    [case(m, r, f) for f in THREE for r in REDUCERS for m in OPTIONS if f == THREE[0] or r == "tome:2" or m == "navia"],
)


@cache
def model(family: str) -> navia.ViT:
    if family in PRECISIONS:
        return navia.load(build("timm plain"), precision=PRECISIONS[family])
    return build("timm plain").to(torch.bfloat16) if family == HALF else build(family)


@cache
def source(family: str, reduce: str) -> navia.SourceStatistics:
    return navia.SourceStatistics.measure(model(family), images_for(model(family), 48, seed=9), reduce, fisher=True)


def adapter_of(method: str, reduce: str, family: str, **options: Any) -> navia.Adapter:
    given = {**OPTIONS[method], **options}
    return navia.adapt(model(family), method, reduce, source(family, reduce), **given)


def batches(family: str, count: int = 3, size: int = 12) -> list[Tensor]:
    return [images_for(model(family), size, seed=100 + i) * 1.5 + 0.3 for i in range(count)]


def test_all_methods_are_under_contract() -> None:
    assert sorted(OPTIONS) == navia.list_methods()
    assert {r.split(":")[0] for r in REDUCERS} == set(navia.list_reducers())


@every
def test_answers_first_then_moves_only_what_it_declares(method: str, reduce: str, family: str) -> None:
    vit = model(family)
    before = {name: p.detach().clone() for name, p in vit.named_parameters()}
    flags = {name: p.requires_grad for name, p in vit.named_parameters()}
    adapter = adapter_of(method, reduce, family)
    stream = batches(family)
    answers = [adapter(x) for x in stream]
    if method not in ANSWERS_AFTER_LEARNING:
        with torch.no_grad():
            assert torch.equal(answers[0], vit(stream[0], reduce).float())
    assert all(a.isfinite().all() and not a.requires_grad for a in answers)
    for name, p in vit.named_parameters():
        assert torch.equal(p, before[name]), f"{name} of the given model moved"
        assert p.requires_grad == flags[name]
        assert p.grad is None
    own = dict(adapter.method.vit.model.named_parameters())
    for name, p in own.items():
        if name not in adapter.method.parameters:
            assert torch.equal(p, before[f"model.{name}"]), f"undeclared {name} moved"
    if adapter.method.parameters:
        moved = [n for n, p in adapter.method.parameters.items() if n not in own or (p != before[f"model.{n}"]).any()]
        assert moved, "nothing moved: the test's settings do not exercise the method"
    assert all(p.dtype == torch.float32 for p in adapter.method.parameters.values())
    assert all(a.dtype == torch.float32 for a in answers)


@pairs
@pytest.mark.parametrize("adapt_every", [3, "auto"])
def test_sparse_adaptation_predicts_all_batches(method: str, reduce: str, family: str, adapt_every: Any) -> None:
    """Batches that are not due give the logits of `predict` and leave the parameters alone; the others give those of a dense
    run as long as nothing was skipped."""
    sparse, dense = adapter_of(method, reduce, family, adapt_every=adapt_every), adapter_of(method, reduce, family)
    stream = batches(family, 4)
    assert torch.equal(sparse(stream[0]), dense(stream[0]))
    if adapt_every == "auto":
        sparse.schedule.wait = 2
    for x in stream[1:3]:
        before = {name: p.detach().clone() for name, p in sparse.method.parameters.items()}
        expected = sparse.predict(x)
        assert torch.equal(sparse(x), expected)
        assert not sparse.last.updated
        assert all(torch.equal(p, before[name]) for name, p in sparse.method.parameters.items())
    assert sparse(stream[3]).isfinite().all()
    assert sparse.last.updated == (method not in ("none", "lame"))


@pairs
def test_reset_is_exact(method: str, reduce: str, family: str) -> None:
    adapter = adapter_of(method, reduce, family)
    stream = batches(family)
    first = [adapter(x) for x in stream]
    adapter.reset()
    assert adapter.last is None
    again = [adapter(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pairs
def test_resume_is_exact(method: str, reduce: str, family: str) -> None:
    """A stream that is cut and continued from its state in another adapter gives the uninterrupted stream's bits."""
    whole, cut = adapter_of(method, reduce, family), adapter_of(method, reduce, family)
    stream = batches(family, 4)
    expected = [whole(x) for x in stream]
    for x in stream[:2]:
        cut(x)
    buffer = io.BytesIO()
    torch.save(cut.state_dict(), buffer)
    buffer.seek(0)
    resumed = adapter_of(method, reduce, family)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert all(torch.equal(resumed(x), want) for x, want in zip(stream[2:], expected[2:], strict=True))


@pairs
def test_saved_delta_restores_the_answers(method: str, reduce: str, family: str, tmp_path: Path) -> None:
    adapter = adapter_of(method, reduce, family)
    stream = batches(family)
    for x in stream:
        adapter(x)
    adapter.save(tmp_path / "delta.safetensors")
    other = adapter_of(method, reduce, family)
    other.load(tmp_path / "delta.safetensors")
    assert torch.equal(adapter.predict(stream[0]), other.predict(stream[0]))


@pairs
def test_batch_of_one(method: str, reduce: str, family: str) -> None:
    adapter = adapter_of(method, reduce, family)
    for i in range(11):
        logits = adapter(images_for(model(family), 1, seed=i))
        assert logits.shape == (1, 11)
        assert logits.isfinite().all()
        assert adapter.last is not None
        assert adapter.last.guard is None
    assert all(p.isfinite().all() for p in adapter.method.parameters.values())


@pairs
def test_a_broken_batch_changes_nothing(method: str, reduce: str, family: str) -> None:
    adapter = adapter_of(method, reduce, family)
    x = batches(family)[0]
    adapter(x)
    before = {name: value.clone() for name, value in adapter.method.tensors().items()}
    broken = x.clone()
    broken[3, 0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="rows 3"):
        adapter(broken)
    with pytest.raises(InputError, match="4 dimensions"):
        adapter(torch.arange(12))  # labels where images belong
    after = adapter.method.tensors()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert adapter.steps == 1


@pairs
def test_class_mask(method: str, reduce: str, family: str) -> None:
    adapter = adapter_of(method, reduce, family, classes=[7, 2, 3, 9])
    for x in batches(family):
        assert adapter(x).shape == (12, 4)
    if method not in ANSWERS_AFTER_LEARNING:
        fresh = adapter_of(method, reduce, family, classes=[7, 2, 3, 9])
        with torch.no_grad():
            assert torch.equal(fresh(x), model(family)(x, reduce)[:, [7, 2, 3, 9]].float())


@pytest.mark.parametrize("method", OPTIONS)
def test_copies_and_pickles_go_on_alike(method: str) -> None:
    adapter = adapter_of(method, "tome:2", "timm plain")
    stream = batches("timm plain", 4)
    for x in stream[:2]:
        adapter(x)
    twin = copy.deepcopy(adapter)
    thawed = pickle.loads(pickle.dumps(adapter))
    for x in stream[2:]:
        answer = adapter(x)
        assert torch.equal(answer, twin(x))
        assert torch.equal(answer, thawed(x))


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_adapts_inside_the_callers_no_grad(method: str, mode: Any) -> None:
    plain, inside = (adapter_of(method, "tome:2", "timm plain") for _ in range(2))
    expected = [plain(x) for x in batches("timm plain")]
    with mode():
        answers = [inside(x) for x in batches("timm plain")]
    assert all(torch.equal(a, b) for a, b in zip(answers, expected, strict=True))


@pytest.mark.parametrize("method", OPTIONS)
def test_the_source_state_names_what_a_delta_is_measured_from(method: str) -> None:
    """One copy of the source serves reset, guard and delta, and no step moves it."""
    adapter = adapter_of(method, "tome:2", "timm plain")
    before = {name: value.clone() for name, value in adapter.method.tensors().items()}
    for x in batches("timm plain"):
        adapter(x)
    assert adapter.guard is not None
    source = adapter.method.state_tensors(adapter.guard.source)
    assert source.keys() == before.keys()
    assert all(torch.equal(source[name], value) for name, value in before.items())


def test_two_adapters_share_the_backbone_and_nothing_else() -> None:
    family = "timm plain"
    one, two = adapter_of("navia", "tome:2", family), adapter_of("tent", "tome:2", family)
    alone = adapter_of("navia", "tome:2", family)
    for x in batches(family, 4):
        answer = one(x)
        two(x)
        assert torch.equal(answer, alone(x))
    frozen = "blocks.0.mlp.fc1.weight"
    weights = [dict(a.method.vit.model.named_parameters())[frozen] for a in (one, two)]
    assert weights[0].data_ptr() == weights[1].data_ptr() == model(family).model.blocks[0].mlp.fc1.weight.data_ptr()
