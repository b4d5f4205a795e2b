"""The table of commands says what the modules have, and a module is imported only for a command of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_group

from ops.cli.command_group import load_command
from ops.cli.command_table import COMMANDS, ROWS, CommandRow
from ops.people.roles import Permission
from tests.ops.cli.test_main import HEAVY
from tests.services import ROOT

PROGRAM = "ops.cli.main"
"""The one module with an `app` that is no command."""
MARK = "app = typer.Typer("
"""The line of a module that has commands."""
LIBRARIES = tuple(name for name in HEAVY if name != "pydantic")
"""What the module of a command does not import; typer itself reads a command's words with pydantic."""


def functions_of(command: Any) -> Iterator[str]:
    """Yields the functions, with their modules, of a command and of those below it."""
    below = getattr(command, "commands", None)
    if below is None:
        yield f"{command.callback.__module__}.{command.callback.__name__}"
        return
    for each in below.values():
        yield from functions_of(each)


def imported_by(*words: str) -> tuple[list[str], list[str]]:
    """Returns the modules of commands, and the libraries that take long, that a call of `yatt` imports."""
    look = (
        f"import sys\nimport typer\nfrom {PROGRAM} import main\n"
        f"main({list(words)!r})\n"
        "of_ops = {name: module for name, module in sys.modules.items() if name.startswith('ops.')}\n"
        "print(*(name for name, module in of_ops.items() if isinstance(getattr(module, 'app', None), typer.Typer)))\n"
        f"print(*(name for name in {LIBRARIES} if name in sys.modules))\n"
    )
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    modules, libraries = answer.stdout.splitlines()[-2:]
    return [name.removeprefix("ops.") for name in modules.split() if name != PROGRAM], libraries.split()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_a_row_says_what_its_module_has(row: CommandRow) -> None:
    command = load_command(row)
    assert command.name == row.word
    assert " ".join(command.help.partition("\n\n")[0].split()) == row.help
    if not isinstance(row.permission, Permission):
        assert list(command.commands) == list(row.permission)
    for function in functions_of(command):
        assert function.startswith(f"ops.{row.module.rpartition('.')[0]}.")


def test_no_command_is_missing_or_listed_twice() -> None:
    files = (ROOT / "ops").rglob("*.py")
    written = {
        function
        for name in (
            ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if MARK in path.read_text()
        )
        if name != PROGRAM
        for function in functions_of(get_group(import_module(name).app))
    }
    listed = [function for row in ROWS for function in functions_of(load_command(row))]
    assert sorted(listed) == sorted(written)
    assert len(COMMANDS) == len(listed)


def test_help_imports_no_module_of_a_command() -> None:
    assert imported_by("--help") == ([], [])
    assert imported_by("trian") == ([], [])


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (("runs", "--help"), ["cli.commands.inspection.runs"]),
        (("sweep", "--help"), ["sweeps.command"]),
        (("restore", "-h"), ["backup.backup", "backup.restore"]),
        (("resume", "--nonsense"), ["cli.commands.driving.stopping", "cli.commands.driving.train"]),
    ],
    ids=" ".join,
)
def test_a_command_imports_its_own_module_alone(words: tuple[str, ...], modules: list[str]) -> None:
    found, libraries = imported_by(*words)
    assert (sorted(found), libraries) == (modules, [])


def test_no_command_imports_what_takes_long_before_it_is_called() -> None:
    look = (
        "import sys\nfrom ops.cli.command_group import ROWS, load_command\n"
        "for row in ROWS:\n    load_command(row)\n"
        f"print(*(name for name in {(*LIBRARIES, 'rich.console')} if name in sys.modules))\n"
    )
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.split() == []
