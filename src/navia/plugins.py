"""Own methods and reducers: Python files and modules that register them, without being part of navia.

Three ways lead here: `--import FILE_OR_MODULE` of a command, `plugins:` of a spec, and entry points of installed packages in
the group `navia.plugins`, which are loaded by themselves when a method or reducer is first looked up. Workers of a cluster
get what was loaded here: files as their text, so that they need not lie on other machines; modules and packages must be
installed there. A file is one module by itself and cannot import its neighbours: make several files a package.
"""

import hashlib
import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from navia.errors import SpecError
from navia.io import expand_user

GROUP = "navia.plugins"

log = logging.getLogger("navia.plugins")

_loaded: dict[str, "Plugin"] = {}  # by the name of the module
_entry_points_are_loaded = False


@dataclass(frozen=True)
class Plugin:
    """name: of a module, or the path of a file. source: of a file, its text."""

    name: str
    source: bytes | None = None

    @property
    def module(self) -> str:
        """Under which it is imported; files of the same name and different content are different modules."""
        if self.source is None:
            return self.name
        return f"navia_plugin_{Path(self.name).stem}_{hashlib.sha256(self.source).hexdigest()[:12]}"


def load_plugin(name: str, beside: Path | None = None) -> None:
    """Import a file (FILE.py) or a module (package.module) for what it registers; once, unless the file has changed.
    beside: a folder in which a file is looked for before the working directory."""
    load(find(name, beside))


def find(name: str, beside: Path | None = None) -> Plugin:
    """A file's text is read now, a module's is not."""
    if not name.endswith(".py"):
        return Plugin(name)
    places = [folder / expand_user(name) for folder in (beside, Path()) if folder is not None]
    for path in places:
        if path.is_file():
            try:
                return Plugin(str(path.resolve()), path.read_bytes())
            except OSError as error:
                raise SpecError(f"cannot read plugin {str(path)!r}: {error.strerror or error}") from error
    raise SpecError(f"no plugin {name!r}: looked for {' and '.join(repr(str(path)) for path in places)}")


def load(plugin: Plugin) -> None:
    if plugin.module in _loaded:
        return
    try:
        if plugin.source is None:
            importlib.import_module(plugin.name)
        else:
            _run(plugin.module, plugin.name, plugin.source)
    except SpecError:
        raise
    except Exception as error:  # whatever somebody's own file raises
        hint = "; a file ends with .py" if isinstance(error, ModuleNotFoundError) and error.name == plugin.name else ""
        raise SpecError(f"cannot load plugin {plugin.name!r}: {type(error).__name__}: {error}{hint}") from error
    _loaded[plugin.module] = plugin


def _run(module: str, path: str, source: bytes) -> None:
    made = ModuleType(module)
    made.__file__ = path
    sys.modules[module] = made  # dataclasses look for the module of their class
    try:
        exec(compile(source, path, "exec"), made.__dict__)
    except BaseException:
        del sys.modules[module]
        raise


def loaded() -> Sequence[Plugin]:
    """All that this process has loaded by name, for its workers; they find entry points themselves."""
    return tuple(_loaded.values())


def load_entry_points() -> None:
    """Of installed packages. One that cannot be loaded is told of and left out: the others, and navia's own, still work."""
    global _entry_points_are_loaded
    if _entry_points_are_loaded:
        return
    _entry_points_are_loaded = True
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # whatever somebody's package raises
            log.warning("cannot load plugin %s = %s: %s: %s", point.name, point.value, type(error).__name__, error)


def source_digest(*kinds: type) -> str | None:
    """Of the files in which own methods or reducers are written, so that rows of an earlier version do not count; None for
    navia's own, and for what was typed into a script or notebook."""
    files = []
    for name in sorted({kind.__module__ for kind in kinds}):
        if name.split(".")[0] in ("navia", "__main__"):
            continue
        plugin, path = _loaded.get(name), getattr(sys.modules.get(name), "__file__", None)
        if plugin is not None and plugin.source is not None:
            files.append(plugin.source)
        elif path is not None and Path(path).is_file():
            files.append(Path(path).read_bytes())
    return hashlib.sha256(b"\0".join(files)).hexdigest()[:16] if files else None
