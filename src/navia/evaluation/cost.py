"""Cost of a prediction: multiply-accumulates counted from the shapes, tokens per block, parameters; time on request.

There are two conventions, because the paper's table mixes two scales:
- consistent: every product counted, attention included, LayerNorm at 5 per element, in 1e9 (GMACs);
- paper: the same count in 2^30, but without the attention products in rows without reduction: only those rows use the fused
  attention kernel, which the paper's counting tool does not see.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from navia.errors import InputError
from navia.evaluation.latency import Timing, measure_steps
from navia.methods.base import METHODS
from navia.models.base import ViT
from navia.reduction import NoReduction, Reducer, ReducerLike, parse

_NORM_OPS = 5  # per element: mean, variance, scale, gain, bias


@dataclass(frozen=True)
class Cost:
    """Cost per image.

    Attributes:
        gmacs: Multiply-accumulates of all `forwards` passes in 1e9; `gmacs_paper`: in the convention of the paper.
        tokens: Tokens entering each block, then leaving the last.
        trainable: Number of values that the method tunes.
        macs: Multiply-accumulates of one forward by part.
        timing: Measured time and memory of a whole step, with `measure=True`.

    Example:
        >>> cost = navia.cost(navia.load("embedded"), "tome:8", method="navia")
        >>> cost.tokens[:3], cost.forwards, cost.trainable
        ((197, 189, 181), 1, 3648)
    """

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
    batch_size: int = 8,
    rounds: int = 5,
) -> Cost:
    """Count the cost of one image. Needs no weights. Backward passes are not counted.

    Args:
        vit: The model.
        reduce: Token reducer, such as "tome:8".
        method: Adaptation method, whose forward passes and extra tokens are counted.
        options: Options of the method that differ from its defaults, such as {"budget": 4}.
        forwards: Forward passes per image, if not those of the method.
        prompts: Extra tokens, if not those of the method.
        measure: Also measure time and peak memory of the method's whole step (see `Timing`) on random images.
        batch_size: Images per measured step.
        rounds: Number of measured steps.

    Returns:
        Multiply-accumulates, tokens and parameters, and the timing if it was measured.

    Raises:
        SpecError: Unknown method, option or reducer.

    Example:
        >>> vit = navia.load("embedded")
        >>> navia.cost(vit, "tome:8").gmacs < navia.cost(vit).gmacs
        True
    """
    kind = METHODS.get(method)
    chosen = kind.Options.from_kwargs(method, options or {})
    forwards = kind.num_forwards(vit, chosen) if forwards is None else forwards
    prompts = kind.num_extra_tokens(chosen) if prompts is None else prompts
    if forwards < 1 or prompts < 0 or batch_size < 1 or rounds < 1:
        raise InputError("forwards, batch_size and rounds must be at least 1, prompts at least 0")
    reducer = parse(reduce)
    reducer.check(vit.depth)
    sizes = {name: p.numel() for name, p in vit.model.named_parameters()}
    tokens = token_counts(vit, reducer, prompts)
    macs = count_macs(vit, reducer, tokens, vit.num_prefix_tokens + prompts)
    total = forwards * sum(macs.values())
    # the paper's dense rows miss the fused attention; its EViT takes the CLS row from the full map without extra products
    unseen = forwards * (macs["attention"] if isinstance(reducer, NoReduction) else macs["cls_attention"])
    return Cost(
        model=vit.name,
        reduce=str(reducer),
        gmacs=total / 1e9,
        gmacs_paper=(total - unseen) / 2**30,
        tokens=tokens,
        parameters=sum(sizes.values()),
        method=method,
        trainable=sum(sizes[name] for name in kind.tuned_names(vit, chosen)) + kind.num_added_parameters(vit, chosen),
        forwards=forwards,
        macs=macs,
        timing=measure_steps(vit, [(method, dict(options or {}), reducer)], batch_size, rounds)[0] if measure else None,
    )


def token_counts(vit: ViT, reducer: Reducer, prompts: int = 0) -> tuple[int, ...]:
    """Tokens entering each block, then leaving the last."""
    prefix, image = vit.num_prefix_tokens + prompts, vit.grid[0] * vit.grid[1]
    counts = [prefix + image]
    for r in reducer.tokens_per_block(vit.depth):
        image = reducer.num_remaining(image, r) if r else image
        counts.append(prefix + image)
    return tuple(counts)


def count_macs(vit: ViT, reducer: Reducer, tokens: tuple[int, ...], prefix: int) -> dict[str, int]:
    """Multiply-accumulates of one forward of one image, by part. The MLP runs on the tokens left by the reducer."""
    macs = dict.fromkeys(("patches", "linear", "attention", "mlp", "matching", "cls_attention", "norms"), 0)
    macs["patches"] = vit.grid[0] * vit.grid[1] * vit.patch_projection.weight.numel()
    for layer, r in enumerate(reducer.tokens_per_block(vit.depth)):
        before, after = tokens[layer], tokens[layer + 1]
        attention, mlp = vit.block_modules(layer)
        width = head_width(vit, attention)
        macs["linear"] += before * _macs_per_token(attention)
        macs["attention"] += 2 * before * before * width
        macs["mlp"] += after * _macs_per_token(mlp)
        macs["norms"] += _NORM_OPS * vit.embed_dim * (before + after)
        if r and reducer.needs_keys:
            macs["matching"] += matching_macs(before - prefix, width // vit.num_heads)
        if r and reducer.needs_cls_attention:
            macs["cls_attention"] += before * width
    macs["norms"] += _NORM_OPS * vit.embed_dim * vit.depth  # the CLS features of all blocks, the last through the final norm
    return macs | {"head": sum(weight.numel() for weight in linear_weights_outside_blocks(vit))}


def matching_macs(tokens: int, key_width: int) -> int:
    """Similarity of the image tokens at even positions to those at odd positions."""
    half = tokens // 2
    return half * (tokens - half) * key_width


def _macs_per_token(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)


def linear_weights_outside_blocks(vit: ViT) -> list[Tensor]:
    """Weights of the classifiers."""
    inside = {id(m) for layer in range(vit.depth) for part in vit.block_modules(layer) for m in part.modules()}
    return [m.weight for m in vit.modules() if isinstance(m, nn.Linear) and id(m) not in inside]


def head_width(vit: ViT, attention: nn.Module) -> int:
    """Heads times head dimension, which differs from the model's width in some ViTs."""
    return vit.num_heads * int(getattr(attention, "head_dim", vit.embed_dim // vit.num_heads))
