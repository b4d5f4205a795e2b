"""Alarms in the chain: with their commit or on their own, each once, and open until their action is carried out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.errors import Fenced, OutOfOrder
from db.ledger import Ledger
from db.write.outbox import NOTIFICATION, PEOPLE, OutboxEntry
from tests.db.tools import SimulatedClock, commit_of, commit_through, holder


def body(name: str, action: str = "alert", iteration: int = 1, rule: str = "") -> dict[str, Any]:
    return {
        "id": f"toy-1/{name}", "rule": rule or name, "branch": 0, "iteration": iteration, "first": 0, "action": action,
        "text": name, "evidence": {"window": [[0, 1.5]]},
    }  # fmt: skip


@pytest.mark.postgresql
def test_an_alarm_and_its_notification_are_recorded_once(ledger: Ledger, run: str, fence: Fence) -> None:
    told = OutboxEntry("toy-1/a", NOTIFICATION, {"text": "a"}, 7)
    assert ledger.alarms.record(fence, body("a"), [told])
    assert not ledger.alarms.record(fence, body("a"), [told])
    assert ledger.alarms.record(fence, body("b"))
    assert [(row.id, row.evidence) for row in ledger.alarms.of(run)] == [
        ("toy-1/a", {"window": [[0, 1.5]]}), ("toy-1/b", {"window": [[0, 1.5]]}),
    ]  # fmt: skip
    assert ledger.outbox.counts(run, lane=PEOPLE) == (1, 0)
    assert ledger.outbox.counts(run) == (0, 0)
    assert ledger.events.verify(run) is None


@pytest.mark.postgresql
def test_alarms_of_a_commit_are_recorded_with_it_or_not_at_all(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    ledger.commits.commit(fence, replace(commit_of(0), alarms=(body("a"), body("b"))))
    kinds = [link.kind for link in ledger.events.links(run)]
    assert kinds[-3:] == ["commit", "alarm", "alarm"]
    assert ledger.events.verify(run) is None
    with pytest.raises(OutOfOrder):
        ledger.commits.commit(fence, replace(commit_of(5), alarms=(body("c"),)))
    clock.advance(60)
    ledger.leases.acquire(run, holder("other"), 10)
    for write in (
        lambda: ledger.commits.commit(fence, replace(commit_of(1), alarms=(body("d"),))),
        lambda: ledger.alarms.record(fence, body("e")),
    ):
        with pytest.raises(Fenced):
            write()
    assert [row.id for row in ledger.alarms.of(run)] == ["toy-1/a", "toy-1/b"]


def unanswered(ledger: Ledger, run: str) -> list[str]:
    return [row.text for row in ledger.alarms.unanswered(run)]


@pytest.mark.postgresql
def test_an_alarm_stays_open_until_its_action_is_carried_out(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(3))
    for name, action in (("said", "alert"), ("ends", "pause"), ("goes back", "rollback")):
        ledger.alarms.record(fence, body(name, action))
    assert unanswered(ledger, run) == ["ends", "goes back"]
    for state in ("running", "failed"):
        ledger.runs.set_state(fence, state)
    assert unanswered(ledger, run) == ["ends", "goes back"], "neither state carries out the action"
    ledger.runs.set_state(fence, "paused")
    assert unanswered(ledger, run) == ["goes back"]
    ledger.alarms.record(fence, body("cannot", "pause", rule="goes back"))
    assert unanswered(ledger, run) == ["cannot"], "the alarm that says why it is impossible replaces it"
    ledger.runs.start_branch(fence, 0, "rolled back")
    assert unanswered(ledger, run) == []


def test_the_newest_points_follow_the_line(ledger: Ledger, run: str, fence: Fence) -> None:
    commit_through(ledger, fence, range(4))
    everything = ledger.metrics.history(run, "reward")
    assert ledger.metrics.newest(run, "reward", 2) == everything[-2:]
    ledger.runs.start_branch(fence, 1, "rolled back")
    assert ledger.metrics.newest(run, "reward", 3) == everything[:2]
    ledger.commits.commit(fence, replace(commit_of(2), branch=1))
    assert [step for step, _ in ledger.metrics.newest(run, "reward", 2)] == [1, 2]
    assert ledger.metrics.newest(run, "unknown", 2) == []
