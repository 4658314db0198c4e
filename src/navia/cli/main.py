"""The command line: `navia COMMAND`. Results go to stdout, problems to stderr; exit code 0 done, 1 refused, 2 misuse, and
130 after Ctrl-C (by typer)."""

import importlib
import io
import sys
from typing import Annotated

import typer

from navia import __version__
from navia.cli.options import Command
from navia.cli.terminal import console, errors, print_line
from navia.errors import NaviaError

COMMANDS = (
    "demo", "run", "evaluate", "bench", "report", "explain", "stats", "choose", "cost", "doctor", "corrupt", "tokens",
    "methods", "export", "serve",
)  # fmt: skip
app = typer.Typer(name="navia", no_args_is_help=True, pretty_exceptions_enable=False)
for command in COMMANDS:
    from_environment = {"auto_envvar_prefix": "NAVIA_SERVE"} if command == "serve" else None  # NAVIA_SERVE_PORT for --port
    function = getattr(importlib.import_module(f"navia.cli.{command}"), command)
    app.command(cls=Command, context_settings=from_environment)(function)


def _version(asked: bool) -> None:
    if asked:
        console.print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Efficient test-time adaptation of Vision Transformers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold what the terminal cannot show


def main() -> None:
    try:
        app()
    except NaviaError as error:
        print_line(f"navia: {error.command_line}", errors)
        sys.exit(1)
