"""What navia raises when it is asked for something it cannot do right: one line that says what, why, and what to do."""

import difflib
from collections.abc import Iterable


class NaviaError(ValueError):
    """Base of every error that navia raises on purpose.

    command_line: what the command line says instead, where the message names something of Python.
    """

    def __init__(self, message: str = "", *, command_line: str | None = None) -> None:
        super().__init__(message)
        self.command_line = command_line or message


class ModelError(NaviaError):
    """The model is not one that navia can walk (its class, its parts or its weights)."""


class CheckpointError(ModelError):
    """The checkpoint does not fit the model."""


class InputError(NaviaError):
    """Images, labels or class masks that do not fit the model."""


class SourceError(NaviaError):
    """Source statistics that are missing, broken, or of another model or reducer."""


class SpecError(NaviaError):
    """A reducer, method or option that does not exist or is malformed."""


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def known_names(name: str, known: Iterable[str]) -> str:
    """How a message about an unknown `name` ends: the known ones, and the nearest of them."""
    names = list(known)
    meant = near(name, names)
    return f"; known: {', '.join(names) or 'none'}" + (f"; did you mean {meant!r}?" if meant else "")
