"""Exceptions. A message is one line: what is wrong, why, and what to do instead."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class NaviaError(ValueError):
    """Base class of every error that navia raises on purpose.

    Args:
        message: The text of the exception.
        command_line: The text on the command line, if `message` names something of Python.

    Example:
        >>> try:
        ...     navia.load("no_such_model")
        ... except navia.NaviaError as error:
        ...     print(error)
        unknown model 'no_such_model'; write timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded
    """

    def __init__(self, message: str = "", *, command_line: str | None = None) -> None:
        super().__init__(message)
        self.command_line = command_line or message


class ModelError(NaviaError):
    """A model that navia does not support, because of its class, its parts or its weights."""


class CheckpointError(ModelError):
    """A checkpoint that does not fit the model."""


class InputError(NaviaError):
    """Images, labels, classes or files that do not fit."""


class SourceError(NaviaError):
    """Source statistics that are missing, broken, or of another model or reducer."""


class SpecError(NaviaError):
    """A reducer, method or option that does not exist or is malformed."""


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def known_names(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown `name`: the known names and the closest of them."""
    names = list(known)
    closest = closest_name(name, names)
    return f"; known: {', '.join(names) or 'none'}" + (f"; did you mean {closest!r}?" if closest else "")


def import_optional(module: str, feature: str, install: str) -> Any:
    """Import a package that `feature` needs, or raise an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NaviaError(f"{feature} needs the {module} package: {install}") from error
