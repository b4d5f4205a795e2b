"""What several commands share: their options, examples in `--help`, and the way to the ledger and a run in it.

Imported with the program, so nothing heavy is imported here before it is needed.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass


class Alias(StrEnum):
    """What a checkpoint can be promoted to."""

    CANDIDATE = "candidate"
    CHAMPION = "champion"
    ROLLBACK = "rollback"


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


HomeOption = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="Folder of runs and ledger. Default: $YATT_HOME, else ./runs."),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Text for people, or JSON on standard output for programs.")
]
SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC", help="The spec, a YAML file; see `yatt schema`.")]
OverridesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the spec; dots go deeper.")
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its id, a unique beginning of it, or `latest`.")
]
KeptOption = Annotated[int | None, typer.Option(min=0, help="A kept checkpoint's iteration. Default: the newest.")]


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(("Examples:", *commands))
