"""Roofline of a call: the matrix products it needs, and the time these products take by themselves.

Products with a weight matrix are kept by shape and timed one by one. Products between tokens (attention, matching) are
counted only, and assumed to run at the average rate of the products with weights. The bound of a call is the time of all
its products; the share is bound / measured.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from navia.evaluation.cost import head_width, linear_weights_outside_blocks, matching_macs, token_counts
from navia.models.base import ViT
from navia.models.precision import INT8_GRADIENT_WIDTH, PackedHalf, PackedInt8, round_tokens
from navia.reduction import Reducer

_ATTENTION_FORWARD = 2  # scores, weighted sum
_ATTENTION_BACKWARD = 5  # scores again, since the fused kernel keeps none; gradients of weights, scores -> q, k, and v


class Gemm(NamedTuple):
    """[rows, inner] @ [inner, columns]. kind: x W^T (forward), g W (gradient of the inputs) or g^T x (of the weights);
    the kinds differ in the memory layout of their operands."""

    rows: int
    inner: int
    columns: int
    kind: Literal["forward", "inputs", "weights"]

    @property
    def macs(self) -> int:
        return self.rows * self.inner * self.columns


@dataclass(frozen=True)
class Work:
    """Matrix products of a call. gemms: products with weights and their counts; other: multiply-accumulates of the rest."""

    gemms: Mapping[Gemm, int] = field(default_factory=dict)
    other: int = 0

    @property
    def linear_macs(self) -> int:
        return sum(count * gemm.macs for gemm, count in self.gemms.items())

    @property
    def macs(self) -> int:
        return self.linear_macs + self.other

    def __add__(self, other: "Work") -> "Work":
        return Work(Counter(self.gemms) + Counter(other.gemms), self.other + other.other)

    def times(self, count: int) -> "Work":
        return Work({gemm: count * number for gemm, number in self.gemms.items() if count}, count * self.other)


@dataclass(frozen=True)
class Passes:
    """Passes of a call. weights: the backward passes include gradients of the weight matrices. prompts: tokens added to
    every image. full_last_block: compute all rows of the last block, as the libraries do. extra_heads: further runs of the
    classifier alone."""

    forwards: int = 1
    backwards: int = 0
    weights: bool = False
    prompts: int = 0
    full_last_block: bool = False
    extra_heads: int = 0


def work_of(vit: ViT, reducer: Reducer, batch: int, passes: Passes) -> Work:
    """Matrix products of `passes` over `batch` images."""
    layers = _layers(vit, reducer, passes)
    forward, backward = _patch_embedding(vit, batch, passes.weights)
    for layer in layers:
        linear = layer.linears(batch)
        forward += _forward_products(linear)
        forward += Work(other=batch * (layer.attention(_ATTENTION_FORWARD) + layer.reduction_forward))
        backward += _backward_products(linear, passes.weights)
        backward += Work(other=batch * (layer.attention(_ATTENTION_BACKWARD) + layer.reduction_backward))
    heads = [(batch, weight) for weight in linear_weights_outside_blocks(vit)]
    classified = _forward_products(heads)
    forward += classified
    backward += _backward_products(heads, passes.weights)
    return forward.times(passes.forwards) + backward.times(passes.backwards) + classified.times(passes.extra_heads)


# ---- counting


Linears = Sequence[tuple[int, Tensor]]  # rows, and the weight [out, in] they are multiplied with


@dataclass(frozen=True)
class _Layer:
    """One block. before, after: tokens entering attention and MLP; queries: rows of the attention output."""

    before: int
    queries: int
    after: int
    width: int
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    mlp: Sequence[Tensor]
    reduction_forward: int
    reduction_backward: int

    def linears(self, batch: int) -> Linears:
        parts = ((self.before, self.inputs), (self.queries, self.outputs), (self.after, self.mlp))
        return [(batch * rows, weight) for rows, weights in parts for weight in weights]

    def attention(self, products: int) -> int:
        return products * self.queries * self.before * self.width


def _layers(vit: ViT, reducer: Reducer, passes: Passes) -> list[_Layer]:
    """By the rules of `models.forward.run`: where the classifier reads only the first rows, the last block computes
    queries, projection and MLP of these rows only, and reduces nothing."""
    tokens, prefix = token_counts(vit, reducer, passes.prompts), vit.num_prefix_tokens + passes.prompts
    read = None if passes.full_last_block or vit.whole_last_block or reducer.modifies_all_tokens else vit.num_pooled_tokens
    layers = []
    for number, r in enumerate(reducer.tokens_per_block(vit.depth)):
        before, after = tokens[number], tokens[number + 1]
        short = read is not None and number == vit.depth - 1
        attention, mlp = vit.block_modules(number)
        width = head_width(vit, attention)
        inputs, outputs = _split(_matrices(attention), 3 * width)
        queries, after = (read, read) if short and read is not None else (before, after)
        reduction = (0, 0) if short or not r else _reduction(vit, reducer, before, prefix, r, width)
        layers.append(_Layer(before, queries, after, width, inputs, outputs, _matrices(mlp), *reduction))
    return layers


def _reduction(vit: ViT, reducer: Reducer, before: int, prefix: int, r: int, width: int) -> tuple[int, int]:
    """Multiply-accumulates of the reducer's own products per image, forward and backward. The matching has no gradient;
    EViT's fused token is a product with the CLS attention, and both factors of both products have one."""
    if reducer.needs_keys:
        return matching_macs(before - prefix, width // vit.num_heads), 0
    if reducer.needs_cls_attention:
        fused = min(r, before - prefix - 1) * vit.embed_dim if getattr(reducer, "fuse", False) else 0
        return before * width + fused, 2 * (before * width + fused) if fused else 0
    return 0, 0


def _patch_embedding(vit: ViT, batch: int, weights: bool) -> tuple[Work, Work]:
    """Patches -> tokens. The images get no gradient."""
    kernel = vit.patch_projection.weight
    rows, out, inner = batch * vit.grid[0] * vit.grid[1], kernel.shape[0], kernel[0].numel()
    back = Work({Gemm(out, rows, inner, "weights"): 1}) if weights else Work()
    return Work({Gemm(rows, inner, out, "forward"): 1}), back


def _forward_products(linears: Linears) -> Work:
    return Work(Counter(Gemm(rows, weight.shape[1], weight.shape[0], "forward") for rows, weight in linears))


def _backward_products(linears: Linears, weights: bool) -> Work:
    work = Work(Counter(Gemm(rows, weight.shape[0], weight.shape[1], "inputs") for rows, weight in linears))
    if weights:
        work += Work(Counter(Gemm(weight.shape[0], rows, weight.shape[1], "weights") for rows, weight in linears))
    return work


def _matrices(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.dim() == 2]


def _split(weights: Sequence[Tensor], features: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The matrices of queries, keys and values (fused or three), which every library registers first, and the others."""
    count, rows = 0, 0
    while rows < features:
        rows += weights[count].shape[0]
        count += 1
    return weights[:count], weights[count:]


# ---- timing


Product = Callable[[], object]


class BareGemms:
    """Times each shape by itself in each precision that a call uses. Call `round` in turn with the measured calls, so that
    both see the same load of the computer."""

    def __init__(self, works: Iterable[tuple[Work, str]]) -> None:
        wanted = dict.fromkeys((gemm, precision) for work, precision in works for gemm in work.gemms)
        self._products = {key: bare_product(*key) for key in wanted}
        self._times: dict[tuple[Gemm, str], list[float]] = {key: [] for key in wanted}
        for product in self._products.values():
            product()  # warms up

    def round(self) -> None:
        for key, product in self._products.items():
            start = time.perf_counter()
            product()
            self._times[key].append(time.perf_counter() - start)

    def seconds(self, work: Work, precision: str) -> float:
        """Time of all products of `work`, from the median time of each shape. Products between tokens are taken at the rate
        of those with weights; in int8 they are bfloat16, at about half of it."""
        linear = sum(count * median(self._times[gemm, precision]) for gemm, count in work.gemms.items())
        slower = 2 if precision == "int8" else 1
        return linear * (1 + slower * work.other / work.linear_macs)


def bare_product(gemm: Gemm, precision: str) -> Product:
    """The product alone: float32 without allocations, others as the frozen layers compute them, on rounded inputs."""
    rows, inner, columns, kind = gemm
    if precision == "float32":
        first = torch.rand(inner, rows).T if kind == "weights" else torch.rand(rows, inner)
        second = torch.rand(columns, inner).T if kind == "forward" else torch.rand(inner, columns)
        out = torch.empty(rows, columns)
        return lambda: torch.mm(first, second, out=out)
    weight, x = torch.rand(columns, inner) - 0.5, torch.rand(rows, inner).bfloat16()
    narrow = kind == "inputs" and min(inner, columns) < INT8_GRADIENT_WIDTH  # their gradients are bfloat16 in int8 too
    if precision == "int8" and not narrow:
        whole, (rounded, _) = PackedInt8.round(weight), round_tokens(x)
        return lambda: whole.rounded_product(rounded, torch.bfloat16)
    half = PackedHalf(weight.bfloat16())
    return lambda: half.product(x, None)


class Roofline(NamedTuple):
    """gflops: of the call; gflops_bare: of its matrix products alone; share: bound / measured."""

    gflops: float
    gflops_bare: float
    share: float


def roofline(work: Work, seconds: float, bare: BareGemms, precision: str = "float32") -> Roofline:
    bound, flops = bare.seconds(work, precision), 2 * work.macs / 1e9
    return Roofline(flops / seconds, flops / bound, bound / seconds)
