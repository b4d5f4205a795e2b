"""The command `yatt`: its commands, and the one place where every error ends.

Only typer and the small modules of this package are imported here; what a command needs it imports when it runs, so that
`yatt --help` answers at once.
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

from ops.cli import failures
from ops.cli.commands.checkpoints import evaluate, export, promote
from ops.cli.commands.driving import branches, deploy, train
from ops.cli.commands.inspection import alarms, audit, logs, placement, rollouts, runs
from ops.cli.commands.planning import doctor, plan, schema
from ops.cli.commands.services import dashboard, group, tokens
from ops.cli.options import HomeOption, examples
from ops.presentation.words import shortened
from yatt_core.errors import ConfigurationError, ExitCode

DEBUG = "--debug"
PYDANTIC = "Value error, "
NOTHING = re.compile(r"(--[a-z-]+=)?")
# click's class, or that of the copy of click which newer versions of typer carry.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="yatt",
    help="Long-running RLHF that survives everything: train, resume, watch, and ask why.",
    epilog=examples("yatt train configs/quickstart.yaml", "yatt runs", "yatt show latest", "yatt resume latest"),
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    train,
    deploy,
    plan,
    branches,
    runs,
    alarms,
    logs,
    rollouts,
    placement,
    evaluate,
    export,
    promote,
    audit,
    group,
    dashboard,
    tokens,
    schema,
    doctor,
):
    module.register(app)


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
        bool, typer.Option(DEBUG, help="Show the traceback of an error; taken behind a command too.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Options before the command."""
    if home is not None:
        os.environ["YATT_HOME"] = str(Path(home).resolve())
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _check_words(words: Sequence[str]) -> None:
    """Raises `ConfigurationError` for an empty word: taken for one that was not given, it would do what nobody asked for."""
    for before, word in zip(("yatt", *words), words, strict=False):
        if NOTHING.fullmatch(word):
            where = repr(word) if word else f"behind {before!r}"
            raise ConfigurationError(
                f"{where}: an empty word, as a shell variable that is not set leaves it; right would be a value, or neither"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code (`yatt_core.errors.ExitCode`)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given
    if not debug:
        warnings.simplefilter("ignore")  # libraries' advice to programmers
    try:
        _check_words(given)
        code = get_command(app)([word for word in given if word != DEBUG], prog_name="yatt", standalone_mode=False)
        sys.stdout.flush()
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "yatt"
        said = error.format_message().replace(PYDANTIC, "")
        sys.stderr.write(f"error: {shortened(said)}\nsee `{command} --help`\n")
        return ExitCode.CONFIGURATION
    except (KeyboardInterrupt, typer.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough; Python's own flush at the end must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILURE
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a message and an exit code
        return failures.report(error, debug)
    if code == ExitCode.INTERRUPTED:  # typer itself makes this of Ctrl-C, without a word
        sys.stderr.write("interrupted\n")
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
