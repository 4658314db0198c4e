"""`navia methods`: list methods with their options, and reducers."""

import sys

from rich.table import Table
from rich.text import Text

from navia.cli import options
from navia.cli.terminal import console, print_json, print_line


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
        print_line(f"{method}: {_describe(METHODS.get(method))}")
        tables = [Table("option", "type", "default", "meaning")]
        for option in found[method]:
            tables[0].add_row(*map(Text, map(str, option)))
    else:
        tables = [Table("method", "what it does", "options and defaults"), Table("reducer", "what it does")]
        for name, listed in found.items():
            defaulted = ", ".join(f"{option.name}={option.default}" for option in listed)
            tables[0].add_row(name, _describe(METHODS.get(name)), defaulted)
        for name in REDUCERS.names():
            tables[1].add_row(name, _describe(REDUCERS.get(name)))
    console.print(*tables, sep="\n")


def _describe(kind: type) -> str:
    """Return the first paragraph of the docstring of its module, or of its own."""
    text = getattr(sys.modules.get(kind.__module__), "__doc__", None) or kind.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())
