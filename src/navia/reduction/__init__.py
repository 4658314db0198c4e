"""tokens -> fewer tokens: schedules, matching, and one file per reducer."""

from navia.reduction.base import REDUCERS, Reducer, Seen
from navia.reduction.evit import EViT
from navia.reduction.none import NoReduction
from navia.reduction.parse import ReducerLike, parse
from navia.reduction.tofu import ToFu
from navia.reduction.tokens import Tokens
from navia.reduction.tome import ToMe

__all__ = ["REDUCERS", "EViT", "NoReduction", "Reducer", "ReducerLike", "Seen", "ToFu", "ToMe", "Tokens", "parse"]
