"""No reduction: every token goes all the way."""

from dataclasses import dataclass

from navia.reduction.base import REDUCERS, Reducer, Seen
from navia.reduction.tokens import Tokens


@REDUCERS.register("none")
@dataclass(frozen=True)
class NoReduction(Reducer):
    name = "none"

    def amounts(self, depth: int) -> tuple[int, ...]:
        return (0,) * depth

    def left(self, image_count: int, r: int) -> int:
        return image_count

    def step(self, tokens: Tokens, r: int, seen: Seen, layer: int, depth: int) -> Tokens:
        return tokens

    def __str__(self) -> str:
        return self.name
