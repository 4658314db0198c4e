"""The command line: `navia COMMAND`. Prints results to stdout, problems to stderr; exit code 0 done, 1 refused, 2 misuse."""

import io
import sys
from typing import Annotated

import typer

from navia import __version__
from navia.cli.bench import bench
from navia.cli.choose import choose
from navia.cli.corrupt import corrupt
from navia.cli.cost import cost
from navia.cli.demo import demo
from navia.cli.doctor import doctor
from navia.cli.explain import explain
from navia.cli.export import export
from navia.cli.methods import methods
from navia.cli.report import report
from navia.cli.run import run
from navia.cli.serve import serve
from navia.cli.stats import stats
from navia.cli.terminal import console, errors
from navia.cli.tokens import tokens
from navia.errors import NaviaError

app = typer.Typer(
    name="navia",
    help="Efficient test-time adaptation of Vision Transformers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo, doctor, run, bench, report, explain, serve, stats, choose, export, corrupt, cost, tokens, methods):
    from_environment = {"auto_envvar_prefix": "NAVIA_SERVE"} if command is serve else None  # NAVIA_SERVE_PORT for --port
    app.command(context_settings=from_environment)(command)


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
        errors.print(f"navia: {error.command_line}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("navia: interrupted")
        sys.exit(130)
