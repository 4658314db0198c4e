"""`navia methods`: list methods with their options, and reducers."""

import sys

from rich.table import Table
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import console, print_json


def methods(method: options.MethodArgument = None, plugins: options.Plugins = None, as_json: options.Json = False) -> None:
    """List adaptation methods and token reducers; with METHOD, type, default and meaning of each of its options."""
    from navia.methods.base import METHODS
    from navia.methods.options import describe_options
    from navia.reduction import REDUCERS

    found = {name: describe_options(METHODS.get(name).Options) for name in ([method] if method else METHODS.names())}
    if as_json:
        defaults = {name: {option.name: option.default for option in listed} for name, listed in found.items()}
        described = {name: [option._asdict() for option in listed] for name, listed in found.items()}
        print_json({"methods": defaults, "reducers": REDUCERS.names(), "options": described})
        return
    if method:
        table = Table("option", "type", "default", "meaning", title=Text(_describe(METHODS.get(method))))
        for option in found[method]:
            table.add_row(*map(Text, map(str, option)))
        console.print(table)
        return
    table, reducers = Table("method", "what it does", "options and defaults"), Table("reducer", "what it does")
    for name, listed in found.items():
        table.add_row(name, _describe(METHODS.get(name)), ", ".join(f"{item.name}={item.default}" for item in listed))
    for name in REDUCERS.names():
        reducers.add_row(name, _describe(REDUCERS.get(name)))
    console.print(table, reducers, sep="\n")


def _describe(kind: type) -> str:
    """Return the first paragraph of the docstring of its module, or of its own if the module has none or is a `base`."""
    module = None if kind.__module__.endswith(".base") else sys.modules.get(kind.__module__)
    text = getattr(module, "__doc__", None) or kind.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())
