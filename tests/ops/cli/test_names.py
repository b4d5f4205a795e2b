"""Every command that takes a run reports one that does not exist in the same way, with a suggestion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.home import Home
from ops.cli.main import app
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from tests.services import ROOT

OPTIONS = {
    ("fork",): ["--at", "1"],
    ("rollback",): ["--to", "1"],
    ("retry",): ["--iteration", "3", "--phase", "collect"],
    ("export",): ["--to", "model"],
    ("promote",): ["--to", "champion", "--why", "best"],
    ("rm",): ["--yes"],
    ("placement", "explain"): ["1"],
    ("placement", "gantt"): ["1"],
    ("queue", "priority"): ["1"],
    ("pipeline", "backfill"): ["--suite", str(ROOT / "configs" / "suites" / "spelling.yaml")],
}


def naming_a_run(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the commands whose first argument is a run."""
    for name, child in getattr(command, "commands", {}).items():
        yield from naming_a_run(child, (*path, name))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if arguments and arguments[0].name in ("run", "runs"):
        yield path


COMMANDS = sorted(naming_a_run(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_mistyped_run_gets_a_suggestion(yatt: Yatt, home: Home, command: tuple[str, ...]) -> None:
    run = seed_run(home, committed=0)
    for wrong, meant in ((f"{run[0]}{run}", run), ("latst", "latest")):
        answer = yatt(*command, wrong, *OPTIONS.get(command, []))
        assert (answer.code, answer.out) == (2, "")
        assert repr(wrong) in answer.err and repr(meant) in answer.err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_there_is_no_latest_run_in_an_empty_ledger(yatt: Yatt, home: Home, command: tuple[str, ...]) -> None:
    home.folder.mkdir()
    Ledger.open(home.ledger).close()
    answer = yatt(*command, "latest", *OPTIONS.get(command, []))
    assert (answer.code, answer.out) == (2, "") and "yatt train SPEC" in answer.err


def test_commands_that_name_a_run_are_found() -> None:
    assert {("show",), ("resume",), ("audit", "verify"), ("placement", "explain"), ("rm",)} <= set(COMMANDS)


def test_a_holder_that_is_a_command_is_not_to_be_stopped(yatt: Yatt, home: Home) -> None:
    run = seed_run(home)
    for holder, says in (("yatt promote of it", "try again"), ("yatt driver of it", f"yatt stop {run} --wait")):
        with Ledger.open(home.ledger) as ledger:
            fence = ledger.leases.acquire(run, this_process(holder), 60)
            answer = yatt("rollback", run, "--to", "1")
            assert answer.code == 3 and says in answer.err
            ledger.leases.release(fence)
