"""The group of all commands of `yatt`, which imports a command's module when the command is called, or asked for its help.

Consumes the table of commands. Produces click commands that check the caller's permission before they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from ops.cli.command_table import ROWS, CommandRow, permission_of
from ops.terminal.people import guard

OPS = __package__.rpartition(".")[0]
"""The package of all rooms, as this module's own is named: `ops` in a checkout, else `yatt.ops`."""


def load_command(row: CommandRow) -> Any:
    """Returns the command or group of a row, as click knows it. Imports its module."""
    group = get_group(import_module(f"{OPS}.{row.module}").app)
    command = group if isinstance(row.permission, Mapping) else group.commands[row.word]
    guard(command, permission_of, (row.word,))
    return command


class LoadedCommands(Mapping[str, Any]):
    """The commands by their words; each is loaded once, when it is asked for."""

    def __init__(self, rows: tuple[CommandRow, ...]) -> None:
        self._rows = {row.word: row for row in rows}
        self._loaded = dict[str, Any]()

    def __getitem__(self, word: str) -> Any:
        if word not in self._loaded:
            self._loaded[word] = load_command(self._rows[word])
        return self._loaded[word]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class LazyGroup(TyperGroup):
    """Lists the commands as the table describes them, and loads the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._listed = {row.word: TyperCommand(row.word, help=row.help) for row in ROWS}
        self.commands: Any = LoadedCommands(ROWS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the words of the commands, in the table's order."""
        return list(self._listed)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns what help and the Tab key list of a command; None if there is no such command."""
        return self._listed.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the word, the command itself and what follows it, of a command that is called or completed."""
        word, listed, rest = super().resolve_command(ctx, args)
        return word, listed and self.commands[listed.name], rest
