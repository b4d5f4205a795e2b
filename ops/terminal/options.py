"""Options and arguments shared by several commands, and the examples at the end of `--help`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.terminal.completion import complete_run, complete_spec


class Alias(StrEnum):
    """Aliases that a checkpoint can be promoted to."""

    CANDIDATE = "candidate"
    CHAMPION = "champion"
    ROLLBACK = "rollback"


class Output(StrEnum):
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="DIR", help="Folder with the runs and the ledger. Default: $YATT_HOME, else ./runs."
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format; JSON goes to standard output.")]
SpecArgument = Annotated[
    Path,
    typer.Argument(metavar="SPEC", help="Spec file in YAML; see `yatt schema`.", autocompletion=complete_spec),
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the spec; dots separate nested keys."),
]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, a unique prefix of it, or `latest`.", autocompletion=complete_run),
]
AtOnceOption = Annotated[
    int | None,
    typer.Option("--at-once", metavar="N", min=1, help="Runs driven at a time. Default: as many as the devices hold."),
]
KeptOption = Annotated[int | None, typer.Option(min=0, help="Iteration of a kept checkpoint. Default: the newest one.")]


def examples(*commands: str) -> str:
    """Returns the examples at the end of a command's help."""
    return "\n\n".join(("Examples:", *commands))
