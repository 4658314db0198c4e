"""Options of the methods: one frozen dataclass per method, checked against its type hints when it is made."""

import dataclasses
import inspect
import math
import re
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, Self

from navia.errors import SpecError, known_names


@dataclass(frozen=True)
class Options:
    """Base class of the methods' options.

    Fields are numbers, switches, `Literal` choices or lists of whole numbers; numbers must be finite and not negative.
    Document every field under `Args:`: `navia methods` and the reference read it.

    Attributes:
        renamed: Old names of options that are still accepted, with a warning.

    Example:
        >>> from dataclasses import dataclass
        >>> from navia.methods.options import Options, describe_options
        >>> @dataclass(frozen=True)
        ... class MyOptions(Options):
        ...     '''Options of my method.
        ...
        ...     Args:
        ...         margin: Largest entropy.
        ...     '''
        ...     margin: float = 0.4
        >>> describe_options(MyOptions)
        [OptionInfo(name='margin', type='float', default=0.4, meaning='Largest entropy.')]
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if not _matches(value, hint):
                raise SpecError(f"option {field.name} must be {_expected(hint)}, got {value!r}")
            if isinstance(value, int | float) and not isinstance(value, bool):
                if not math.isfinite(value):
                    raise SpecError(f"option {field.name} must be finite, got {value}")
                if value < 0:
                    raise SpecError(f"option {field.name} must not be negative, got {value}")

    @classmethod
    def from_kwargs(cls, method: str, given: Mapping[str, Any]) -> Self:
        """Options from keyword arguments; SpecError lists the known names if one is unknown."""
        known = [field.name for field in dataclasses.fields(cls)]
        named: dict[str, Any] = {}
        for name, value in given.items():
            if name in cls.renamed:
                warnings.warn(f"option {name} of {method} is now {cls.renamed[name]}", FutureWarning, stacklevel=3)
            name = cls.renamed.get(name, name)
            if name not in known:
                raise SpecError(f"method {method!r} has no option {name!r}{known_names(name, known)}")
            named[name] = value
        return cls(**named)


@dataclass(frozen=True)
class SGDOptions(Options):
    """Stochastic gradient descent: v <- momentum v + g, p <- p - lr v.

    Args:
        lr: Learning rate.
        momentum: Momentum of SGD.

    Example:
        >>> from navia.methods.options import SGDOptions
        >>> SGDOptions(lr=0.01)
        SGDOptions(lr=0.01, momentum=0.9)
    """

    lr: float = 1e-3
    momentum: float = 0.9


class OptionInfo(NamedTuple):
    """One option of a method, for help texts and the reference."""

    name: str
    type: str
    default: Any
    meaning: str


def describe_options(options: type[Options]) -> list[OptionInfo]:
    """Name, type, default and meaning of every option, from the type hints and the `Args:` of the docstrings."""
    meanings: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        arguments = inspect.cleandoc(vars(cls).get("__doc__") or "").partition("Args:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?= {4}\w)", arguments):
            name, _, text = entry.strip().partition(": ")
            meanings[name] = " ".join(text.split())
    hints = typing.get_type_hints(options)
    return [
        OptionInfo(field.name, _type_name(hints[field.name]), field.default, meanings.get(field.name, ""))
        for field in dataclasses.fields(options)
    ]


def _matches(value: object, hint: Any) -> bool:
    """Whether `value` fits the type hint. True does not count as 1, and no text counts as a switch."""
    simple: dict[Any, type] = {bool: bool, int: Integral, float: Real, str: str, type(None): type(None)}
    if hint in simple:
        return isinstance(value, simple[hint]) and (hint is bool or not isinstance(value, bool))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(_matches(value, argument) for argument in arguments)
    if origin is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(_matches(v, arguments[0]) for v in value)
    return True


def _expected(hint: Any) -> str:
    """The type hint in words, for error messages."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}
    if hint in words:
        return words[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        *first, last = (str(choice) for choice in arguments)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is Sequence:
        return "a list of whole numbers" if arguments[0] is int else "a list"
    return " or ".join(_expected(argument) for argument in arguments)


def _type_name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin is Sequence:
        return f"list of {_type_name(arguments[0])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
