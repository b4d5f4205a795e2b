"""The program `yatt`: what holds for all commands, and one place that handles every error.

Imports only typer and small modules of this package. A command's module is imported when the command is called, so that
`yatt --help` responds immediately.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from ops.cli.command_group import LazyGroup
from ops.presentation.words import shortened
from ops.terminal import failures
from ops.terminal.options import HomeOption, examples
from yatt_core.errors import ConfigurationError, ExitCode

DEBUG = "--debug"
PYDANTIC = "Value error, "
NOTHING = re.compile(r"(--[a-z-]+=)?")
# From click itself, or from the copy of click bundled with newer versions of typer.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="yatt",
    cls=LazyGroup,
    help="Run long RLHF training jobs that survive failures: start, resume, monitor and inspect them.",
    epilog=examples("yatt train configs/quickstart.yaml", "yatt runs", "yatt show latest", "yatt resume latest"),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"yatt {version('yatt')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    home: HomeOption = None,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show tracebacks of errors; also accepted after the command.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Handles the options given before the command."""
    if home is not None:
        os.environ["YATT_HOME"] = str(Path(home).resolve())
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _check_words(words: Sequence[str]) -> None:
    """Raises `ConfigurationError` for an empty argument; treating it as absent could do something unintended."""
    for before, word in zip(("yatt", *words), words, strict=False):
        if NOTHING.fullmatch(word):
            where = repr(word) if word else f"after {before!r}"
            raise ConfigurationError(
                f"{where}: empty argument, possibly from an unset shell variable; give a value or leave the argument out"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code (`yatt_core.errors.ExitCode`)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given
    if not debug:
        warnings.simplefilter("ignore")  # library warnings are meant for developers
    try:
        _check_words(given)
        program = get_command(app)
        code = program([word for word in given if word != DEBUG], prog_name="yatt", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "yatt"
        said = error.format_message().replace(PYDANTIC, "")
        sys.stderr.write(f"error: {shortened(said)}\nsee `{command} --help`\n")
        return ExitCode.CONFIGURATION
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; Python's flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a message and an exit code
        return failures.report(error, debug)
    if code == ExitCode.INTERRUPTED:  # typer returns this on Ctrl-C without printing anything
        sys.stderr.write("interrupted\n")
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
