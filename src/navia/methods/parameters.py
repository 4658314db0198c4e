"""Which parameters a method tunes, and how it gets them for itself without touching the model that it was given."""

import copy
import hashlib
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from navia.errors import SpecError
from navia.models.base import ViT


def private_copy(vit: ViT, tuned: Collection[str]) -> ViT:
    """The same model with parameters of its own where `tuned` names them; all others share their memory with the
    original and are frozen. Original and copy may be used side by side, and so may several copies.

    Own parameters have at least single precision: in half precision most steps would be rounded away. The copy of a model
    in half precision therefore runs under autocast to the model's type, and its logits and features are float32."""
    memo: dict[int, object] = {id(buffer): buffer for buffer in vit.buffers()}
    missing = set(tuned)
    for name, parameter in vit.model.named_parameters():
        own = name in missing
        missing.discard(name)
        value = single(parameter.detach().clone()) if own else parameter.detach()
        memo[id(parameter)] = nn.Parameter(value, requires_grad=own)
    if missing:
        raise SpecError(f"{vit.name} has no parameter {', '.join(sorted(missing))}")
    twin = copy.deepcopy(vit, memo)
    if twin.precision is None and is_half(vit):
        twin.precision = vit.cls_token.dtype
    return twin.eval()


def single(x: Tensor) -> Tensor:
    """x in single precision; as it is where it has that or more."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def is_half(vit: ViT) -> bool:
    """Whether the weights are in half precision (bfloat16 or float16)."""
    return vit.cls_token.dtype in (torch.bfloat16, torch.float16)


def norm_parameters(vit: ViT, blocks: range | None = None) -> list[str]:
    """Names of the LayerNorms' gains and biases: of all norms, or only of those inside `blocks` (final norm excluded)."""
    norms = list(vit.layer_norms())
    if blocks is not None:
        norms = norms[2 * blocks.start : 2 * blocks.stop]  # two norms per block, in the order of the forward
    return [f"{norm}.{part}" for norm in norms for part, _ in vit.model.get_submodule(norm).named_parameters()]


def early_blocks(vit: ViT) -> range:
    """The first three quarters of the blocks (0-8 of 12): SAR and DeYO leave the last ones alone."""
    return range(vit.depth * 3 // 4)


def weights_and_biases(vit: ViT) -> list[str]:
    """Every module's weights and biases (torchvision calls some in_proj_weight), but no token and no position embedding, nor
    scales of layers (CoTTA)."""
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


def relative_move(now: Mapping[str, Tensor], source: Mapping[str, Tensor], vit: ViT) -> float:
    """|now - source| / |source| over the model's own parameters: those that a method adds start at zero, without scale."""
    names = [name for name, _ in vit.model.named_parameters() if name in now]
    if not names:
        return 0.0
    before = [source[name] for name in names]
    apart = torch._foreach_sub([now[name].detach() for name in names], before)
    return float(norm_of(apart) / norm_of(before).clamp(min=1e-12))


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all tensors taken as one vector."""
    if not tensors:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
