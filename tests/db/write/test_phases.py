"""Attempts: planned first, charged only if they were dispatched, by whichever driver."""

from __future__ import annotations

from itertools import pairwise

import pytest

from db.core.engine import Fence
from db.core.errors import OutOfOrder
from db.ledger import Ledger
from db.write.records import ShardRow
from tests.db.tools import SimulatedClock, commit_of, holder


def test_an_attempt_goes_from_planned_to_done(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    attempt = ledger.phases.plan(fence, 0, 1, "collect")
    clock.advance(1)
    ledger.phases.dispatch(fence, attempt)
    clock.advance(2)
    ledger.phases.finish(fence, attempt, {"samples": 64}, seconds=2.0, bytes_to_driver=900)
    done = ledger.phases.done(run, 0, 1, "collect")
    assert done is not None
    assert (done.state, done.receipt, done.bytes_to_driver) == ("DONE", {"samples": 64}, 900)
    assert (done.dispatched_at or 0) - done.planned_at == 1000
    assert (done.ended_at or 0) - done.planned_at == 3000
    assert ledger.phases.done(run, 0, 2, "collect") is None
    assert ledger.phases.charged(run, 0, 1, "collect") == {}


def test_no_step_is_skipped_or_repeated(ledger: Ledger, fence: Fence) -> None:
    attempt = ledger.phases.plan(fence, 0, 1, "learn")
    with pytest.raises(OutOfOrder, match=r"i1/learn attempt 1 .*DISPATCHED"):
        ledger.phases.finish(fence, attempt, {}, 1.0)
    ledger.phases.dispatch(fence, attempt)
    with pytest.raises(OutOfOrder, match=r"i1/learn attempt 1 .*PLANNED"):
        ledger.phases.dispatch(fence, attempt)
    ledger.phases.finish(fence, attempt, {}, 1.0)
    with pytest.raises(OutOfOrder, match=r"i1/learn attempt 1 .*open"):
        ledger.phases.fail(fence, attempt, "data", "late")


def test_failures_are_charged_by_class_and_only_once_dispatched(ledger: Ledger, run: str, fence: Fence) -> None:
    for failure_class in ("data", "infrastructure", "infrastructure"):
        attempt = ledger.phases.plan(fence, 0, 1, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, failure_class, "it broke")
    undispatched = ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.fail(fence, undispatched, "infrastructure", "no engine")
    assert undispatched.number == 4
    assert ledger.phases.charged(run, 0, 1, "collect") == {"data": 1, "infrastructure": 2}
    assert ledger.phases.charged(run, 0, 2, "collect") == {}


@pytest.mark.parametrize("progress", ["sealed", "committed"])
def test_what_failed_before_something_new_was_made_is_no_longer_charged(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock, progress: str
) -> None:
    def fail(times: int) -> None:
        for _ in range(times):
            attempt = ledger.phases.plan(fence, 0, 1, "collect")
            ledger.phases.dispatch(fence, attempt)
            ledger.phases.fail(fence, attempt, "infrastructure", "it broke")
            clock.advance(1)

    assert ledger.phases.progressed_at(run) == 0
    fail(2)
    assert ledger.phases.charged(run, 0, 1, "collect") == {"infrastructure": 2}
    if progress == "sealed":
        ledger.records.shard(fence, ShardRow(0, 1, 0, 0, 1, "folder", "sha", 4, 9, b"d" * 32, {"reward": 1.0}))
    else:
        ledger.commits.commit(fence, commit_of(0))
    assert ledger.phases.progressed_at(run) == clock.now
    assert ledger.phases.charged(run, 0, 1, "collect") == {}
    fail(3)
    assert ledger.phases.charged(run, 0, 1, "collect") == {"infrastructure": 3}


def test_a_run_gets_on_when_a_phase_is_completed_for_the_first_time(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    def complete(phase: str) -> None:
        attempt = ledger.phases.plan(fence, 0, 1, phase)
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.finish(fence, attempt, {}, 1.0)
        clock.advance(1)

    ledger.commits.commit(fence, commit_of(0))
    committed = ledger.phases.got_on_at(run)
    assert committed == ledger.phases.progressed_at(run) == clock.now
    clock.advance(1)
    got_on = []
    for phase in ("collect", "collect", "recover", "learn", "recover", "learn"):
        complete(phase)
        got_on.append(ledger.phases.got_on_at(run))
    assert [later > earlier for earlier, later in pairwise([committed, *got_on])] == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert ledger.phases.progressed_at(run) == committed and ledger.phases.got_on_at("none-1") == 0


def test_a_drivers_death_is_charged_to_a_class_of_its_own(ledger: Ledger, run: str, clock: SimulatedClock) -> None:
    for death in range(3):
        fence = ledger.leases.acquire(run, holder(f"driver {death}"), ttl_seconds=10)
        assert ledger.phases.charged(run, 0, 1, "learn") == ({"driver_lost": death} if death else {})
        attempt = ledger.phases.plan(fence, 0, 1, "learn")
        assert attempt.number == death + 1
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.plan(fence, 0, 1, "sync")  # planned, never dispatched: not charged
        clock.advance(11)
    ledger.leases.acquire(run, holder("last"), ttl_seconds=10)
    assert ledger.phases.charged(run, 0, 1, "learn") == {"driver_lost": 3}
    assert ledger.phases.charged(run, 0, 1, "sync") == {}
    rows = ledger.phases.attempts(run, 0, 1)
    assert {(row.phase, row.state, row.reason) for row in rows} == {
        ("learn", "FAILED", "driver lost"),
        ("sync", "FAILED", "driver lost"),
    }


def test_a_driver_that_lost_the_ledger_fails_its_open_attempts(ledger: Ledger, run: str, fence: Fence) -> None:
    dispatched = ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.plan(fence, 0, 1, "sync")
    ledger.phases.dispatch(fence, dispatched)
    done = ledger.phases.plan(fence, 0, 0, "learn")
    ledger.phases.dispatch(fence, done)
    ledger.phases.finish(fence, done, {}, 1.0)
    other = ledger.leases.acquire(ledger.runs.create("toy", {}, "d", 1).id, holder("other"), ttl_seconds=10)
    ledger.phases.plan(other, 0, 1, "collect")
    assert ledger.phases.fail_open(fence, "the ledger was away") == 2
    assert ledger.phases.fail_open(fence, "the ledger was away") == 0
    assert ledger.phases.charged(run, 0, 1, "collect") == {"infrastructure": 1}
    assert ledger.phases.charged(run, 0, 1, "sync") == {}, "planned, never dispatched: not charged"
    assert {row.reason for row in ledger.phases.attempts(run, 0, 1)} == {"the ledger was away"}
    assert ledger.phases.attempts(other.run, 0, 1)[0].state == "PLANNED", "another run's attempt is not failed"
    with pytest.raises(OutOfOrder):
        ledger.phases.finish(fence, dispatched, {}, 1.0)


def test_the_history_of_a_phase_is_its_newest_finished_attempts(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    for iteration in range(1, 6):
        attempt = ledger.phases.plan(fence, 0, iteration, "collect")
        ledger.phases.dispatch(fence, attempt)
        clock.advance(1)
        if iteration == 4:
            ledger.phases.fail(fence, attempt, "infrastructure", "hung")
        else:
            ledger.phases.finish(fence, attempt, {}, iteration / 2)
    ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 6, "collect"))
    assert ledger.phases.history(run, "collect") == [2.5, 1.5, 1.0, 0.5]
    assert ledger.phases.history(run, "collect", limit=2) == [2.5, 1.5]
    assert ledger.phases.history(run, "learn") == []


def test_forgiven_failures_are_no_longer_charged_but_stay_on_record(ledger: Ledger, run: str, fence: Fence) -> None:
    def fail(iteration: int) -> None:
        attempt = ledger.phases.plan(fence, 0, iteration, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, "data", "no such word")

    for iteration in (1, 1, 2):
        fail(iteration)
    assert ledger.phases.forgive(fence, 0, 1, "collect", "the file is mended") == {"data": 2}
    assert ledger.phases.charged(run, 0, 1, "collect") == {}
    assert ledger.phases.charged(run, 0, 2, "collect") == {"data": 1}
    fail(1)
    assert ledger.phases.charged(run, 0, 1, "collect") == {"data": 1}
    assert [row.state for row in ledger.phases.attempts(run, 0, 1)] == ["FAILED"] * 3
    link = next(link for link in ledger.events.links(run) if link.kind == "forgiven")
    assert (link.body["up_to"], link.body["reason"]) == (2, "the file is mended")
    with pytest.raises(OutOfOrder, match="learn of iteration 1"):
        ledger.phases.forgive(fence, 0, 1, "learn", "why")
