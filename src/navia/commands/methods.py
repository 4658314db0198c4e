"""`navia methods`: List methods and reducers."""

import dataclasses
import sys

from rich.table import Table

from navia.commands.terminal import ImportOption, JsonOption, console, print_json


def methods(plugins: ImportOption = None, as_json: JsonOption = False) -> None:
    """List adaptation methods with their options, and token reducers."""
    from navia.adapt.method import METHODS
    from navia.reduce import REDUCERS

    options = {name: {f.name: f.default for f in dataclasses.fields(METHODS.get(name).Options)} for name in METHODS.names()}
    if as_json:
        print_json({"methods": options, "reducers": REDUCERS.names()})
        return
    table = Table("method", "what it does", "options and defaults")
    for name, defaults in options.items():
        text = (sys.modules[METHODS.get(name).__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        table.add_row(name, text, ", ".join(f"{key}={value}" for key, value in defaults.items()))
    console.print(table)
    table = Table("reducer", "what it does")
    for name in REDUCERS.names():
        text = (sys.modules[REDUCERS.get(name).__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        table.add_row(name, text)
    console.print(table)
