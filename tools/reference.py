"""The generated pages of docs/reference: options of the methods and reducers, commands, fields of a bench row.

`python tools/reference.py` writes them; `--check` exits with 1 if a page is out of date. The tests run the check.
"""

import dataclasses
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from navia.bench.row import schema_table
from navia.cli.main import COMMANDS, app
from navia.methods.base import METHODS
from navia.methods.options import describe_options
from navia.reduction import REDUCERS

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by tools/reference.py from the code. Do not edit. -->\n"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(header)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def options_page() -> str:
    """Options of every method, and of every reducer."""
    parts = [
        f"# Options\n\n{NOTE}\nOptions of a method are keywords of `navia.adapt` and `--opt KEY=VALUE` on the command line. "
        "Options of a reducer follow its amount: `tofu:8,split=6`. [Methods](../methods.md) and "
        "[token reduction](../reduction.md) explain them.\n"
    ]
    for name in METHODS.names():
        method = METHODS.get(name)
        rows = [(f"`{o.name}`", f"`{o.type}`", f"`{o.default}`", o.meaning) for o in describe_options(method.Options)]
        summary = first_paragraph(sys.modules[method.__module__].__doc__)
        listed = table(("option", "type", "default", "meaning"), rows) if rows else "No options."
        parts.append(f"## {name}\n\n{summary}\n\n{listed}\n")
    parts.append("## Reducers\n")
    for name in REDUCERS.names():
        reducer = REDUCERS.get(name)
        rows = [
            (f"`{field.name}`", f"`{type_name(field.type)}`", f"`{field.default}`", argument(reducer, field.name))
            for field in dataclasses.fields(reducer)
            if field.name != "r"
        ]
        listed = table(("option", "type", "default", "meaning"), rows) if rows else "No options."
        parts.append(f"### {name} {{: #reducer-{name} }}\n\n{first_paragraph(reducer.__doc__)}\n\n{listed}\n")
    return "\n".join(parts)


def commands_page() -> str:
    """Every command with its arguments and options, in the panels of its help."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = [
        f"# Command line\n\n{NOTE}\nEvery command has `--help`. Results go to stdout, everything else to stderr. "
        "Exit codes: 0 success, 1 refused, 2 wrong usage, 130 after Ctrl-C. Names of options mean the same in every command.\n"
    ]
    for name in COMMANDS:
        command = commands[name]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(["navia", name, *(placeholder(p) for p in arguments)])
        parts.append(f"## navia {name}\n\n{help_text(command.help)}\n\n`{usage} [OPTIONS]`\n")
        rows = [[f"`{placeholder(p)}`", "", default_of(p), escape(getattr(p, "help", None))] for p in arguments]
        for parameter in command.params:
            if parameter.param_type_name != "option" or parameter.hidden:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or ""
            names = ", ".join(f"`{text}`" for text in sorted(parameter.opts, key=len))
            rows.append([names, panel, default_of(parameter), escape(parameter.help)])
        parts.append(table(("option", "panel", "default", "meaning"), rows) + "\n")
    return "\n".join(parts)


def rows_page() -> str:
    """The fields of a row of `navia bench`."""
    return (
        f"# Fields of a bench row\n\n{NOTE}\n`navia bench` writes one row per cell, as a line of JSON. "
        "[Benchmarks](../benchmarks.md) explains the files, [protocols](../protocols.md) the fingerprint.\n\n"
        f"{schema_table()}\n"
    )


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def argument(kind: type, name: str) -> str:
    """The text of an entry under `Args:` of a docstring."""
    found = re.search(rf"^\s*{name}: (.*?)(?=^\s*\w+: |^\s*$|\Z)", kind.__doc__ or "", re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def escape(text: str | None) -> str:
    return " ".join((text or "").split()).replace("<", "&lt;")


def help_text(text: str) -> str:
    """The help of a command; a paragraph that is a command becomes a block."""
    paragraphs = [escape(part) for part in text.replace("\b", "").split("\n\n") if part.strip()]
    return "\n\n".join(f"```text\n{part}\n```" if part.startswith("navia ") else part for part in paragraphs)


def placeholder(parameter: Any) -> str:
    """An argument as the usage line shows it."""
    name = str(parameter.metavar or parameter.human_readable_name) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def default_of(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == [] or value == () or callable(value):
        return ""
    return f"`{value}`"


PAGES = {"options.md": options_page, "commands.md": commands_page, "rows.md": rows_page}


def main(arguments: list[str]) -> int:
    outdated = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if arguments == ["--check"]:
            outdated += [] if path.is_file() and path.read_text() == text else [name]
        else:
            path.write_text(text)
    if outdated:
        print(f"out of date: {', '.join(outdated)}; run python tools/reference.py", file=sys.stderr)
    return bool(outdated)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
