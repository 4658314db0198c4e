"""`navia methods`: List methods and reducers."""

import dataclasses
import sys

from rich.table import Table

from navia.cli.terminal import ImportOption, JsonOption, console, print_json


def methods(plugins: ImportOption = None, as_json: JsonOption = False) -> None:
    """List adaptation methods with their options, and token reducers."""
    from navia.methods.base import METHODS
    from navia.reduction import REDUCERS

    options = {name: {f.name: f.default for f in dataclasses.fields(METHODS.get(name).Options)} for name in METHODS.names()}
    if as_json:
        print_json({"methods": options, "reducers": REDUCERS.names()})
        return
    table = Table("method", "what it does", "options and defaults")
    for name, defaults in options.items():
        table.add_row(name, _told(METHODS.get(name)), ", ".join(f"{key}={value}" for key, value in defaults.items()))
    console.print(table)
    table = Table("reducer", "what it does")
    for name in REDUCERS.names():
        table.add_row(name, _told(REDUCERS.get(name)))
    console.print(table)


def _told(kind: type) -> str:
    """The first paragraph of its file's docstring, or of its own."""
    text = getattr(sys.modules.get(kind.__module__), "__doc__", None) or kind.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())
