"""Every command in README, docs and `--help` is understood by the program, and works on a run like the quickstart."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from db.ledger import Ledger
from flows.run.creation import create_run
from flows.run.home import Home
from ops.cli.main import app
from tests.flows.simulated import Simulation
from tests.ops.conftest import Yatt
from tests.ops.conftest import yatt as yatt_fixture
from tests.ops.seeding import toy_spec
from tests.placement.recorded_run import judged_spec, record_run

ROOT = Path(__file__).parents[2]
PROGRAM = typer.main.get_command(app)
READERS = {"runs", "show", "costs", "watch", "compare", "alarms", "aliases", "lineage", "placement", "logs"}
LEDGER_ONLY = READERS | {"fork", "rollback", "rm", "token"}
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
    command = PROGRAM
    left = list(words[2:] if words[0] == "--home" else words)
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


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Records a run whose devices are divided between rollout and a judge."""
    home = Home(tmp_path_factory.mktemp("judged") / "runs")
    record_run(home, judged_spec("placement.mode=dynamic"), 20)
    return home


@pytest.fixture
def home(request: pytest.FixtureRequest, words: tuple[str, ...], tmp_path: Path) -> Home:
    """Returns a home in which a command finds what it names; only commands that change something get a copy."""
    source: Home = request.getfixturevalue("judged" if words[0] == "placement" else "finished")
    if words[0] in READERS and not lacking(source, words):
        return source
    home = Home(tmp_path / "runs")
    shutil.copytree(source.folder, home.folder, copy_function=copied)
    newest = ["fresh-1"] if words[0] == "rm" and "latest" in words else []
    for name in lacking(home, (*words, *newest)):
        create_until(home, name)
    return home


def copied(source: str, target: str) -> None:
    """Copies a database, which is written in place, and links any other file."""
    shutil.copyfile(source, target) if ".db" in Path(source).name else os.link(source, target)


def lacking(home: Home, words: tuple[str, ...]) -> list[str]:
    """Returns the runs that a command names and that do not exist."""
    with Ledger.open(home.ledger) as ledger:
        there = {row.id for row in ledger.runs.list()}
    return [word for word in words if re.fullmatch(r"(quickstart|slower|judged|fresh)-\d+", word) and word not in there]


def create_until(home: Home, name: str) -> None:
    """Creates runs that never began, up to the given one."""
    spec = toy_spec().model_copy(update={"name": name.rpartition("-")[0]})
    while create_run(home, spec) != name:
        pass


def runs_here(words: tuple[str, ...]) -> bool:
    """Returns True for a command that ends by itself and needs no service."""
    alone = "-f" not in words and not any("s3://" in word for word in words)
    return words[0] in LEDGER_ONLY and concrete(words) and len(words) > 1 and alone


@pytest.mark.verify
@pytest.mark.parametrize(
    "words", sorted({words for words in (*DOCUMENTED, *EXAMPLES) if runs_here(words)}), ids=" ".join
)
def test_a_command_works_on_a_finished_quickstart(
    words: tuple[str, ...], yatt: Yatt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[:2] == ("token", "revoke"):
        assert yatt("token", "create", words[2]).code == 0
    if "--user" in words:
        assert yatt("user", "add", words[words.index("--user") + 1], "--role", "approver").code == 0
    answer = yatt(*words, *(["--yes"] if words[0] == "rm" and "--yes" not in words else []))
    assert answer.code == 0, answer.err
