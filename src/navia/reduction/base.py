"""What a token reducer is: the tokens it works on, its schedule, its text form, and the base class."""

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from navia.errors import SpecError, known_names
from navia.registry import Registry

REDUCERS: Registry[type["Reducer"]] = Registry("reducer", "navia.reduction")

# int: the same r at every block; (r, inflection): linear from the first to the last block; list: one r per block, then 0
Amount = int | tuple[int, float] | Sequence[int]

_FORMS = "'none', 'tome:8', 'evit:8', 'tofu:8', with inflection 'tome:8,-1', per block 'tome:[8,8,4]'"


class Tokens(NamedTuple):
    """The tokens of a batch between two blocks.

    Attributes:
        values: Tokens [B, N, D]. The first `num_prefix_tokens` (CLS, distillation, registers, prompts) are never merged.
        num_prefix_tokens: Number of prefix tokens.
        sizes: Patches that each token stands for [B, N]; None while all sizes are 1.
        sources: For each token of the first block, the row that holds it now, -1 once dropped [B, N0]; None unless traced.

    Example:
        >>> from navia.reduction import Tokens
        >>> tokens = Tokens(torch.zeros(2, 197, 64), num_prefix_tokens=1)
        >>> tokens.length, tokens.num_image_tokens
        (197, 196)
    """

    values: Tensor
    num_prefix_tokens: int
    sizes: Tensor | None = None
    sources: Tensor | None = None

    @property
    def length(self) -> int:
        return self.values.shape[1]

    @property
    def num_image_tokens(self) -> int:
        return self.length - self.num_prefix_tokens

    def with_sources(self) -> "Tokens":
        """The same tokens; from here on `sources` follows every token."""
        batch, count = self.values.shape[:2]
        return self._replace(sources=torch.arange(count, device=self.values.device).expand(batch, count))

    def update_sources(self, destination: Tensor) -> Tensor | None:
        """`sources` after row n moved to `destination` [B, N] (-1: dropped)."""
        if self.sources is None:
            return None
        dropped = self.sources < 0
        return destination.gather(1, self.sources.clamp(min=0)).masked_fill(dropped, -1)

    def image_mean(self) -> Tensor:
        """Mean of the image tokens weighted by their sizes [B, D]."""
        image = self.values[:, self.num_prefix_tokens :]
        if self.sizes is None:
            return image.mean(dim=1)
        weight = self.sizes[:, self.num_prefix_tokens :].to(image.dtype)
        return (weight.unsqueeze(1) @ image).squeeze(1) / weight.sum(dim=1, keepdim=True)


class AttentionInfo(NamedTuple):
    """What a block's attention gives to the reducer; None where the reducer does not need it.

    Attributes:
        keys: Keys averaged over the heads, without gradient [B, N, d].
        cls_attention: Softmax attention of the CLS query, averaged over the heads [B, N].

    Example:
        >>> from navia.reduction import AttentionInfo
        >>> AttentionInfo(keys=torch.zeros(2, 197, 16)).cls_attention is None
        True
    """

    keys: Tensor | None = None
    cls_attention: Tensor | None = None


@dataclass(frozen=True)
class Reducer(ABC):
    """Base class of token reducers: a frozen description and one pure function, tokens -> fewer tokens.

    Register a subclass with `@REDUCERS.register(name)` and override `num_remaining` and `apply`. Dataclass fields other
    than `r` are options of the text form: `tofu:8,split=6`.

    Args:
        r: Tokens to remove at every block: an int, an (int, inflection) pair or a list.

    Attributes:
        name: Name in the registry.
        needs_keys: Whether `apply` reads `info.keys`.
        needs_cls_attention: Whether `apply` reads `info.cls_attention`.

    Example:
        >>> from dataclasses import dataclass
        >>> from navia.reduction import REDUCERS, Reducer
        >>> @REDUCERS.register("first")
        ... @dataclass(frozen=True)
        ... class First(Reducer):
        ...     name = "first"
        ...     def num_remaining(self, num_image_tokens, r):
        ...         return num_image_tokens - min(r, num_image_tokens - 1)
        ...     def apply(self, tokens, r, info, layer, depth):
        ...         count = tokens.num_prefix_tokens + self.num_remaining(tokens.num_image_tokens, r)
        ...         return tokens._replace(values=tokens.values[:, :count])
        >>> navia.load("embedded")(torch.zeros(2, 1, 28, 28), reduce="first:8").shape
        torch.Size([2, 10])
    """

    r: Amount = 0
    name: ClassVar[str]
    needs_keys: ClassVar[bool] = False
    needs_cls_attention: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", check_amount(self.r))

    def tokens_per_block(self, depth: int) -> tuple[int, ...]:
        """How many tokens to remove at each of `depth` blocks."""
        return tokens_per_block(self.r, depth)

    @property
    def proportional_attention(self) -> bool:
        """Whether the blocks add log(size) to their attention scores (ToMe, section 3)."""
        return False

    @property
    def modifies_all_tokens(self) -> bool:
        """Whether `apply` changes tokens that it neither removes nor merges, or only their gradient. If not, the last block
        is not reduced for a classifier that reads the prefix alone."""
        return False

    @abstractmethod
    def num_remaining(self, num_image_tokens: int, r: int) -> int:
        """Number of image tokens after `apply` removed r of `num_image_tokens`.

        Args:
            num_image_tokens: Image tokens before the reduction.
            r: Tokens to remove.
        """

    @abstractmethod
    def apply(self, tokens: Tokens, r: int, info: AttentionInfo, layer: int, depth: int) -> Tokens:
        """Remove r tokens after the attention of a block. A pure function; prefix tokens must stay first and unchanged.

        Args:
            tokens: Tokens after the attention's residual sum.
            r: Tokens to remove; the reducer may remove fewer where there are not enough.
            info: Keys and CLS attention, where `needs_keys` and `needs_cls_attention` ask for them.
            layer: Index of the block.
            depth: Number of blocks.

        Returns:
            New tokens, with `num_remaining` image tokens.
        """

    def check(self, depth: int) -> None:
        """Raise SpecError if this reducer cannot run on a model of `depth` blocks."""
        self.tokens_per_block(depth)

    def __str__(self) -> str:
        changed = [f for f in dataclasses.fields(self) if f.name != "r" and getattr(self, f.name) != f.default]
        options = "".join(f",{f.name}={str(getattr(self, f.name)).lower()}" for f in changed)
        return f"{self.name}:{format_amount(self.r)}{options}"


@REDUCERS.register("none")
@dataclass(frozen=True)
class NoReduction(Reducer):
    """No reduction: every block sees all tokens.

    Example:
        >>> navia.NoReduction().tokens_per_block(depth=3)
        (0, 0, 0)
    """

    name = "none"

    def tokens_per_block(self, depth: int) -> tuple[int, ...]:
        return (0,) * depth

    def num_remaining(self, num_image_tokens: int, r: int) -> int:
        return num_image_tokens

    def apply(self, tokens: Tokens, r: int, info: AttentionInfo, layer: int, depth: int) -> Tokens:
        return tokens

    def __str__(self) -> str:
        return self.name


def tokens_per_block(r: Amount, depth: int) -> tuple[int, ...]:
    """The number of tokens to remove at each of `depth` blocks.

    (r, i) runs linearly from r(1-i) to r(1+i), truncated: i = -1 removes most tokens early, i = 1 late, and the total
    stays near r * depth.
    """
    if isinstance(r, int):
        return (r,) * depth
    if isinstance(r, tuple):
        first = int(r[0] * (1.0 - r[1]))
        last = 2 * r[0] - first
        step = (last - first) / (depth - 1) if depth > 1 else 0.0
        return tuple(int(first + step * layer) for layer in range(depth))
    if len(r) > depth:
        raise SpecError(f"r={format_amount(r)}: {len(r)} amounts given, but the model has {depth} blocks")
    return (*r, *(0,) * (depth - len(r)))


def check_amount(r: object) -> Amount:
    """`r` in one of its three forms; SpecError otherwise."""
    if isinstance(r, bool) or not isinstance(r, int | tuple | list):
        raise SpecError(f"r must be an int, an (int, inflection) pair or a list of ints, got {r!r}")
    if isinstance(r, int):
        if r < 0:
            raise SpecError(f"r must not be negative, got {r}")
        return r
    if isinstance(r, tuple):
        if len(r) != 2 or not isinstance(r[0], int) or not isinstance(r[1], int | float) or not -1 <= r[1] <= 1:
            raise SpecError(f"an inflected r is (int, inflection between -1 and 1), got {r!r}")
        check_amount(r[0])
        return r[0], float(r[1]) + 0.0  # no negative zero, which would have a text form of its own
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in r):
        raise SpecError(f"a listed r holds one int >= 0 per block, got {r!r}")
    return list(r)


def format_amount(r: Amount) -> str:
    """The text form of r that `parse` reads."""
    if isinstance(r, int):
        return str(r)
    if isinstance(r, tuple):
        short = f"{r[1]:g}"
        return f"{r[0]},{short if float(short) == r[1] else r[1]}"
    return "[" + ",".join(str(n) for n in r) + "]"


ReducerLike = str | Reducer | None


def parse(spec: ReducerLike) -> Reducer:
    """Make a reducer from its text form.

    Args:
        spec: 'none', 'tome:8', 'tome:8,-1', 'evit:[4,4,0]', 'tofu:8,split=6'; a reducer is returned as it is; None means
            no reduction.

    Raises:
        SpecError: The text is malformed, or names an unknown reducer or option.

    Example:
        >>> from navia.reduction import parse
        >>> parse("tome:8").tokens_per_block(3)
        (8, 8, 8)
    """
    if isinstance(spec, Reducer):
        return spec
    if spec is None:
        spec = "none"
    if not isinstance(spec, str):
        raise SpecError(f"a reducer is a text such as {_FORMS} or a navia reducer object, got {type(spec).__name__}")
    name, colon, rest = spec.strip().partition(":")
    kind = REDUCERS.get(name)
    if name == "none":
        if colon:
            raise SpecError(f"reducer 'none' takes no amount, got {spec!r}")
        return kind()
    numbers: list[Any] = []
    options: dict[str, Any] = {}
    for part in re.findall(r"\[[^\]]*\]|[^,]+", rest):
        key, equals, value = part.partition("=")
        if equals:
            options[key.strip()] = _option(kind, key.strip(), value.strip(), spec)
        else:
            numbers.append(_number(part.strip(), spec))
    if len(numbers) == 1:
        r = numbers[0]
    elif len(numbers) == 2 and not any(isinstance(n, list) for n in numbers):
        r = tuple(numbers)
    else:
        raise SpecError(f"malformed reducer {spec!r}; known forms: {_FORMS}")
    return kind(r=r, **options)


def _number(text: str, spec: str) -> int | float | list[int]:
    try:
        if text.startswith("[") and text.endswith("]"):
            return [int(n) for n in text[1:-1].split(",")] if text != "[]" else []
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise SpecError(f"malformed reducer {spec!r}: {text!r} is not a number; known forms: {_FORMS}") from None


def _option(kind: type[Reducer], key: str, value: str, spec: str) -> bool | int:
    defaults = {field.name: field.default for field in dataclasses.fields(kind) if field.name != "r"}
    if key not in defaults:
        raise SpecError(f"reducer {spec!r}: no option {key!r}{known_names(key, defaults)}")
    switch = isinstance(defaults[key], bool)
    if switch and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not switch and re.fullmatch(r"\d+", value):
        return int(value)
    raise SpecError(f"reducer {spec!r}: option {key} must be {'true or false' if switch else 'a number'}, got {value!r}")
