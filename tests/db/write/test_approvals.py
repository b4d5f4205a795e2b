"""Approvals in the ledger: asked once, decided once, by those who may, before the deadline that decides otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.core.approval_rules import (
    APPROVED,
    DECISIONS,
    PENDING,
    REJECTED,
    WITHDRAWN,
    Approval,
    Deciders,
    may_decide,
    standing,
)
from db.core.engine import Fence
from db.core.errors import ApprovalNotFound, ApprovalRefused, Fenced, LedgerError, RunNotFound
from db.ledger import Ledger
from db.write.approvals import ASKED, DECIDED, ApprovalDecision, ApprovalRequest
from db.write.outbox import NOTIFICATION, PEOPLE, OutboxEntry
from tests.db.tools import SimulatedClock, everything

WORKERS = 4
YES = ApprovalDecision(APPROVED, "ann", "the curve is good", "cli")


def question(
    run: str | None, key: str = "b0-i4", seconds: float | None = None, default: str = REJECTED
) -> ApprovalRequest:
    return ApprovalRequest(
        run or "pipeline-1", key, "iterations", "Go on?", run, Deciders(("ann",), ("approver",)), seconds, default
    )


NAMES = st.sampled_from(["ann", "bob", "carl"])
ROLES = st.sets(st.sampled_from(["viewer", "operator", "approver"]))


@given(st.sets(NAMES), ROLES, NAMES, ROLES)
def test_the_named_and_the_holders_of_a_role_may_decide(
    names: set[str], roles: set[str], name: str, own: set[str]
) -> None:
    expected = name in names or bool(roles & own) or not (names | roles)
    assert may_decide(Deciders(tuple(names), tuple(roles)), name, own) == expected


@given(st.none() | st.integers(0, 20), st.sampled_from(DECISIONS), st.none() | st.sampled_from(DECISIONS))
def test_an_open_approval_becomes_its_default_at_the_deadline(
    deadline: int | None, default: str, decision: str | None
) -> None:
    row = Approval(1, "a-1", "k", None, "x", "?", {}, Deciders(), 0, deadline, default, decision)
    for now in range(25):
        due = deadline is not None and now >= deadline
        assert standing(row, now) == (decision or (default if due else PENDING))


@pytest.mark.postgresql
def test_a_question_is_asked_once_and_decided_once(ledger: Ledger, run: str, fence: Fence) -> None:
    told = [OutboxEntry(f"{run}/ask", NOTIFICATION, {"text": "?"}, 1)]
    asked = ledger.approvals.ask(question(run), fence, told)
    assert ledger.approvals.ask(question(run), fence, told) == asked
    assert standing(asked, ledger.approvals.now()) == PENDING
    assert ledger.approvals.list(only_open=True) == [asked]
    done = ledger.approvals.decide(asked.id, YES)
    assert (done.decision, done.decided_by, done.via, done.reason) == (APPROVED, "ann", "cli", "the curve is good")
    assert ledger.approvals.ask(question(run), fence, told) == done == ledger.approvals.find(asked.id)
    with pytest.raises(ApprovalRefused, match="was approved by ann"):
        ledger.approvals.decide(asked.id, ApprovalDecision(REJECTED, "ann", "no", "api"))
    assert ledger.approvals.list(only_open=True) == []
    kinds = [link.kind for link in ledger.events.links(run) if link.kind in (ASKED, DECIDED)]
    assert kinds == [ASKED, DECIDED] and ledger.events.verify(run) is None
    body = ledger.events.of_kind(run, DECIDED)[0].body
    assert body["decided_by"] == "ann" and body["reason"] == "the curve is good" and body["approval"] == asked.id
    assert ledger.outbox.counts(run, lane=PEOPLE)[0] == 1


def test_something_other_than_a_run_may_ask(ledger: Ledger) -> None:
    asked = ledger.approvals.ask(question(None))
    assert (
        ledger.approvals.decide(asked.id, ApprovalDecision(REJECTED, "bob", "not yet", "api", ("approver",))).run
        is None
    )
    assert [row.decision for row in ledger.approvals.of("pipeline-1")] == [REJECTED]


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (ApprovalDecision(APPROVED, "bob", "why not", "cli"), "bob may not decide it; expected ann, role approver"),
        (ApprovalDecision(APPROVED, "ann", "  ", "cli"), "needs a reason"),
        (ApprovalDecision("maybe", "ann", "hm", "cli"), "expected one of approved, rejected"),
    ],
)
def test_a_refused_decision_changes_nothing(ledger: Ledger, run: str, verdict: ApprovalDecision, says: str) -> None:
    asked = ledger.approvals.ask(question(run))
    before = everything(ledger)
    with pytest.raises(ApprovalRefused, match=says):
        ledger.approvals.decide(asked.id, verdict)
    assert everything(ledger) == before


def test_questions_that_make_no_sense_are_refused(ledger: Ledger, run: str, fence: Fence) -> None:
    with pytest.raises(ApprovalRefused, match="'perhaps'"):
        ledger.approvals.ask(question(run, default="perhaps"))
    with pytest.raises(RunNotFound):
        ledger.approvals.ask(question("nothing-7"))
    with pytest.raises(ApprovalNotFound, match="approval 7"):
        ledger.approvals.decide(7, YES)
    with pytest.raises(Fenced):
        ledger.approvals.ask(question(run), Fence.of_run(run, fence.term + 1))


def test_the_deadline_decides_and_nobody_after_it(ledger: Ledger, run: str, clock: SimulatedClock) -> None:
    asked = ledger.approvals.ask(question(run, seconds=60, default=APPROVED))
    other = ledger.approvals.ask(question(run, key="later", seconds=600))
    clock.advance(59)
    assert ledger.approvals.take_default(asked.id) == asked and ledger.approvals.take_defaults() == []
    clock.advance(1)
    with pytest.raises(ApprovalRefused, match="was approved by its deadline"):
        ledger.approvals.decide(asked.id, ApprovalDecision(REJECTED, "ann", "too late", "cli"))
    assert ledger.approvals.take_defaults("other-1") == []
    [done] = ledger.approvals.take_defaults()
    assert (done.id, done.decision, done.decided_by) == (asked.id, APPROVED, "deadline")
    assert ledger.approvals.take_defaults(run) == [] and ledger.approvals.list(only_open=True) == [other]


def test_a_question_that_no_longer_matters_is_withdrawn(ledger: Ledger, run: str) -> None:
    asked = ledger.approvals.ask(question(run))
    done = ledger.approvals.withdraw(asked.id, "branch 0 was left")
    assert (done.decision, done.reason) == (WITHDRAWN, "branch 0 was left")
    assert ledger.approvals.withdraw(asked.id, "again") == done
    with pytest.raises(ApprovalRefused, match="was withdrawn"):
        ledger.approvals.decide(asked.id, YES)


@pytest.mark.postgresql
def test_concurrent_askers_and_deciders_agree(ledger: Ledger, run: str) -> None:
    barrier = Barrier(WORKERS)

    def work(worker: int) -> tuple[int, int, bool]:
        barrier.wait()
        mine, free = (ledger.approvals.ask(question(subject)).id for subject in (run, None))
        try:
            ledger.approvals.decide(mine, ApprovalDecision(DECISIONS[worker % 2], "ann", f"worker {worker}", "cli"))
        except LedgerError:
            return mine, free, False
        return mine, free, True

    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(work, range(WORKERS)))
    assert len({(mine, free) for mine, free, _ in results}) == 1
    assert sum(decided for *_, decided in results) == 1
    assert ledger.events.verify(run) is None


def test_a_deleted_run_takes_its_approvals_along(ledger: Ledger, run: str, fence: Fence) -> None:
    ledger.approvals.ask(question(run), fence)
    ledger.deletions.delete(fence, "ann", "a mistake", {})
    assert ledger.approvals.list() == []


def test_what_is_not_carried_out_or_ended_is_found_among_any_number(ledger: Ledger) -> None:
    run = ledger.runs.create("toy", {}, "d", 3).id
    for number in (1, 2, 3):
        ledger.approvals.ask(ApprovalRequest(run, str(number), "promotion", "go on?", run))
        ledger.events.append(run, "begun", {"approval": number})

    def found() -> tuple[list[str], list[int]]:
        between = ledger.approvals.decided_between("begun", "ended")
        return ledger.approvals.runs_to_settle("promotion", "done"), [row.id for row in between]

    assert found() == ([], [])
    ledger.approvals.decide(1, ApprovalDecision(APPROVED, "ann", "well", "cli"))
    ledger.approvals.decide(2, ApprovalDecision(REJECTED, "ann", "no", "cli"))
    assert found() == ([run], [1, 2]) and ledger.approvals.runs_to_settle("iterations", "done") == []
    ledger.events.append(run, "done", {"approval": 1})
    ledger.events.append(run, "ended", {"approval": 2})
    assert found() == ([], [1])
    ledger.events.append(run, "begun", {"approval": 2})
    assert found() == ([], [1, 2])
