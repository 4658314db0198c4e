"""Which parameters a method tunes, and the private copy of the model that holds them."""

import copy
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from navia.errors import SpecError
from navia.models.base import ViT
from navia.models.precision import freeze_linears


def private_copy(vit: ViT, tuned: Collection[str]) -> ViT:
    """A copy of the model with its own `tuned` parameters; all others share memory with the original and are frozen.

    Tuned parameters are at least float32: in half precision most steps would be rounded away. Frozen linear layers are
    converted to the model's precision once; logits and features are float32."""
    memo: dict[int, object] = {id(buffer): buffer for buffer in vit.buffers()}
    missing = set(tuned)
    for name, parameter in vit.model.named_parameters():
        own = name in missing
        missing.discard(name)
        value = to_float32(parameter.detach().clone()) if own else parameter.detach()
        memo[id(parameter)] = nn.Parameter(value, requires_grad=own)
    if missing:
        raise SpecError(f"{vit.name} has no parameter {', '.join(sorted(missing))}")
    private = copy.deepcopy(vit, memo)
    if private.precision == "float32" and is_half(vit):
        private.precision = str(vit.dtype).removeprefix("torch.")
    freeze_linears(private, vit, tuned)
    return private.eval()


def to_float32(x: Tensor) -> Tensor:
    """x in float32, or in its own type if that is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with the tensors in it (in nested dicts, lists and tuples) on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(part, device) for part in value)
    return value


def is_half(vit: ViT) -> bool:
    """Whether the weights are in half precision (bfloat16 or float16)."""
    return vit.dtype in (torch.bfloat16, torch.float16)


def norm_parameters(vit: ViT, blocks: range | None = None) -> list[str]:
    """Names of the LayerNorms' weights and biases: of all norms, or of those in `blocks` (without the final norm)."""
    norms = list(vit.layer_norms())
    if blocks is not None:
        norms = norms[2 * blocks.start : 2 * blocks.stop]  # two norms per block, in the order of the forward
    return [f"{norm}.{part}" for norm in norms for part, _ in vit.model.get_submodule(norm).named_parameters()]


def early_blocks(vit: ViT) -> range:
    """The first three quarters of the blocks (0-8 of 12), which SAR and DeYO tune."""
    return range(vit.depth * 3 // 4)


def weights_and_biases(vit: ViT) -> list[str]:
    """Weights and biases of all modules (CoTTA): no token, no position embedding, no layer scale."""
    return [name for name, _ in vit.model.named_parameters() if name.endswith(("weight", "bias"))]


def choose_layers(depth: int, which: str | Sequence[int], budget: int | None) -> tuple[int, ...]:
    """Blocks that get a CLS bias: 'shallow' (the first `budget`), 'deep' (the last), 'uniform' (evenly spread), or listed.

    budget: 6 by default, at most half of the blocks.
    """
    if not isinstance(which, str):
        layers = tuple(which)
        if len(set(layers)) != len(layers) or any(not 0 <= layer < depth for layer in layers):
            raise SpecError(f"layers {list(layers)} are not distinct blocks of 0..{depth - 1}")
        return layers
    count = min(6, depth // 2) if budget is None else budget
    if not 0 <= count <= depth:
        raise SpecError(f"a budget of {count} layers does not fit {depth} blocks")
    if which == "shallow":
        return tuple(range(count))
    if which == "deep":
        return tuple(range(depth - count, depth))
    if which == "uniform":
        return tuple(i * depth // count for i in range(count))
    raise SpecError(f"layers must be shallow, deep, uniform or a list of blocks, got {which!r}")


def fingerprint(vit: ViT) -> str:
    """Hash of all weights and their names: equal for equal models, wherever they were loaded from."""
    digest = hashlib.sha256()
    for name, value in sorted(vit.model.state_dict().items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def relative_change(now: Mapping[str, Tensor], source: Mapping[str, Tensor], vit: ViT) -> Tensor:
    """|now - source| / |source| over the model's own parameters; added ones start at zero and have no scale."""
    names = [name for name, _ in vit.model.named_parameters() if name in now]
    if not names:
        return torch.zeros((), device=vit.device)
    before = [source[name] for name in names]
    difference = torch._foreach_sub([now[name].detach() for name in names], before)
    return norm_of(difference) / norm_of(before).clamp(min=1e-12)


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all tensors (at least one) taken as one vector."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
