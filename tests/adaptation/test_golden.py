"""Every method against the recorded outputs of its official implementation: logits of six batches, parameters at the end."""

import copy
import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import navia
from navia.methods import foa
from navia.methods.deyo import Deyo
from navia.methods.lame import LameOptions, affinity
from navia.models.forward import forward
from tests import families
from tests.families import golden
from tests.near_ties import assert_lame_stopped, clear_images, effect_of_near_ties, tolerance

LN = ("norm1_w", "norm1_b", "norm2_w", "norm2_b")


@dataclasses.dataclass(frozen=True)
class Case:
    method: str
    options: dict[str, Any]
    reduce: Any = "none"
    head_scale: float = 1.0
    stats: Any = "same"  # reducer of the source statistics


def _eata(**options: Any) -> dict[str, Any]:
    return {"margin": 0.4, **options}


DEYO_OFFICIAL = {"layers": "early", "lr": 5e-4}
TOFU = {1: navia.ToFu(1, compat=True), 2: navia.ToFu(2, compat=True)}

CASES: dict[str, Case] = {
    "tent": Case("tent", {}),
    "tent_dequanwang": Case("tent", {}),
    "tent_lr1e-2": Case("tent", {"lr": 1e-2}),
    "tent_tome_r2": Case("tent", {}, "tome:2"),
    "sar_foa": Case("sar", {"variant": "foa", "compat": True}),
    "sar_official": Case("sar", {"compat": True}),
    "sar_foa_headx4": Case("sar", {"variant": "foa", "compat": True}, head_scale=4),
    "sar_official_headx4": Case("sar", {"compat": True}, head_scale=4),
    "sar_tome_r2": Case("sar", {"variant": "foa", "compat": True}, "tome:2"),
    "eta_d0.05_lr0.00025": Case("eata", _eata(redundancy=0.05, lr=2.5e-4, fisher=0.0)),
    "eta_d0.4_lr0.00025": Case("eata", _eata(redundancy=0.4, lr=2.5e-4, fisher=0.0)),
    "eta_d0.4_lr0.01": Case("eata", _eata(redundancy=0.4, lr=1e-2, fisher=0.0)),
    "eta_d0.4_lr0.001_headx4": Case("eata", _eata(redundancy=0.4, lr=1e-3, fisher=0.0), head_scale=4),
    "eata_d0.05_lr0.00025": Case("eata", _eata(redundancy=0.05, lr=2.5e-4)),
    "eata_d0.4_lr0.00025": Case("eata", _eata(redundancy=0.4, lr=2.5e-4)),
    "eata_d0.4_lr0.01": Case("eata", _eata(redundancy=0.4, lr=1e-2)),
    "eata_tome_r2_d0.4_lr0.001": Case("eata", _eata(redundancy=0.4, lr=1e-3), "tome:2"),
    "eata_tome_r2_d0.4_lr0.01": Case("eata", _eata(redundancy=0.4, lr=1e-2), "tome:2"),
    "deyo": Case("deyo", DEYO_OFFICIAL),
    "deyo_lr0.01": Case("deyo", {**DEYO_OFFICIAL, "lr": 1e-2}),
    "deyo_headx4": Case("deyo", DEYO_OFFICIAL, head_scale=4),
    "deyo_allln_lr0.001": Case("deyo", {"lr": 1e-3}),
    "deyo_allln_lr0.01": Case("deyo", {"lr": 1e-2}),
    "deyo_allln_tome_r2_lr0.001": Case("deyo", {"lr": 1e-3}, "tome:2"),
    "deyo_allln_tome_r2_lr0.01": Case("deyo", {"lr": 1e-2}, "tome:2"),
    "cotta_det": Case("cotta", {"restore": 0.0}),
    "cotta_restore0.001": Case("cotta", {}),
    "lame_knn5": Case("lame", {}),
    "lame_knn5_nosym": Case("lame", {"symmetric": False}),
    "lame_rbf5": Case("lame", {"affinity": "rbf"}),
    "lame_linear": Case("lame", {"affinity": "linear"}),
    "foa_shift": Case("none", {"shift": True}),
    "foabp_shift": Case("foa_bp", {}),
    "foabp_noshift": Case("foa_bp", {"shift": False}),
    "foabp_tome_r1_statsToMe": Case("align", {}, "tome:1"),
    "foabp_tome_r2_statsToMe": Case("align", {}, "tome:2"),
    "foabp_tome_r1_statsDense": Case("align", {}, "tome:1", stats="none"),
    "foabp_tome_r2_statsDense": Case("align", {}, "tome:2", stats="none"),
    "evit_align_r2": Case("align", {}, "evit:2"),
    "evit_align_r3": Case("align", {}, "evit:3"),
    "tofu_align_r1": Case("align", {}, TOFU[1]),
    "tofu_align_r2": Case("align", {}, TOFU[2]),
    "navia_r0": Case("navia", {}, "tome:0"),
    "navia_r1": Case("navia", {}, "tome:1"),
    "navia_r2": Case("navia", {}, "tome:2"),
    "navia_r3": Case("navia", {}, "tome:3"),
    "navia_r2_L4": Case("navia", {"budget": 4}, "tome:2"),
    "navia_r2_deep": Case("navia", {"layers": "deep"}, "tome:2"),
    "navia_r2_uniform": Case("navia", {"layers": "uniform"}, "tome:2"),
    "navia_r2_E": Case("navia", {"biases": False}, "tome:2"),
    "navia_r2_S": Case("navia", {"embedding": False}, "tome:2"),
    "navia_r2_none": Case("navia", {"embedding": False, "biases": False}, "tome:2"),
    "navia_r2_L5_d3e-3_dl1e-2": Case("navia", {"budget": 5, "eta_delta": 3e-3, "eta_delta_l": 1e-2}, "tome:2"),
    "navia_r2_strong": Case("navia", {"eta_delta": 5e-2}, "tome:2"),
}


@cache
def scaled(vit: navia.ViT, head_scale: float) -> navia.ViT:
    """A copy with a larger head; adapters leave it as it is."""
    model = copy.deepcopy(vit)
    with torch.no_grad():
        model.model.head.weight.mul_(head_scale)
        model.model.head.bias.mul_(head_scale)
    return model


@cache
def measured_source(vit: navia.ViT, head_scale: float, reduce: Any, fisher: bool) -> navia.SourceStatistics:
    images = torch.from_numpy(golden("inputs")["source_images"])
    return navia.SourceStatistics.measure(scaled(vit, head_scale), images, reduce, fisher=fisher, batch_size=32)


def make(case: Case, vit: navia.ViT) -> navia.Adapter:
    """The adapter of a case, without the guard: the official code has none."""
    model = scaled(vit, case.head_scale)
    measured = case.reduce if case.stats == "same" else case.stats
    source = measured_source(vit, case.head_scale, measured, case.method == "eata")
    if case.stats != "same":  # only here: statistics of another reducer are refused otherwise
        as_if = dataclasses.replace(source.provenance, reduce=str(navia.reduction.parse(case.reduce)))
        source = dataclasses.replace(source, provenance=as_if)
    return navia.adapt(model, case.method, case.reduce, source, guard=False, seed=0, **case.options)


def run_stream(
    adapter: navia.Adapter, images: np.ndarray, each: Callable[[int], None] = lambda batch: None
) -> list[torch.Tensor]:
    answers = []
    for batch in range(len(images)):
        answers.append(adapter(torch.from_numpy(images[batch])))
        each(batch)
    return answers


def inject_orders(adapter: navia.Adapter, data: dict[str, np.ndarray], stream: str) -> None:
    """DeYO's recorded tile permutations: row j is used by the j-th image that passed the entropy filter."""
    method = adapter.method
    assert isinstance(method, Deyo)
    orders = iter(torch.from_numpy(data["perms"]["ABCD".index(stream)]).long())
    current: list[torch.Tensor] = []
    forward_step = method.forward_step

    def predict_and_turn(images: torch.Tensor) -> Any:
        current[:] = [next(orders)]
        return forward_step(images)

    method.forward_step = predict_and_turn  # type: ignore[method-assign]
    method.orders = lambda count: current[0][:count]  # type: ignore[method-assign]


streams = pytest.mark.parametrize("stream", ["A", pytest.param("B", marks=pytest.mark.slow)])


@streams
@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, stream: str, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    compare(name, stream, golden_vit, golden_inputs)


def compare(name: str, stream: str, vit: navia.ViT, inputs: dict[str, np.ndarray]) -> None:
    """Answers of the images without near ties, and the norms at the end, by the rule of tests/near_ties.py."""
    case, data = CASES[name], golden(name)
    clear = clear_images(data, stream, case.reduce)

    def adapted() -> list[np.ndarray]:
        """What is compared: answers batch by batch, then norms."""
        torch.manual_seed(0)
        adapter = make(case, vit)
        if case.method == "deyo":
            inject_orders(adapter, data, stream)
        answers = run_stream(adapter, inputs[f"x_{stream}"])
        answers = [answer.softmax(dim=1) for answer in answers] if case.method == "lame" else answers
        compared = [answer.numpy()[sure] for answer, sure in zip(answers, clear, strict=True)]
        return [*compared, norms(adapter)] if f"{stream}.param.norm1_w" in data else compared

    key = "probs" if case.method == "lame" else "logits"
    recorded = [batch[sure] for batch, sure in zip(data[f"{stream}.{key}"], clear, strict=True)]
    if f"{stream}.param.norm1_w" in data:
        recorded.append(np.concatenate([data[f"{stream}.param.{part}"].ravel() for part in (*LN, "norm_w", "norm_b")]))
    allowed = [*(tolerance(data, stream, batch) for batch in range(6)), 1e-5]
    found = adapted()
    apart = [float(np.abs(a - b).max()) for a, b in zip(found, recorded, strict=True)]
    off = [place for place, far in enumerate(apart) if far > allowed[place]]  # 0 to 5: a batch; 6: the norms
    if off and case.method == "lame":
        for batch in off:
            with torch.no_grad():
                output = forward(vit, torch.from_numpy(inputs[f"x_{stream}"][batch]))
            features = torch.nn.functional.normalize(output.pooled[:, 0], dim=1)
            options = LameOptions(**case.options)
            w = affinity(features, options.affinity, options.neighbours, options.symmetric)
            assert_lame_stopped(found[batch], recorded[batch], output.logits.softmax(dim=1), w, allowed[batch])
    elif off:
        assert not clear.all(), f"{apart} apart, {allowed} allowed"
        effect = effect_of_near_ties(adapted)
        for place in off:
            assert apart[place] <= allowed[place] + 2 * effect[place], f"{place}: {effect[place]} by near ties"


def norms(adapter: navia.Adapter) -> np.ndarray:
    """All weights and biases of the LayerNorms, in the order of LN, then of the last norm."""
    model = adapter.method.vit.model
    parts = [getattr(getattr(block, key[:5]), {"w": "weight", "b": "bias"}[key[-1]]) for key in LN for block in model.blocks]
    return torch.cat([part.detach().flatten() for part in (*parts, model.norm.weight, model.norm.bias)]).numpy()


# Weights with an error of one rounding stand for a processor that sums in another order.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "stream"), [("lame_knn5", "B"), ("foabp_tome_r1_statsDense", "B"), ("tofu_align_r2", "B")])
def test_the_rule_for_near_ties_holds_for_other_roundings(
    name: str, stream: str, golden_inputs: dict[str, np.ndarray]
) -> None:
    vit, generator = families.golden_model(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in vit.model.parameters():
            parameter.mul_(1 + 6e-8 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    compare(name, stream, vit, golden_inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("foabp_tome_r1_statsDense", {"lr": 0.00501}), ("lame_knn5", {"neighbours": 4})]
)
def test_the_rule_for_near_ties_excuses_no_mistake(
    name: str,
    options: dict[str, Any],
    golden_vit: navia.ViT,
    golden_inputs: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CASES, name, dataclasses.replace(CASES[name], options=options))
    with pytest.raises(AssertionError):
        compare(name, "B", golden_vit, golden_inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("navia")])
def test_navia_augmentations_and_loss(name: str, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    data = golden(name)
    adapter = make(CASES[name], golden_vit)
    losses: list[tuple[float, float]] = []

    def note(batch: int) -> None:
        assert adapter.last is not None
        losses.append((adapter.last.loss or 0.0, adapter.last.discrepancy or 0.0))

    run_stream(adapter, golden_inputs["x_A"], note)
    terms = data["A.loss_terms"]
    np.testing.assert_allclose([d for _, d in losses], terms[:, 1] + terms[:, 2], atol=1e-5)
    np.testing.assert_allclose([loss for loss, _ in losses], terms[:, 0] + 30 * (terms[:, 1] + terms[:, 2]), atol=3e-4)
    parameters = adapter.method.parameters
    if "delta" in parameters:
        np.testing.assert_allclose(parameters["delta"].detach(), data["A.param.delta"], atol=1e-5)
    if "layers" in data and "A.param.delta_l" in data:
        biases = torch.stack([parameters[f"delta_l.{layer}"] for layer in data["layers"]])
        np.testing.assert_allclose(biases.detach(), data["A.param.delta_l"], atol=2e-5)


def test_source_statistics(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    """Measured in one pass over batches, equal to the recorded ones over all images at once."""
    for name, reduce in (("navia_r2", "tome:2"), ("foabp_noshift", "none"), ("evit_align_r2", "evit:2")):
        data = golden(name)
        images = torch.from_numpy(golden_inputs["source_images"])
        source = navia.SourceStatistics.measure(golden_vit, images, reduce, batch_size=13)
        np.testing.assert_allclose(source.mean.flatten(), data["A.param.source_mean"], atol=1e-5)
        np.testing.assert_allclose(source.std.flatten(), data["A.param.source_std"], atol=1e-5)


def test_fisher(golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    for name, reduce in (("eata_d0.4_lr0.01", "none"), ("eata_tome_r2_d0.4_lr0.01", "tome:2")):
        data = golden(name)
        images = torch.from_numpy(golden_inputs["source_images"])
        source = navia.SourceStatistics.measure(golden_vit, images, reduce, fisher=True, batch_size=32)
        recorded = {key.removeprefix("fisher."): value for key, value in data.items() if key.startswith("fisher.")}
        assert set(source.fisher) == set(recorded)
        for key, value in recorded.items():
            np.testing.assert_allclose(source.fisher[key], value, rtol=1e-3, atol=1e-9)


@pytest.mark.slow
@streams
def test_foa(
    stream: str, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 28 candidates and losses of each batch, prompts and answers; the initial prompts are the recorded ones."""
    data = golden("foa")
    images = torch.from_numpy(golden_inputs["source_images"])
    source = navia.SourceStatistics.measure(golden_vit, images)
    adapter = navia.adapt(golden_vit, "foa", source=source, guard=False, population=28)
    adapter.method.memory["prompts"] = torch.from_numpy(data[f"{stream}.param.init_prompts"][0])
    told: list[tuple[np.ndarray, list[float]]] = []

    def tell(search: foa._Search, candidates: list[np.ndarray], losses: list[float]) -> None:
        told.append((np.stack(candidates), losses))
        search.strategy.tell(candidates, losses)

    monkeypatch.setattr(foa._Search, "tell", tell)
    for batch in range(6):
        answer = adapter(torch.from_numpy(golden_inputs[f"x_{stream}"][batch]))
        candidates, losses = told[batch]
        np.testing.assert_allclose(candidates, data[f"{stream}.candidates"][batch], atol=1e-5)
        np.testing.assert_allclose(losses, data[f"{stream}.losses"][batch], rtol=1e-5)
        assert adapter.last is not None
        np.testing.assert_allclose(adapter.last.loss, data[f"{stream}.best_loss"][batch], rtol=1e-5)
        prompts = adapter.method.memory["prompts"]
        np.testing.assert_allclose(prompts, data[f"{stream}.best_prompts"][batch, 0], atol=1e-5)
        np.testing.assert_allclose(answer, data[f"{stream}.logits"][batch], atol=tolerance(data, "A", batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cotta_det", "cotta_restore0.001"])
def test_cotta_student_and_teacher(name: str, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    data = golden(name)
    adapter = make(CASES[name], golden_vit)
    run_stream(adapter, golden_inputs["x_A"])
    for who, vit in (("student", adapter.method.vit), ("teacher", adapter.method.teacher)):
        parameters = dict(vit.model.named_parameters())
        for key in (k for k in data if k.startswith(f"A.param.{who}.")):
            own = parameters[key.removeprefix(f"A.param.{who}.")].detach()
            np.testing.assert_allclose(own, data[key], atol=1e-5, err_msg=key)
        sums = [parameters[str(p)].double().sum().item() for p in golden("cotta_det")["param_names"]]
        np.testing.assert_allclose(sums, data[f"A.param.{who}_sums"], atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sar_foa_headx4", "sar_official_headx4", "sar_official"])
def test_sar_running_loss_and_recoveries(name: str, golden_vit: navia.ViT, golden_inputs: dict[str, np.ndarray]) -> None:
    data = golden(name)
    adapter = make(CASES[name], golden_vit)
    running, recoveries = [], []

    def note(batch: int) -> None:
        running.append(adapter.method.memory["running_loss"])
        recoveries.append(adapter.method.memory["recoveries"])

    run_stream(adapter, golden_inputs["x_A"], note)
    np.testing.assert_allclose([np.nan if r is None else r for r in running], data["A.ema"], atol=1e-5)
    assert recoveries == data["A.resets_so_far"].tolist()
