"""`yatt approvals`, `yatt approve` and `yatt reject`: lists, decisions in the account's name, and refusals."""

from __future__ import annotations

import pytest

from db.core.approval_rules import Deciders
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from flows.gates.waiting import waiting_reason
from flows.run.home import Home
from ops.people.caller import login_name
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run


@pytest.fixture
def run(home: Home) -> str:
    """Creates a run that is paused at a gate, and an approval of something else."""
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, this_process("test"), 60)
        mine = Deciders((login_name(),))
        asked = ledger.approvals.ask(ApprovalRequest(run, "k", "iterations", "continue after 2?", run, mine), fence)
        ledger.approvals.ask(
            ApprovalRequest("pipeline-1", "k", "gate", "promote?", deciders=Deciders(("nobody-else",)))
        )
        ledger.runs.set_state(fence, "paused", waiting_reason(asked))
        ledger.leases.release(fence)
    return run


def test_what_waits_is_listed(yatt: Yatt, run: str) -> None:
    document = yatt("approvals", "-o", "json").document
    assert [(row["id"], row["subject"], row["state"]) for row in document["approvals"]] == [
        (2, "pipeline-1", "pending"), (1, run, "pending"),
    ]  # fmt: skip
    assert [row["id"] for row in yatt("approvals", "--run", run, "-o", "json").document["approvals"]] == [1]
    assert "continue after 2?" in yatt("approvals").out


def test_a_decision_is_recorded_in_the_name_of_the_account(yatt: Yatt, home: Home, run: str) -> None:
    done = yatt("approve", "1", "--why", "it learns")
    assert done.code == 0 and f"`yatt resume {run}` continues the run" in done.out
    (row,) = [each for each in yatt("approvals", "--all", "-o", "json").document["approvals"] if each["id"] == 1]
    assert (row["state"], row["decided_by"], row["via"]) == ("approved", login_name(), "cli")
    assert [each["id"] for each in yatt("approvals", "-o", "json").document["approvals"]] == [2]
    again = yatt("reject", "1", "--why", "no")
    assert again.code == 2 and "was approved by" in again.err
    assert "by the deadline" not in yatt("approvals", "--all").out and "it learns" in yatt("approvals", "--all").out


def test_a_rejection_needs_the_right_and_a_reason(yatt: Yatt, home: Home, run: str) -> None:
    assert yatt("reject", "2", "--why", "no").code == 2
    assert "may not decide it; expected nobody-else" in yatt("reject", "2", "--why", "no").err
    assert yatt("reject", "1", "--why", " ").code == 2
    assert yatt("reject", "9", "--why", "no").code == 2
    with Ledger.open(home.ledger) as ledger:
        assert [row.decision for row in ledger.approvals.list()] == [None, None]
    assert yatt("reject", "1", "--why", "no progress", "-o", "json").document["state"] == "rejected"
    assert "nothing waits" in yatt("approvals", "--run", run).out


def test_an_automated_resume_leaves_an_open_gate_alone(yatt: Yatt, run: str) -> None:
    left = yatt("resume", run, "--unless-paused")
    assert left.code == 0 and "waits for approval 1" in left.err
