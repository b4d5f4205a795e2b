"""Every command in README, docs and `--help` is understood by the program, and works on a run like the quickstart."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.run.home import Home
from ops.cli.main import app
from tests.flows.simulated import Simulation
from tests.ops.conftest import Answer
from tests.ops.conftest import yatt as yatt_fixture

ROOT = Path(__file__).parents[2]
PROGRAM = typer.main.get_command(app)
LEDGER_ONLY = {"fork", "rollback", "runs", "show", "alarms", "lineage", "placement", "token", "logs"}
"""Commands that need neither services nor a model with weights; tests of their own run the others."""
yatt = yatt_fixture


def written(text: str) -> Iterator[list[str]]:
    """Yields the commands of a page's code blocks, without comments."""
    for line in re.findall(r"^    (yatt [a-z].*)$", text, flags=re.MULTILINE):
        yield plain(line)


def plain(line: str) -> list[str]:
    """Returns the words of a command after `yatt`, up to a redirection or the next command."""
    words = shlex.split(line, comments=True)[1:]
    return list(itertools.takewhile(lambda word: word not in {">", "&&", "|"}, words))


def children(command: Any) -> dict[str, Any]:
    """Returns the commands of a group; empty for a single command. Newer versions of typer have their own click."""
    return getattr(command, "commands", {})


def commands_of(program: Any) -> Iterator[Any]:
    yield program
    for command in children(program).values():
        yield from commands_of(command)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTED = sorted({tuple(words) for page in PAGES for words in written(page.read_text(encoding="utf-8"))})
EXAMPLES = sorted(
    tuple(plain(line))
    for command in commands_of(PROGRAM)
    for line in (command.epilog or "").splitlines()
    if line.startswith("yatt ")
)


def concrete(words: tuple[str, ...]) -> bool:
    """Returns True unless words are placeholders, such as RUN or [--wait]."""
    return not any(re.fullmatch(r"[A-Z_]{1,12}|.*[\[\]|…].*|.*=[A-Z]+|\.\.\.", word) for word in words[1:])


@pytest.mark.parametrize("words", [words for words in (*DOCUMENTED, *EXAMPLES) if concrete(words)], ids=" ".join)
def test_a_command_is_understood(words: tuple[str, ...]) -> None:
    command, left = PROGRAM, list(words[2:] if words[0] == "--home" else words)
    while left and left[0] in children(command):
        command = children(command)[left.pop(0)]
    assert command is not PROGRAM, f"there is no command {words[0]!r}"
    if left:  # or a page only names the command
        command.make_context(" ".join(words), left)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Drives a run with the quickstart's name, length and checkpoints on a simulated cluster."""
    simulation = Simulation.of(
        tmp_path_factory.mktemp("finished") / "runs", "name=quickstart", "iterations=260", "checkpoints.every=50"
    )
    assert simulation.drive() is not None
    return simulation.home


@pytest.fixture
def home(finished: Home) -> Home:
    return finished


def runs_here(words: tuple[str, ...]) -> bool:
    return words[0] in LEDGER_ONLY and concrete(words) and len(words) > 1 and "-f" not in words


@pytest.mark.verify
@pytest.mark.parametrize("words", [words for words in (*DOCUMENTED, *EXAMPLES) if runs_here(words)], ids=" ".join)
def test_a_command_works_on_a_finished_quickstart(words: tuple[str, ...], yatt: object) -> None:
    answer: Answer = yatt(*words)  # type: ignore[operator]
    assert answer.code == 0, answer.err
