"""Every act of a command is recorded in the audit chain under the name of the person who called it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from db.ledger import Ledger
from db.write.events import RESUME_REQUESTED
from flows.run.creation import create_run
from flows.run.home import Home
from ops.cli.commands.driving import train
from ops.people.caller import TOKEN_VARIABLE
from ops.people.roles import Role
from ops.people.tokens import TokenStore
from tests.ops.cli.test_branches import holder
from tests.ops.cli.test_branches import run as run
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec


@pytest.fixture(autouse=True)
def alice(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands act as alice, and drive nothing."""
    monkeypatch.setenv(TOKEN_VARIABLE, TokenStore(home.folder).create("alice", Role.ADMIN))
    monkeypatch.setattr(train, "drive", lambda *arguments, **options: None)
    yield


def newest(home: Home, run: str, kind: str) -> dict[str, Any]:
    with Ledger.open(home.ledger) as ledger:
        return dict(ledger.events.of_kind(run, kind)[-1].body)


def test_stop_fork_rollback_and_revision_name_who(yatt: Yatt, home: Home, run: str) -> None:
    driven = seed_run(home, ends=False)
    acts = [
        (("stop", driven), driven, "desired_state"),
        (("checkpoint", driven), driven, "checkpoint_requested"),
        (("fork", run, "--at", "2", "--name", "heir"), "heir-1", "fork"),
        (("fork", run, "--at", "2", "--name", "heir"), "heir-2", "spec_revision"),
        (("resume", run, "--set", "iterations=9"), run, "spec_revision"),
        (("rollback", run, "--to", "2"), run, "branch"),
    ]
    for words, name, kind in acts:
        answer = yatt(*words)
        assert answer.code == 0, answer.err
        assert newest(home, name, kind)["by"] == "alice", (words, kind)


def test_a_retry_names_who(yatt: Yatt, home: Home, run: str) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, holder(), 60)
        attempt = ledger.phases.plan(fence, 0, 4, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, "data", "no such word")
        ledger.leases.release(fence)
    assert yatt("retry", run, "--iteration", "4", "--phase", "collect").code == 0
    assert newest(home, run, "forgiven")["by"] == "alice"


def test_a_driver_names_who_started_it_once(home: Home, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_HOME", str(home.folder))
    driven = seed_run(home, ends=False)
    with Ledger.open(home.ledger) as ledger:
        train._request(ledger, run, accept_drift=False)
        train._request(ledger, run, accept_drift=False)  # as in the process that a dashboard starts for a request
        (link,) = ledger.events.of_kind(run, RESUME_REQUESTED)
        ledger.annotations.write_note(run, "x", "bob")
        assert link.body["by"] == "alice"
        train._request(ledger, run, accept_drift=True)
        assert newest(home, run, RESUME_REQUESTED) == {"by": "alice", "reason": "", "accept_drift": True}
        train._request(ledger, driven, accept_drift=False)
        assert ledger.events.of_kind(driven, RESUME_REQUESTED) == [], "its driver refuses another"


def test_creation_and_deletion_name_who(yatt: Yatt, home: Home) -> None:
    name = create_run(home, toy_spec(), by="alice")
    assert newest(home, name, "spec_revision")["by"] == "alice"
    assert yatt("rm", name, "--yes").code == 0
    with Ledger.open(home.ledger) as ledger:
        deleted = ledger.deletions.find(name)
    assert deleted is not None and deleted.by == "alice"
