"""What a prediction costs: multiply-accumulates counted from the shapes, tokens per block, parameters; time on request.

Two conventions, because the paper's table mixes two scales:
- consistent: every product counted, attention included, LayerNorm at 5 per element, in 1e9 (GMACs);
- paper: the same counter in 2^30, but the attention products are missing from rows without reduction, since the
  counting tool behind the table does not see the fused attention kernel that only those rows use.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from navia.errors import InputError
from navia.evaluation.latency import Timing, measure_forward
from navia.methods.base import METHODS
from navia.models.base import ViT
from navia.reduction import NoReduction, Reducer, ReducerLike, parse

_NORM_OPS = 5  # per element: mean, variance, scale, gain, bias


@dataclass(frozen=True)
class Cost:
    """Per image. macs: by part, consistent convention. tokens: entering each block, then leaving the last."""

    model: str
    reduce: str
    gmacs: float
    gmacs_paper: float
    tokens: tuple[int, ...]
    parameters: int
    method: str
    trainable: int
    forwards: int
    macs: dict[str, int]
    timing: Timing | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cost(
    vit: ViT,
    reduce: ReducerLike = None,
    *,
    method: str = "none",
    options: Mapping[str, Any] | None = None,
    forwards: int | None = None,
    prompts: int | None = None,
    measure: bool = False,
    batch: int = 8,
    rounds: int = 5,
) -> Cost:
    """Count what one image costs with `reduce` under `method`. Backward passes are not counted.

    options: of the method, where they are not its defaults (navia: {"budget": 4}).
    forwards, prompts: passes per image and extra tokens, if others than the method's own (FOA on ViT-B: 28 and 3).
    measure: also run `rounds` forwards of `batch` images for latency and peak memory.
    """
    kind = METHODS.get(method)
    chosen = kind.Options.from_kwargs(method, options or {})
    forwards = kind.num_forwards(vit, chosen) if forwards is None else forwards
    prompts = kind.num_extra_tokens(chosen) if prompts is None else prompts
    if forwards < 1 or prompts < 0 or batch < 1 or rounds < 1:
        raise InputError("forwards, batch and rounds must be at least 1, prompts at least 0")
    reducer = parse(reduce)
    reducer.check(vit.depth)
    shapes = {name: p.numel() for name, p in vit.model.named_parameters()}
    tokens = token_counts(vit, reducer, prompts)
    macs = count_macs(vit, reducer, tokens, vit.num_prefix_tokens + prompts)
    total = forwards * sum(macs.values())
    # the paper's dense rows miss the fused attention; its EViT reads the CLS row off the full map at no extra product
    unseen = forwards * (macs["attention"] if isinstance(reducer, NoReduction) else macs["cls_attention"])
    return Cost(
        model=vit.name,
        reduce=str(reducer),
        gmacs=total / 1e9,
        gmacs_paper=(total - unseen) / 2**30,
        tokens=tokens,
        parameters=sum(shapes.values()),
        method=method,
        trainable=sum(shapes[name] for name in kind.tuned_names(vit, chosen)) + kind.num_added_parameters(vit, chosen),
        forwards=forwards,
        macs=macs,
        timing=measure_forward(vit, reducer, batch, rounds) if measure else None,
    )


def token_counts(vit: ViT, reducer: Reducer, prompts: int = 0) -> tuple[int, ...]:
    """Tokens entering each block, then leaving the last, by the reducer's own arithmetic."""
    prefix, image = vit.num_prefix_tokens + prompts, vit.grid[0] * vit.grid[1]
    counts = [prefix + image]
    for r in reducer.tokens_per_block(vit.depth):
        image = reducer.num_remaining(image, r) if r else image
        counts.append(prefix + image)
    return tuple(counts)


def count_macs(vit: ViT, reducer: Reducer, tokens: tuple[int, ...], prefix: int) -> dict[str, int]:
    """Multiply-accumulates of one forward of one image, by part. The MLP runs on what the reducer left."""
    patches = vit.grid[0] * vit.grid[1]
    macs = {"patches": patches * vit.patch_projection.weight.numel()}
    parts = ("linear", "attention", "mlp", "matching", "cls_attention", "norms")
    macs |= dict.fromkeys(parts, 0)
    for layer, r in enumerate(reducer.tokens_per_block(vit.depth)):
        before, after = tokens[layer], tokens[layer + 1]
        attention, mlp = vit.block_modules(layer)
        width = head_width(vit, attention)
        macs["linear"] += before * _matrices(attention)
        macs["attention"] += 2 * before * before * width
        macs["mlp"] += after * _matrices(mlp)
        macs["norms"] += _NORM_OPS * vit.embed_dim * (before + after)
        if r and reducer.needs_keys:
            macs["matching"] += matching_macs(before - prefix, width // vit.num_heads)
        if r and reducer.needs_cls_attention:
            macs["cls_attention"] += before * width
    macs["norms"] += _NORM_OPS * vit.embed_dim * vit.depth  # the CLS features of all blocks, the last through the final norm
    macs["head"] = sum(weight.numel() for weight in linear_weights_outside_blocks(vit))
    return macs


def matching_macs(tokens: int, key_width: int) -> int:
    """Similarity of every second image token to every other one in between."""
    side = tokens // 2
    return side * (tokens - side) * key_width


def _matrices(module: nn.Module) -> int:
    """Entries of a module's weight matrices = its MACs per token."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)


def linear_weights_outside_blocks(vit: ViT) -> list[Tensor]:
    """One classifier or two, of one pooled row or several."""
    inside = {id(m) for layer in range(vit.depth) for part in vit.block_modules(layer) for m in part.modules()}
    return [m.weight for m in vit.modules() if isinstance(m, nn.Linear) and id(m) not in inside]


def head_width(vit: ViT, attention: nn.Module) -> int:
    """heads x head dimension, which is not the model's width in every ViT."""
    head_dim = getattr(attention, "head_dim", vit.embed_dim // vit.num_heads)
    return vit.num_heads * int(head_dim)
