"""`yatt rm`: what it asks, refuses and reports, and what stays on record."""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import Any

import pytest

from db.core.errors import LeaseHeld
from db.core.holder import this_process
from db.core.subjects import of_run
from db.ledger import Ledger
from flows.disposal.archiving import ARCHIVED
from flows.run.creation import create_run
from flows.run.home import Home
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.errors import ExitCode


def test_runs_that_never_began_are_deleted_and_stay_on_record(yatt: Yatt, home: Home) -> None:
    made = [create_run(home, toy_spec()) for _ in range(2)]
    kept = seed_run(home)
    answer = yatt("rm", *made, "--yes", "--why", "mistyped", "--by", "ann", "-o", "json")
    assert answer.code == 0 and [row["run"] for row in answer.document["deleted"]] == made
    assert [row["id"] for row in yatt("runs", "-o", "json").document["runs"]] == [kept]
    assert not any(home.run_folder(run).exists() for run in made)
    recorded = yatt("runs", "--deleted", "-o", "json").document["deleted"]
    assert {(row["run"], row["by"], row["why"]) for row in recorded} == {(run, "ann", "mistyped") for run in made}
    text = yatt("runs", "--deleted").out
    assert all(word in text for word in (*made, "ann", "mistyped"))
    again = yatt("rm", made[0], "--yes")
    assert again.code == 2 and "deleted by ann" in again.err


def test_nothing_is_deleted_if_one_run_is_refused(yatt: Yatt, home: Home) -> None:
    begun = seed_run(home)
    idle = create_run(home, toy_spec())
    for words, says in (
        ((idle, begun), "iteration 2 is committed"),
        ((idle, "toy-9"), "no run 'toy-9'"),
        ((idle[:1],), "ambiguous"),
    ):
        answer = yatt("rm", *words, "--yes")
        assert answer.code == 2 and says in answer.err, words
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(idle, this_process("driver of it"), 60)
    answer = yatt("rm", idle, "--yes")
    assert answer.code == 2 and f"yatt stop {idle}" in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert [row.id for row in ledger.runs.list()] == [idle, begun]


def test_the_beginning_of_an_id_is_not_enough(yatt: Yatt, home: Home) -> None:
    run = create_run(home, toy_spec())
    answer = yatt("rm", run[:2], "--yes")
    assert answer.code == 2 and answer.err.rstrip().endswith(run)
    assert yatt("rm", "latest", "--yes").out == f"{run} is deleted\n"


@pytest.mark.parametrize(("said", "deleted"), [("y\n", True), ("n\n", False)])
def test_a_person_is_asked_on_a_terminal_only(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch, said: str, deleted: bool
) -> None:
    run = create_run(home, toy_spec())
    answer = yatt("rm", run)
    assert answer.code == 2 and "--yes" in answer.err
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("ops.terminal.people.typer.confirm", lambda question, err: run in question and said == "y\n")
    assert yatt("rm", run).code == 0
    with Ledger.open(home.ledger) as ledger:
        assert bool(ledger.deletions.list()) is deleted


@pytest.mark.parametrize("words", [("--why", "x\x1b[2Jy"), ("--by", "ann\nroot")])
def test_control_characters_are_not_recorded(yatt: Yatt, home: Home, words: tuple[str, str]) -> None:
    run = create_run(home, toy_spec())
    answer = yatt("rm", run, "--yes", *words)
    assert answer.code == 2 and words[0] in answer.err and "\x1b" not in answer.err
    assert [row["id"] for row in yatt("runs", "-o", "json").document["runs"]] == [run]


def test_nothing_is_archived_if_one_run_is_driven(yatt: Yatt, home: Home) -> None:
    idle = seed_run(home)
    driven = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(driven, this_process("yatt driver of it"), 60)
    answer = yatt("archive", idle, driven, "--yes")
    assert answer.code == ExitCode.LEASE_HELD and f"yatt stop {driven} --wait" in answer.err
    with Ledger.open(home.ledger) as ledger:
        assert ledger.events.of_kind(idle, ARCHIVED) == []


@pytest.mark.parametrize("words", [(), ("-o", "json")])
@pytest.mark.parametrize(("command", "work"), [("archive", "archiving.archive_run"), ("delete", "deletion.delete_run")])
def test_what_is_done_is_said_although_a_later_run_fails(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch, command: str, work: str, words: tuple[str, ...]
) -> None:
    """A driver begins between the check and the work on the second run."""
    package = "flows.disposal" if command == "archive" else "flows.run"
    whole = f"{package}.{work}"
    real = resolve_name(whole)
    done = list[str]()

    def interrupted(run: str, **given: Any) -> Any:
        if done:
            raise LeaseHeld(of_run(run), "yatt driver of it", 60.0)
        done.append(run)
        return real(run=run, **given)

    monkeypatch.setattr(whole, interrupted)
    answer = yatt(command, seed_run(home), seed_run(home), "--yes", *words)
    assert answer.code == ExitCode.LEASE_HELD
    assert done[0] in answer.out
