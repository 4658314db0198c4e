"""Names -> things that files register themselves: reducers, methods.

A package calls ``Registry(kind, package)``; looking anything up first imports every module of that package, so that a
new method or reducer is one new file and nothing else. After that come those of other packages, see `plugins.py`. A name
that is registered again is replaced, with a warning: a notebook's cell may be run twice.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Callable
from typing import Generic, TypeVar

from navia.errors import SpecError, known_names
from navia.plugins import load_entry_points

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._filled = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: enter the decorated thing under `name`. It replaces an earlier one of that name, with a warning."""

        def enter(thing: T) -> T:
            if not str(getattr(thing, "__module__", "")).startswith(f"{self.package}."):
                self._fill()  # the package's own would otherwise come later and replace it
            if self._entries.get(name, thing) is not thing:
                warnings.warn(f"{self.kind} {name!r} is replaced by the one registered now", stacklevel=2)
            self._entries[name] = thing
            return thing

        return enter

    def names(self) -> list[str]:
        self._fill()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        self._fill()
        if name not in self._entries:
            raise SpecError(f"unknown {self.kind} {name!r}{known_names(name, self.names())}")
        return self._entries[name]

    def _fill(self) -> None:
        if self._filled:
            return
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._filled = True
        load_entry_points()

    def own(self) -> dict[str, T]:
        """What was registered from outside of navia."""
        self._fill()
        return {name: thing for name, thing in self._entries.items() if not thing.__module__.startswith("navia.")}
