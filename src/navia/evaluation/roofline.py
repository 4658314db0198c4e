"""How near a call comes to its matrix products alone: which products it needs, and how fast these run without the rest.

Counted is what a call has to multiply. Products with a weight matrix are kept by shape, so that each can be timed alone;
products between tokens (attention, matching) are only counted, and taken to run as fast as those with weights do on average.
The bound of a call is the time that all of this would take; the share is bound / measured.
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
    """[rows, inner] @ [inner, columns]. kind: x W^T (forward), g W (gradient of the inputs) or g^T x (of the weights),
    which differ in how their operands lie in memory."""

    rows: int
    inner: int
    columns: int
    kind: Literal["forward", "inputs", "weights"]

    @property
    def macs(self) -> int:
        return self.rows * self.inner * self.columns


@dataclass(frozen=True)
class Work:
    """Matrix products of a call. gemms: those with weights, how often each; other: multiply-accumulates of all others."""

    gemms: Mapping[Gemm, int] = field(default_factory=dict)
    other: int = 0

    @property
    def linear_macs(self) -> int:
        return sum(count * gemm.macs for gemm, count in self.gemms.items())

    @property
    def macs(self) -> int:
        return self.linear_macs + self.other

    def __add__(self, more: "Work") -> "Work":
        return Work(Counter(self.gemms) + Counter(more.gemms), self.other + more.other)

    def times(self, count: int) -> "Work":
        return Work({gemm: count * often for gemm, often in self.gemms.items() if count}, count * self.other)


@dataclass(frozen=True)
class Passes:
    """What a call consists of. weights: whether the backward passes also go to the weight matrices. prompts: tokens that
    are added to every image. whole: also the rows of the last block that nobody reads, as the libraries compute them.
    answers: how often the classifier runs once more by itself."""

    forwards: int = 1
    backwards: int = 0
    weights: bool = False
    prompts: int = 0
    whole: bool = False
    answers: int = 0


def work_of(vit: ViT, reducer: Reducer, batch: int, passes: Passes) -> Work:
    """The products that `passes` over `batch` images need."""
    layers = _layers(vit, reducer, passes)
    forward, backward = _entrance(vit, batch, passes.weights)
    for layer in layers:
        linear = layer.linears(batch)
        forward += _applied(linear) + Work(other=batch * (layer.attention(_ATTENTION_FORWARD) + layer.reduction_forward))
        backward += _returned(linear, passes.weights)
        backward += Work(other=batch * (layer.attention(_ATTENTION_BACKWARD) + layer.reduction_backward))
    heads = [(batch, weight) for weight in linear_weights_outside_blocks(vit)]
    forward += _applied(heads)
    backward += _returned(heads, passes.weights)
    return forward.times(passes.forwards) + backward.times(passes.backwards) + _applied(heads).times(passes.answers)


# ---- counting


Linears = Sequence[tuple[int, Tensor]]  # rows, and the weight [out, in] that they go through


@dataclass(frozen=True)
class _Layer:
    """One block. before, after: tokens that enter its attention and its MLP; queries: rows of its attention's output."""

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
    """By the rules of `vit.forward.run`: where the classifier reads the first rows alone, the last block computes queries,
    projection and MLP of these alone, and reduces nothing."""
    tokens, prefix = token_counts(vit, reducer, passes.prompts), vit.num_prefix_tokens + passes.prompts
    read = None if passes.whole or vit.whole_last_block or reducer.modifies_all_tokens else vit.num_pooled_tokens
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
    """Multiply-accumulates of the reducer's own products per image, forward and backward. The matching needs no gradient;
    EViT's fused token is a product with the CLS attention, and both sides of it and of the attention get one."""
    if reducer.needs_keys:
        return matching_macs(before - prefix, width // vit.num_heads), 0
    if reducer.needs_cls_attention:
        fused = min(r, before - prefix - 1) * vit.embed_dim if getattr(reducer, "fuse", False) else 0
        return before * width + fused, 2 * (before * width + fused) if fused else 0
    return 0, 0


def _entrance(vit: ViT, batch: int, weights: bool) -> tuple[Work, Work]:
    """Patches -> tokens, a product in all but name. No gradient goes back to the images."""
    kernel = vit.patch_projection.weight
    rows, out, inner = batch * vit.grid[0] * vit.grid[1], kernel.shape[0], kernel[0].numel()
    back = Work({Gemm(out, rows, inner, "weights"): 1}) if weights else Work()
    return Work({Gemm(rows, inner, out, "forward"): 1}), back


def _applied(linears: Linears) -> Work:
    return Work(Counter(Gemm(rows, weight.shape[1], weight.shape[0], "forward") for rows, weight in linears))


def _returned(linears: Linears, weights: bool) -> Work:
    work = Work(Counter(Gemm(rows, weight.shape[0], weight.shape[1], "inputs") for rows, weight in linears))
    if weights:
        work += Work(Counter(Gemm(weight.shape[0], rows, weight.shape[1], "weights") for rows, weight in linears))
    return work


def _matrices(module: nn.Module) -> list[Tensor]:
    return [p for p in module.parameters() if p.dim() == 2]


def _split(weights: Sequence[Tensor], features: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The matrices that make queries, keys and values, in one piece or three: all libraries hold them first."""
    count, made = 0, 0
    while made < features:
        made += weights[count].shape[0]
        count += 1
    return weights[:count], weights[count:]


# ---- timing


class BareGemms:
    """Times each shape alone, without allocations: one buffer per operand serves all. Call `round` beside the calls that
    are judged, so that both see the same computer."""

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
    """gflops: reached by a call; gflops_bare: by its bare products; share: bound / measured."""

    gflops: float
    gflops_bare: float
    share: float


def roofline(work: Work, seconds: float, bare: BareGemms) -> Roofline:
    reached, rate = 2 * work.macs / seconds, bare.rate(work)
    return Roofline(reached / 1e9, rate / 1e9, reached / rate)
