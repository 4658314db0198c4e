"""Registries: name -> class for methods, reducers and model families, and plugins that register more of them.

A plugin is a Python file or module that registers something. `--import FILE_OR_MODULE` of a command and `plugins:` of a
bench spec load it; entry points of installed packages in the group `navia.plugins` load when a registry is first used.
Workers of a cluster get files as their text; modules must be installed there. A file cannot import its neighbours.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import logging
import pkgutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from navia.errors import SpecError, known_names
from navia.io import expand_user

T = TypeVar("T")
log = logging.getLogger("navia.registry")

_loaded: dict[str, "Plugin"] = {}  # by the name of the module


class Registry(Generic[T]):
    """Name -> class. The first lookup imports every module of `package`, so that a new class needs no import elsewhere.

    Args:
        kind: What is registered, for messages: "method", "reducer".
        package: The package whose modules register navia's own classes; None if these are registered by hand.

    Example:
        >>> from navia.methods.base import METHODS
        >>> METHODS.get("tent").__name__, "tent" in METHODS.names()
        ('Tent', True)
    """

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._filled = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers a class under `name`. An earlier class of that name is replaced with a warning."""

        def decorate(entry: T) -> T:
            if not str(getattr(entry, "__module__", "")).startswith(f"{self.package or 'navia'}."):
                self._fill()  # otherwise the package's own class would be registered later and replace this one
            if self._entries.get(name, entry) is not entry:
                warnings.warn(f"{self.kind} {name!r} is replaced by the one registered now", stacklevel=2)
            self._entries[name] = entry
            return entry

        return decorate

    def names(self) -> list[str]:
        self._fill()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """The class of a name; SpecError with the known names if there is none."""
        self._fill()
        if name not in self._entries:
            raise SpecError(f"unknown {self.kind} {name!r}{known_names(name, self.names())}")
        return self._entries[name]

    def third_party(self) -> dict[str, T]:
        """Everything that was registered outside of navia."""
        self._fill()
        return {name: entry for name, entry in self._entries.items() if not entry.__module__.startswith("navia.")}

    def _fill(self) -> None:
        if self._filled:
            return
        if self.package is not None:
            for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        self._filled = True
        _load_entry_points()


@dataclass(frozen=True)
class Plugin:
    """A module by name, or a file by path with its text in `source`."""

    name: str
    source: bytes | None = None

    @property
    def module(self) -> str:
        """The name in sys.modules. Files of the same name and different content are different modules."""
        if self.source is None:
            return self.name
        return f"navia_plugin_{Path(self.name).stem}_{hashlib.sha256(self.source).hexdigest()[:12]}"


def find_plugin(name: str, folder: Path | None = None) -> Plugin:
    """Read FILE.py from `folder` or else the working directory; any other name is a module (package.module)."""
    if not name.endswith(".py"):
        return Plugin(name)
    paths = [place / expand_user(name) for place in (folder, Path()) if place is not None]
    for path in paths:
        if path.is_file():
            try:
                return Plugin(str(path.resolve()), path.read_bytes())
            except OSError as error:
                raise SpecError(f"cannot read plugin {str(path)!r}: {error.strerror or error}") from error
    raise SpecError(f"no plugin {name!r}: looked for {' and '.join(repr(str(path)) for path in paths)}")


def load_plugin(plugin: Plugin | str) -> None:
    """Import a plugin for what it registers; once, unless its file has changed.

    Args:
        plugin: FILE.py, or a module that Python can import.

    Raises:
        SpecError: There is no such file or module, or it fails.

    Example:
        >>> from navia.registry import load_plugin
        >>> load_plugin("navia.methods.tent")
    """
    if isinstance(plugin, str):
        plugin = find_plugin(plugin)
    if plugin.module in _loaded:
        return
    try:
        if plugin.source is None:
            importlib.import_module(plugin.name)
        else:
            _run_file(plugin, plugin.source)
    except SpecError:
        raise
    except Exception as error:  # a plugin may raise anything
        hint = "; a file ends with .py" if isinstance(error, ModuleNotFoundError) and error.name == plugin.name else ""
        raise SpecError(f"cannot load plugin {plugin.name!r}: {type(error).__name__}: {error}{hint}") from error
    _loaded[plugin.module] = plugin


def _run_file(plugin: Plugin, source: bytes) -> None:
    module = ModuleType(plugin.module)
    module.__file__ = plugin.name
    sys.modules[plugin.module] = module  # dataclasses look up the module of their class
    try:
        exec(compile(source, plugin.name, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[plugin.module]
        raise


def loaded_plugins() -> tuple[Plugin, ...]:
    """The plugins that this process has loaded by name, for its workers; they find entry points themselves."""
    return tuple(_loaded.values())


@functools.cache  # once per process
def _load_entry_points() -> None:
    """Load the plugins of installed packages. One that fails is logged and skipped."""
    for point in importlib.metadata.entry_points(group="navia.plugins"):
        try:
            point.load()
        except Exception as error:  # a package may raise anything
            log.warning("cannot load plugin %s = %s: %s: %s", point.name, point.value, type(error).__name__, error)


def source_digest(*classes: type) -> str | None:
    """Hash of the files that define third-party classes, so that a bench row of an earlier version is not reused. None for
    navia's own classes and for those typed into a script or notebook."""
    files = []
    for name in sorted({cls.__module__ for cls in classes}):
        if name.split(".")[0] in ("navia", "__main__"):
            continue
        plugin, path = _loaded.get(name), getattr(sys.modules.get(name), "__file__", None)
        if plugin is not None and plugin.source is not None:
            files.append(plugin.source)
        elif path is not None and Path(path).is_file():
            files.append(Path(path).read_bytes())
    return hashlib.sha256(b"\0".join(files)).hexdigest()[:16] if files else None
