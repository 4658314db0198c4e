"""Token reduction: tokens -> fewer tokens, one file per reducer."""

from navia.reduction.base import REDUCERS, AttentionInfo, NoReduction, Reducer, ReducerLike, Tokens, parse
from navia.reduction.evit import EViT
from navia.reduction.tofu import ToFu
from navia.reduction.tome import ToMe

__all__ = ["REDUCERS", "AttentionInfo", "EViT", "NoReduction", "Reducer", "ReducerLike", "ToFu", "ToMe", "Tokens", "parse"]
