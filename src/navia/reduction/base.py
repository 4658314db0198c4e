"""What every token reducer is: a frozen description plus one pure step, tokens -> fewer tokens."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

from torch import Tensor

from navia.reduction.schedule import Amount, amounts, check_amount, format_amount
from navia.reduction.tokens import Tokens
from navia.registry import Registry

REDUCERS: Registry[type["Reducer"]] = Registry("reducer", "navia.reduction")


class Seen(NamedTuple):
    """What the attention of a block shows to the reducer, only where it asked for it.
    keys [B, N, d]: mean over heads, no gradient. cls_attention [B, N]: softmax of the CLS query, mean over heads."""

    keys: Tensor | None = None
    cls_attention: Tensor | None = None


@dataclass(frozen=True)
class Reducer(ABC):
    """r: tokens to remove at every block: an int, (int, inflection) or a list."""

    r: Amount = 0
    name: ClassVar[str]
    needs_keys: ClassVar[bool] = False
    needs_cls_attention: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", check_amount(self.r))

    def amounts(self, depth: int) -> tuple[int, ...]:
        return amounts(self.r, depth)

    @property
    def weighs_attention(self) -> bool:
        """Whether the blocks add log(size) to their attention scores, so that a merged token counts for its members."""
        return False

    @property
    def touches_all_rows(self) -> bool:
        """Whether `step` changes rows that it neither removes nor merges, were it only their gradient. If not, the last
        block need not be reduced at all for a classifier that reads the prefix alone."""
        return False

    @abstractmethod
    def left(self, image_count: int, r: int) -> int:
        """How many image tokens are left of `image_count` after removing r: the reducer's arithmetic without tensors."""

    @abstractmethod
    def step(self, tokens: Tokens, r: int, seen: Seen, layer: int, depth: int) -> Tokens:
        """Remove r tokens after the attention of block `layer` of `depth`. Pure: returns new tokens."""

    def check(self, depth: int) -> None:
        """Raise if this reducer cannot run on a model of `depth` blocks."""
        self.amounts(depth)

    def __str__(self) -> str:
        changed = [f for f in fields(self) if f.name != "r" and getattr(self, f.name) != f.default]
        options = "".join(f",{f.name}={str(getattr(self, f.name)).lower()}" for f in changed)
        return f"{self.name}:{format_amount(self.r)}{options}"
