"""`navia methods`: list methods and reducers."""

import dataclasses
import sys

from rich.table import Table

from navia.cli import options
from navia.cli.terminal import console, print_json


def methods(plugins: options.Plugins = None, as_json: options.Json = False) -> None:
    """List adaptation methods with their options, and token reducers."""
    from navia.methods.base import METHODS
    from navia.reduction import REDUCERS

    defaults = {name: {f.name: f.default for f in dataclasses.fields(METHODS.get(name).Options)} for name in METHODS.names()}
    if as_json:
        print_json({"methods": defaults, "reducers": REDUCERS.names()})
        return
    table = Table("method", "what it does", "options and defaults")
    for name, values in defaults.items():
        table.add_row(name, _describe(METHODS.get(name)), ", ".join(f"{key}={value}" for key, value in values.items()))
    console.print(table)
    table = Table("reducer", "what it does")
    for name in REDUCERS.names():
        table.add_row(name, _describe(REDUCERS.get(name)))
    console.print(table)


def _describe(kind: type) -> str:
    """Return the first paragraph of the docstring of its module, or of its own."""
    text = getattr(sys.modules.get(kind.__module__), "__doc__", None) or kind.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())
