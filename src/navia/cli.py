"""The command line: `navia COMMAND`. Prints results to stdout, problems to stderr; exit code 0 done, 1 refused, 2 misuse."""

import io
import sys
from typing import Annotated

import typer

from navia import __version__
from navia.commands.bench import bench
from navia.commands.choose import choose
from navia.commands.corrupt import corrupt
from navia.commands.cost import cost
from navia.commands.demo import demo
from navia.commands.doctor import doctor
from navia.commands.explain import explain
from navia.commands.export import export
from navia.commands.methods import methods
from navia.commands.report import report
from navia.commands.run import run
from navia.commands.serve import serve
from navia.commands.stats import stats
from navia.commands.terminal import console, errors
from navia.commands.tokens import tokens
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


if __name__ == "__main__":
    main()
