"""Roofline of a call: the matrix products it needs, and the time these products take by themselves.

Products with a weight matrix are kept by shape and timed one by one. Products between tokens (attention, matching) are
counted only, and assumed to run at the average rate of the products with weights. The bound of a call is the time of all
its products; the share is bound / measured.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from navia.evaluation.cost import head_width, linear_weights_outside_blocks, matching_macs, token_counts
from navia.models.base import ViT
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


class BareGemms:
    """Times each shape by itself, without allocations: all shapes share one buffer per operand. Call `round` in turn with
    the measured calls, so that both see the same load of the computer."""

    def __init__(self, works: Iterable[Work]) -> None:
        self.gemms = list(dict.fromkeys(gemm for work in works for gemm in work.gemms))
        sizes = [(g.rows * g.inner, g.inner * g.columns, g.rows * g.columns) for g in self.gemms] or [(0, 0, 0)]
        self._buffers = [torch.rand(max(size)) - 0.5 for size in zip(*sizes, strict=True)]
        self._times: dict[Gemm, list[float]] = {gemm: [] for gemm in self.gemms}
        for gemm in self.gemms:
            self._once(gemm)  # warms up

    def round(self) -> None:
        for gemm in self.gemms:
            self._times[gemm].append(self._once(gemm))

    def rate(self, work: Work) -> float:
        """FLOP/s of the products with weights of `work`, from the median time of each shape."""
        seconds = sum(count * median(self._times[gemm]) for gemm, count in work.gemms.items())
        return 2 * work.linear_macs / seconds

    def _once(self, gemm: Gemm) -> float:
        left, right, out = self._operands(gemm)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        return time.perf_counter() - start

    def _operands(self, gemm: Gemm) -> tuple[Tensor, Tensor, Tensor]:
        rows, inner, columns, kind = gemm
        left, right, out = self._buffers
        first = left[: rows * inner].view(inner, rows).T if kind == "weights" else left[: rows * inner].view(rows, inner)
        second = right[: inner * columns]
        second = second.view(columns, inner).T if kind == "forward" else second.view(inner, columns)
        return first, second, out[: rows * columns].view(rows, columns)


class Roofline(NamedTuple):
    """gflops: of the call; gflops_bare: of its matrix products alone; share: bound / measured."""

    gflops: float
    gflops_bare: float
    share: float


def roofline(work: Work, seconds: float, bare: BareGemms) -> Roofline:
    reached, rate = 2 * work.macs / seconds, bare.rate(work)
    return Roofline(reached / 1e9, rate / 1e9, reached / rate)
