"""Ready for a GPU, tested without one: devices of new tensors, waits for the device, forwards of fake CUDA tensors."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

import navia
from navia.data.loader import iterate_batches, move_images
from navia.errors import InputError
from navia.evaluation.synchronization import count_synchronizations
from navia.methods.lame import laplacian_optimisation
from navia.models.forward import TokenEdits, forward
from navia.reduction import parse
from tests.adaptation.test_contract import OPTIONS, PRECISIONS, REDUCERS, adapter_of, batches, case
from tests.families import MODELS, THREE, build, images_for

VIT = THREE[0]

# every pair of method and reducer on one library, and on the others every method and every reducer once
pairs = pytest.mark.parametrize(
    ("method", "reduce", "family"),
    [
        case(m, r, f)
        for f in THREE
        for at, m in enumerate(OPTIONS)
        for other, r in enumerate(REDUCERS)
        if f == VIT or other == at % len(REDUCERS)
    ],
)


# ---- (a) the device of new tensors


@pairs
def test_new_tensors_are_made_on_the_device_of_the_images(method: str, reduce: str, family: str) -> None:
    """A tensor made without a device lands on meta here, where nothing can be computed with it."""
    expected = adapter_of(method, reduce, family)
    stream = batches(family, 3)
    answers = [expected(x) for x in stream]
    with torch.device("meta"):
        adapter = adapter_of(method, reduce, family)
        found = [adapter(x) for x in stream]
        adapter.predict(stream[0])
        adapter.reset()
    assert all(torch.equal(a, b) for a, b in zip(found, answers, strict=True))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {"shift": True}),
        ("navia", {"token": "new"}),
        ("navia", {"token": "re-initialised", "shift": True, "bias_position": "block_input"}),
        ("align", {"min_batch": 16}),
        ("sar", {"variant": "foa"}),
        ("eata", {"fisher": 0.0}),
        ("cotta", {"confidence_threshold": 1.0, "augmentations": 2}),
        ("lame", {"affinity": "rbf"}),
        ("foa", {"diagonal": True, "min_batch": 16}),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_so_they_are_with_other_options(method: str, options: dict[str, Any], asynchronous: bool) -> None:
    stream = batches(VIT)
    adapter_of(method, "tome:2", VIT)  # measures the source statistics
    with torch.device("meta"):
        adapter = adapter_of(method, "tome:2", VIT, classes=[7, 2, 3, 9], **options)
        adapter.vit.asynchronous = asynchronous
        answers = [adapter(x) for x in stream]
        adapter.load_state_dict(adapter.state_dict())
    assert all(a.isfinite().all() for a in answers)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("reduce", REDUCERS)
def test_so_they_are_in_other_precisions(reduce: str, precision: str) -> None:
    """The layers are converted inside, too."""
    stream, found = batches(VIT), {}
    for device in ("cpu", "meta"):
        vit = navia.load(build(VIT), precision=precision)
        with torch.device(device):
            source = navia.SourceStatistics.measure(vit, stream[0], reduce)
            adapter = navia.adapt(vit, "navia", reduce, source)
            found[device] = [adapter(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(found["cpu"], found["meta"], strict=True))


# ---- (b) waits for the device


def as_on_a_gpu(method: str, reduce: str = "tome:2", family: str = VIT, **options: Any) -> navia.Adapter:
    adapter = adapter_of(method, reduce, family, **options)
    adapter.vit.asynchronous = True
    adapter.prediction_vit.asynchronous = True
    return adapter


# method: number of waits in a step, and why more than the one read
ALLOWED = {
    "cotta": (2, "the confidence of the source model decides whether the views are computed"),
    "deyo": (2, "the second forward runs on the selected images only: their number is needed"),
    "foa": (3, "CMA-ES runs on the host: it needs the best prompts and the losses of all candidates"),
}


@pytest.mark.parametrize("guard", [True, False])
@pairs
def test_a_step_waits_once_for_the_device(method: str, reduce: str, family: str, guard: bool) -> None:
    adapter = as_on_a_gpu(method, reduce, family, guard=guard)
    stream = batches(family, 3)
    adapter(stream[0])
    allowed, reason = ALLOWED.get(method, (1, "loss, guard and entropy are read together"))
    for x in stream[1:]:
        with count_synchronizations() as waits:
            adapter(x)
        assert sum(waits.values()) == allowed, f"{dict(waits)}; {reason}"
    with count_synchronizations() as waits:
        adapter.predict(stream[0])
    assert not waits


@pytest.mark.parametrize("every", [2, "auto"])
@pytest.mark.parametrize("method", ["tent", "navia"])
def test_so_it_does_with_sparse_adaptation(method: str, every: Any) -> None:
    adapter = as_on_a_gpu(method, adapt_every=every)
    adapter.schedule.interval = 4  # past the first updates
    for x in batches(VIT, 6):
        with count_synchronizations() as waits:
            adapter(x)
        assert sum(waits.values()) == 1, dict(waits)
    assert 0 < adapter.update_share < 1


@pytest.mark.parametrize("family", PRECISIONS)
@pytest.mark.parametrize("reduce", REDUCERS)
def test_so_it_does_in_other_precisions(reduce: str, family: str) -> None:
    adapter = as_on_a_gpu("navia", reduce, family)
    for x in batches(family):
        with count_synchronizations() as waits:
            adapter(x)
        assert sum(waits.values()) == 1, dict(waits)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {"shift": True}),
        ("navia", {"shift": True}),
        ("align", {"min_batch": 16}),
        ("eata", {"margin": 0.0}),
        ("sar", {"margin": 0.0}),
        ("sar", {"variant": "foa"}),
        ("cotta", {"augmentations": 0}),
    ],
)
def test_so_it_does_with_other_options(method: str, options: dict[str, Any]) -> None:
    adapter = as_on_a_gpu(method, **options)
    for x in batches(VIT, 4):
        with count_synchronizations() as waits:
            adapter(x)
        assert sum(waits.values()) == 1, dict(waits)


def test_the_counter_sees_what_waits() -> None:
    x = torch.arange(4.0)
    for wait in (
        lambda: x.sum().item(),
        lambda: float(x[0]),
        lambda: bool(x.any()),
        lambda: x[x > 1],
        lambda: x.masked_select(x > 1),
        lambda: torch.bincount(x.long()),
        lambda: torch.equal(x, x),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.to("cpu"),
        lambda: torch.tensor(3.0),
        lambda: x.nonzero(),
    ):
        with count_synchronizations() as waits:
            wait()
        assert sum(waits.values()) >= 1


SELECTIVE: list[tuple[str, dict[str, Any]]] = [  # some batches of two images have none that is kept
    ("eata", {"margin": 0.94}),
    ("sar", {"margin": 0.94}),
    ("sar", {"margin": 0.94, "variant": "foa"}),
    ("deyo", {"filter_margin": 0.96}),
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in OPTIONS),
    ("eata", {"margin": 0.0}),
    ("eata", {"redundancy": 0.2}),
    ("sar", {"margin": 0.0}),
    ("sar", {"recover": 2.0}),
]


@pytest.mark.parametrize(("method", "options"), SELECTIVE + OTHERS)
def test_results_do_not_depend_on_when_values_are_read(method: str, options: dict[str, Any]) -> None:
    """Steps that keep no image change nothing, selections select the same, LAME stops at the same place."""
    one, other = adapter_of(method, "tome:2", VIT, **options), as_on_a_gpu(method, **options)
    kept = []
    for x in [part for batch in batches(VIT, 2) for part in batch.split(2)]:
        assert torch.equal(one(x), other(x))
        assert one.last is not None
        assert other.last is not None
        for name in ("number", "entropy", "loss", "discrepancy", "kept", "guard", "note"):
            assert getattr(one.last, name) == getattr(other.last, name), name
        kept.append(one.last.kept)
    before, after = one.method.tensors(), other.method.tensors()
    for name, value in after.items():
        assert torch.equal(value, before.get(name, torch.zeros_like(value))), name
    if (method, options) in SELECTIVE:
        assert any(kept)
        assert 0 in kept[kept.index(max(kept)) :], "no step without images after one with them"


def test_a_momentum_is_kept_over_a_step_without_images() -> None:
    """The optimizer's step is undone on the device: neither the parameters nor the momentum change."""
    adapter = as_on_a_gpu("eata", guard=False)
    adapter(batches(VIT)[0])
    before = copy.deepcopy(adapter.method.state())
    object.__setattr__(adapter.options, "margin", 0.0)
    adapter(batches(VIT)[1])
    assert adapter.last is not None
    assert (adapter.last.kept, adapter.last.loss) == (0, None)
    after = adapter.method.state()
    momentum = [state["optimizer"]["state"] for state in (before, after)]
    assert momentum[0]
    assert all(torch.equal(momentum[1][k]["momentum_buffer"], v["momentum_buffer"]) for k, v in momentum[0].items())
    assert all(torch.equal(after["parameters"][name], value) for name, value in before["parameters"].items())
    assert torch.equal(after["memory"]["mean_prediction"], before["memory"]["mean_prediction"])


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_lame_stops_at_the_same_place(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(12, 5, generator=generator).softmax(dim=1)
    w = torch.rand(12, 12, generator=generator)
    w = (w + w.T) / 2
    assert torch.equal(laplacian_optimisation(p, w, steps), laplacian_optimisation(p, w, steps, reads_synchronize=True))


# ---- values of images on a GPU


def spoilt(value: float) -> Tensor:
    x = batches(VIT)[0].clone()
    x[3, 0, 0, 0] = value
    return x


@pytest.mark.parametrize("method", ["navia", "tent", "cotta", "foa", "none"])
@pytest.mark.parametrize(("value", "complaint"), [(float("nan"), "rows 3"), (255.0, "not normalised")])
def test_bad_values_are_found_at_the_end_of_a_step_and_its_update_is_undone(
    method: str, value: float, complaint: str
) -> None:
    adapter, fresh = as_on_a_gpu(method), as_on_a_gpu(method)
    x = batches(VIT)[0]
    adapter(x)
    with pytest.raises(InputError, match=complaint) as caught:
        adapter(spoilt(value))
    assert "update" not in str(caught.value)
    assert adapter.steps == 1
    source, now = fresh.method.tensors(), adapter.method.tensors()  # the source: there was no snapshot yet
    assert source.keys() == now.keys()
    assert all(torch.equal(now[name], value) for name, value in source.items())
    assert torch.equal(adapter(x), fresh(x))


def test_after_a_snapshot_it_is_restored() -> None:
    adapter = as_on_a_gpu("navia", guard=navia.GuardOptions(every=1))
    adapter(batches(VIT)[0])
    good = {name: value.clone() for name, value in adapter.method.tensors().items()}
    with pytest.raises(InputError, match="rows 3"):
        adapter(spoilt(float("nan")))
    assert all(torch.equal(value, good[name]) for name, value in adapter.method.tensors().items())


def test_without_a_guard_it_says_that_the_update_was_made() -> None:
    adapter = as_on_a_gpu("tent", guard=False)
    with pytest.raises(InputError, match=r"rows 3 of the batch\); the update with them was made"):
        adapter(spoilt(float("nan")))


def test_predict_checks_the_shape_but_not_the_values() -> None:
    adapter = as_on_a_gpu("tent")
    adapter.predict(spoilt(255.0))
    with pytest.raises(InputError, match="4 dimensions"):
        adapter.predict(torch.arange(12))
    with pytest.raises(InputError, match="not normalised"):
        adapter.vit(spoilt(255.0))  # a single forward checks everything


def test_pixels_from_0_to_1_still_cause_a_warning() -> None:
    adapter = as_on_a_gpu("tent")
    with pytest.warns(UserWarning, match="lie between 0 and 1"):
        adapter(batches(VIT)[0].sigmoid())


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("meta", True)])
def test_reads_synchronize_on_all_devices_but_the_cpu(device: str, waits: bool) -> None:
    assert build(VIT).to(device).reads_synchronize is waits


# ---- (c) forwards of fake CUDA tensors


class Indexing(TorchFunctionMode):
    """x[...] by operators: Python's own indexing calls the CUDA driver, which a CPU build does not have."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__getitem__":
            return self.index(*args)
        if func.__name__ == "__setitem__":
            self.index(args[0], args[1]).zero_().add_(args[2])  # copy_ calls the driver as well
            return None
        return func(*args, **(kwargs or {}))

    def index(self, x: Tensor, keys: Any) -> Tensor:
        keys = keys if isinstance(keys, tuple) else (keys,)
        gap = x.dim() - sum(key is not None and key is not Ellipsis for key in keys)
        dim, tensors = 0, {}
        for key in keys:
            if isinstance(key, int):
                x = x.select(dim, key)
                continue
            if key is None:
                x = x.unsqueeze(dim)
            elif isinstance(key, slice):
                x = torch.ops.aten.slice(x, dim, key.start, key.stop, key.step or 1)
            elif isinstance(key, Tensor):
                tensors[dim] = key
            dim += gap if key is Ellipsis else 1
        return torch.ops.aten.index(x, [tensors.get(i) for i in range(max(tensors) + 1)]) if tensors else x


def to_fake_cuda(vit: navia.ViT) -> navia.ViT:
    """The model with fake CUDA tensors as weights, inside of a FakeTensorMode."""
    for module in vit.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype, device="cuda")
                module._parameters[name] = nn.Parameter(fake, requires_grad=False)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda")
    return vit


MORE_REDUCERS = ("evit:2,fuse=false", "tofu:2,compat=true", "tome:2,proportional=false")


@pytest.mark.parametrize(
    ("family", "reduce"),
    [pytest.param(f, r, marks=() if f == VIT else pytest.mark.slow) for f in MODELS for r in REDUCERS]
    + [(VIT, r) for r in MORE_REDUCERS],
)
def test_forward_of_cuda_tensors(family: str, reduce: str) -> None:
    """A CPU build cannot compute on CUDA tensors, but it knows shapes and devices, and refuses to mix devices."""
    vit = build(family)
    batch = images_for(vit).shape
    with FakeTensorMode(), Indexing(), torch.no_grad():
        vit = to_fake_cuda(vit)
        images, vector = torch.empty(batch, device="cuda"), torch.empty(vit.embed_dim, device="cuda")
        classes = torch.empty(5, dtype=torch.long, device="cuda")
        edits = TokenEdits(cls_shift=vector, cls_bias={1: vector}, prompts=vector.expand(2, -1), head_shift=vector)
        traced = forward(vit, images, parse(reduce), edits=edits, classes=classes, attention=True, keys=True, trace=True)
        assert traced.tokens.sources is not None
        assert traced.logits.shape == (len(images), 5)
        plain = forward(vit, images, parse(reduce), features=True)
        assert plain.features is not None
        tensors = (traced.logits, traced.tokens.values, traced.tokens.sources, plain.logits, plain.pooled, plain.features)
        assert all(tensor.device.type == "cuda" for tensor in tensors)
        found = tuple(plain.logits.shape), tuple(plain.pooled.shape), tuple(plain.features.shape), plain.counts
    with torch.no_grad():
        vit = build(family)
        expected = forward(vit, images_for(vit), parse(reduce), features=True)
    assert expected.features is not None
    wanted = tuple(expected.logits.shape), tuple(expected.pooled.shape), tuple(expected.features.shape), expected.counts
    assert found == wanted


# ---- copies to the device


@pytest.mark.parametrize(("device", "pinned"), [(None, False), ("cpu", False), ("cuda", True)])
def test_images_for_cuda_are_decoded_into_pinned_memory(
    device: str | None, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch's loader is told: without a GPU it cannot pin memory."""
    told: list[bool] = []

    def loader(*args: Any, pin_memory: bool, **settings: Any) -> Any:
        told.append(pin_memory)
        return DataLoader(*args, **settings)

    monkeypatch.setattr("navia.data.loader.DataLoader", loader)
    pre, where = navia.load("embedded").preprocessing, None if device is None else torch.device(device)
    images, _ = next(iterate_batches("embedded", pre, 4, device=where))
    samples = TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
    assert len(list(iterate_batches(samples, pre, 4, device=where))) == 1
    assert told == [pinned, pinned]


class Copies(TorchFunctionMode):
    """Records `non_blocking` of copies, and makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.non_blocking: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "to":
            return func(*args, **(kwargs or {}))
        self.non_blocking.append(kwargs["non_blocking"])
        return args[0]


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True)])
def test_only_copies_to_cuda_do_not_wait(device: str, expected: bool) -> None:
    with Copies() as copies:
        move_images(torch.zeros(2), torch.device(device))
    assert copies.non_blocking == [expected]
