"""Pages of a run and of the run list: newest first, each row once, none skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from db.core.engine import Fence
from db.ledger import Ledger
from db.read.history import RunHistory
from db.write.metrics import TIMING, Metric
from db.write.records import CheckpointRow, DecisionRow
from flows.reports.accounting import accounts_of
from tests.db.tools import SimulatedClock, commit_of, commit_through, holder


def attempt(
    ledger: Ledger, fence: Fence, clock: SimulatedClock, iteration: int, phase: str, fails: bool = False
) -> None:
    clock.advance(0.25)
    made = ledger.phases.plan(fence, 0, iteration, phase)
    ledger.phases.dispatch(fence, made)
    clock.advance(1)
    if fails:
        ledger.phases.fail(fence, made, "infrastructure", "lost")
    else:
        ledger.phases.finish(fence, made, {"replayed": 0}, 1.0)


def drive(ledger: Ledger, fence: Fence, clock: SimulatedClock, first: int, last: int) -> None:
    for iteration in range(first, last + 1):
        if iteration % 5 == 3:
            attempt(ledger, fence, clock, iteration, "learn", fails=True)
        for phase in ("collect", "learn"):
            attempt(ledger, fence, clock, iteration, phase)
        ledger.leases.renew(fence, 10)
        ledger.commits.commit(fence, commit_of(iteration))


@pytest.mark.postgresql
def test_the_newest_attempts_are_accounted_for_like_the_whole_history(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    ledger.leases.start_session(fence, "", "one")
    drive(ledger, fence, clock, 0, 9)
    ledger.leases.end_session(fence, "ended")
    ledger.leases.release(fence)
    clock.advance(50)
    again = ledger.leases.acquire(run, holder("second"), 10)
    ledger.leases.start_session(again, "", "two")
    drive(ledger, again, clock, 10, 19)
    whole = ledger.overview.history(run)
    assert whole.since is None and ledger.overview.history(run, 1000) == whole
    assert ledger.overview.history(run, len(whole.attempts)) == whole
    for newest in (5, 12, 22, 30):
        _check(whole, ledger.overview.history(run, newest), newest)


@pytest.mark.postgresql
def test_costs_of_failures_are_computed_without_all_successful_attempts(
    ledger: Ledger, run: str, clock: SimulatedClock
) -> None:
    for number in range(4):
        fence = ledger.leases.acquire(run, holder(f"driver {number}"), 10)
        ledger.leases.start_session(fence, "", f"{number}")
        clock.advance(2)
        attempt(ledger, fence, clock, max(0, 10 * number - 1), "recover")
        drive(ledger, fence, clock, 10 * number, 10 * number + 9)
        lost = ledger.phases.plan(fence, 0, 10 * number + 10, "collect")
        ledger.phases.dispatch(fence, lost)
        clock.advance(30)  # it died, unnoticed for 30 s
    fence = ledger.leases.acquire(run, holder("last"), 10)
    ledger.leases.start_session(fence, "", "last")
    drive(ledger, fence, clock, 40, 49)
    whole = ledger.overview.history(run)
    part = ledger.overview.struck(run, 10, 500)
    assert len(part.attempts) < len(whole.attempts) * 0.7
    costs = accounts_of(whole).crashes
    assert len(costs) == 14 and any(crash.restart_seconds for crash in costs) and any(crash.redone for crash in costs)
    assert accounts_of(part).crashes == costs
    assert len(ledger.overview.struck(run, 10, 1).attempts) < len(part.attempts)


def _check(whole: RunHistory, part: RunHistory, newest: int) -> None:
    assert part.attempts == whole.attempts[-newest:]
    assert part.since == part.attempts[0].planned_at
    found = accounts_of(part)
    all_of_it = accounts_of(whole)
    end = max(attempt.ended_at or 0 for attempt in whole.attempts)
    assert found.wall_seconds == pytest.approx((end - part.since) / 1000)
    assert sum(found.buckets.values()) == pytest.approx(found.wall_seconds)
    assert found.buckets["idle"] == (50 if newest > 22 else 0)
    assert found.crashes == all_of_it.crashes[len(all_of_it.crashes) - len(found.crashes) :]
    assert len(found.crashes) == sum(attempt.state == "FAILED" for attempt in part.attempts)


@pytest.mark.postgresql
def test_pages_of_a_run_continue_where_the_last_one_ended(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    commit_through(ledger, fence, range(1))
    for iteration in range(1, 6):
        ledger.records.decision(fence, DecisionRow(0, iteration, 0, {}, {"mode": "split"}, {}, f"why {iteration}"))
        row = CheckpointRow(run, 0, iteration, fence.term, f"s{iteration}", "d", 1, "w", 0.1)
        ledger.records.checkpoint(fence, row)
        attempt(ledger, fence, clock, iteration, "learn", fails=True)
        commit_through(ledger, fence, [iteration])
    first = ledger.browse.decisions(run, 2)
    assert [row.iteration for row in first] == [5, 4]
    assert [row.iteration for row in ledger.browse.decisions(run, 9, before=4)] == [3, 2, 1]
    faults = ledger.browse.faults(run, 2)
    assert [row.iteration for row in faults] == [5, 4]
    assert [row.iteration for row in ledger.browse.faults(run, 9, faults[-1].ended_at)] == [3, 2, 1]
    kept = ledger.browse.checkpoints(run, 2)
    last = kept[-1]
    rest = ledger.browse.checkpoints(run, 9, (last.iteration, last.branch, last.term))
    assert [row.iteration for row in (*kept, *rest)] == [5, 4, 3, 2, 1]
    commits = ledger.browse.events(run, 3, kinds=("commit",))
    assert [link.body["iteration"] for link in commits] == [5, 4, 3]
    assert [link.body["iteration"] for link in ledger.browse.events(run, 9, commits[-1].seq, ("commit",))] == [2, 1, 0]
    assert len(ledger.browse.events(run, 500)) == ledger.events.head(run).seq


@pytest.mark.postgresql
def test_rows_that_belong_together_are_on_one_page(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    for iteration in (1, 2):
        for seq in range(3):
            ledger.records.decision(fence, DecisionRow(0, iteration, seq, {}, {}, {}, ""))
        for phase in ("collect", "learn", "sync"):
            ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, iteration, phase))
        clock.advance(1)
        ledger.phases.fail_open(fence, "the ledger was away")
    first = ledger.browse.faults(run, 2)
    assert sorted((row.iteration, row.phase) for row in first) == [(2, "collect"), (2, "learn"), (2, "sync")]
    assert {row.iteration for row in ledger.browse.faults(run, 2, first[-1].ended_at)} == {1}
    decided = ledger.browse.decisions(run, 1)
    assert [(row.iteration, row.seq) for row in decided] == [(2, 2), (2, 1), (2, 0)]
    assert len(ledger.browse.decisions(run, 9, decided[-1].iteration)) == 3


@pytest.mark.postgresql
def test_decisions_follow_the_line_after_a_rollback(ledger: Ledger, run: str, fence: Fence) -> None:
    for iteration in range(5):
        ledger.records.decision(fence, DecisionRow(0, iteration, 0, {}, {}, {}, f"first {iteration}"))
        commit_through(ledger, fence, [iteration])
    branch = ledger.runs.start_branch(fence, 2, "back")
    ledger.records.decision(fence, DecisionRow(branch, 3, 0, {}, {}, {}, "second 3"))
    commit_through(ledger, fence, [3], branch)
    reasons = [row.reason for row in ledger.browse.decisions(run, 9)]
    assert reasons == ["second 3", "first 2", "first 1", "first 0"]


@pytest.mark.postgresql
def test_the_run_list_shows_pace_reward_faults_and_pending_rows(ledger: Ledger, clock: SimulatedClock) -> None:
    for number in range(3):
        run = ledger.runs.create("toy", {}, "d", 100).id
        fence = ledger.leases.acquire(run, holder("driver"), 10)
        if number == 1:
            ledger.runs.set_state(fence, "running")
            for iteration in range(40):
                pace = 10.0 if iteration < 24 else 2.0
                metrics = [Metric("reward/mean", iteration / 100), Metric("seconds/iteration", pace, TIMING)]
                ledger.commits.commit(fence, commit_of(iteration, metrics=metrics))
            attempt(ledger, fence, clock, 40, "learn", fails=True)
            attempt(ledger, fence, clock, 40, "learn", fails=True)
        clock.advance(1)
    page = ledger.run_list.page()
    assert [line.line.run.id for line in page.lines] == ["toy-2", "toy-3", "toy-1"]
    assert (page.total, page.states) == (3, {"created": 2, "running": 1})
    first = page.lines[0]
    assert (first.reward, first.iteration_seconds) == (0.39, 2.0)
    assert page.lines[1].reward is None
    names = [line.line.run.id for line in page.lines]
    assert ledger.run_list.attempts(names) == {"toy-2": {("learn", "infrastructure"): 2}}
    assert ledger.run_list.outbox_pending(names) == {"toy-2": 40}
    assert ledger.run_list.newest(names, ["reward/mean", "kl"]) == {("toy-2", "reward/mean"): 0.39}
    assert [line.line.run.id for line in ledger.run_list.page(limit=1, offset=2).lines] == ["toy-1"]
    assert ledger.run_list.page(text="%").total == 0
    assert ledger.run_list.page(text="OY-3").total == 1


def plans_of(ledger: Ledger, read: Callable[[], object]) -> list[str]:
    """Returns the database's query plan for each statement that a read sends."""
    sent: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        sent.append((statement, parameters))

    engine = ledger._database._reader
    event.listen(engine, "before_cursor_execute", note)
    read()
    event.remove(engine, "before_cursor_execute", note)
    with ledger._database.read() as connection:
        explained = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            for statement, parameters in sent
            if statement.startswith(("SELECT", "WITH"))
        ]
        return [" ".join(row.detail for row in plan) for plan in explained]


def test_long_runs_are_read_through_indexes(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    """SQLite has no statistics on row counts, so it plans by the indexes alone."""
    if ledger._database.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL plans a small table without indexes")
    ledger.leases.start_session(fence, "", "one")
    drive(ledger, fence, clock, 0, 9)
    ledger.records.decision(fence, DecisionRow(0, 5, 0, {}, {}, {}, ""))
    reads: dict[str, tuple[Callable[[], object], set[str]]] = {
        "links of a kind": (lambda: ledger.browse.events(run, 5, kinds=("commit",)), {"event_run_kind_seq_index"}),
        "failed attempts": (lambda: ledger.browse.faults(run, 5), {"phase_attempt_failed_index"}),
        "attempts at an iteration": (lambda: ledger.phases.attempts(run, 0, 5), {"sqlite_autoindex_phase_attempt_1"}),
        "newest metrics": (
            lambda: ledger.run_list.newest([run], ["reward/mean"]),
            {"metric_point USING PRIMARY KEY (series=? AND branch=? AND step=?)"},
        ),
        "newest attempts": (lambda: ledger.overview.history(run, 5), {"phase_attempt_run_planned_at_index"}),
        "decisions": (
            lambda: ledger.browse.decisions(run, 1, before=9),
            {"sqlite_autoindex_placement_decision_1 (run=? AND branch=? AND iteration=?)"},
        ),
        "faults that ended together": (
            lambda: ledger.browse.faults(run, 1, before=clock.now + 1),
            {"phase_attempt_failed_index (run=? AND ended_at=?)"},
        ),
        "struck": (
            lambda: ledger.overview.struck(run, 5, 5),
            {"phase_attempt_failed_index", "phase_attempt_repeated_index", "phase_attempt_run_planned_at_index"},
        ),
    }
    for name, (read, indexes) in reads.items():
        plans = plans_of(ledger, read)
        assert plans, name
        for index in indexes:
            assert any(index in plan for plan in plans), (name, index, plans)
        for plan in plans:
            assert "SCAN phase_attempt" not in plan and "SCAN event" not in plan, (name, plan)
    for name in ("links of a kind", "failed attempts"):
        assert not any("TEMP B-TREE" in plan for plan in plans_of(ledger, reads[name][0])), name
