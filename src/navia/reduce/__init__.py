"""tokens -> fewer tokens: schedules, matching, and one file per reducer."""

from navia.reduce.evit import EViT
from navia.reduce.none import NoReduction
from navia.reduce.parse import ReducerLike, parse
from navia.reduce.reducer import REDUCERS, Reducer, Seen
from navia.reduce.tofu import ToFu
from navia.reduce.tokens import Tokens
from navia.reduce.tome import ToMe

__all__ = ["REDUCERS", "EViT", "NoReduction", "Reducer", "ReducerLike", "Seen", "ToFu", "ToMe", "Tokens", "parse"]
