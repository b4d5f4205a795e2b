"""Runs: readable names, lookup by prefix, control with and without the lease, and overviews."""

from __future__ import annotations

import pytest

from db.core.ancestry import IterationRange
from db.core.engine import Fence
from db.core.errors import LedgerError, RunNotFound
from db.ledger import Ledger
from tests.db.tools import SimulatedClock, commit_of, commit_through, holder


def test_runs_of_a_spec_are_numbered(ledger: Ledger) -> None:
    names = [ledger.runs.create(name, {}, "d", 10).id for name in ("toy", "toy", "toy-1", "other")]
    assert names == ["toy-1", "toy-2", "toy-1-1", "other-1"]


def test_a_run_is_found_by_its_name_or_a_prefix_of_it(ledger: Ledger) -> None:
    for name in ("toy", "toy", "other"):
        ledger.runs.create(name, {}, "d", 10)
    assert ledger.runs.find("toy-1").id == "toy-1"
    assert ledger.runs.find("oth").id == "other-1"
    with pytest.raises(RunNotFound, match=r"'toy'.* toy-2, toy-1"):
        ledger.runs.find("toy")
    for absent in ("%", "TOY-1", "toy-3"):
        with pytest.raises(RunNotFound, match=repr(absent)):
            ledger.runs.find(absent)


def test_a_mistyped_run_gets_a_suggestion(ledger: Ledger) -> None:
    made = ledger.runs.create("quickstart", {}, "d", 1).id
    with pytest.raises(RunNotFound, match=f"'quikstart-1'.*did you mean '{made}'"):
        ledger.runs.find("quikstart-1")
    with pytest.raises(RunNotFound, match=r"'nobody' in this ledger$"):
        ledger.runs.find("nobody")


def test_revisions_are_kept(ledger: Ledger, run: str, fence: Fence) -> None:
    assert ledger.runs.add_revision(fence, {"seed": 0, "kl": 0.1}, "new", "kl too low", target_iterations=120) == 2
    assert (ledger.runs.revision(run).digest, ledger.runs.revision(run).reason) == ("new", "kl too low")
    assert ledger.runs.revision(run, 1).spec == {"seed": 0}
    assert ledger.runs.find(run).target_iterations == 120
    with pytest.raises(RunNotFound, match=r"toy-1.*\b3\b"):
        ledger.runs.revision(run, 3)


def test_operators_request_and_drivers_report_states(ledger: Ledger, run: str, fence: Fence) -> None:
    assert ledger.runs.desired_state(run) == "run"
    ledger.runs.ask_to_stop(run)
    assert ledger.runs.desired_state(run) == "stop"
    ledger.runs.set_state(fence, "paused", "disk full")
    ledger.runs.set_mlflow_run(fence, "abc")
    row = ledger.runs.find(run)
    assert (row.state, row.state_reason, row.mlflow_run_id) == ("paused", "disk full", "abc")
    with pytest.raises(LedgerError, match=r"'confused'.*created, running"):
        ledger.runs.set_state(fence, "confused")
    with pytest.raises(RunNotFound):
        ledger.runs.ask_to_stop("toy-9")


def test_a_stop_may_have_a_deadline(ledger: Ledger, run: str, clock: SimulatedClock) -> None:
    assert ledger.runs.stop_deadline(run) is None
    ledger.runs.ask_to_stop(run, "upgrade")
    assert ledger.runs.stop_deadline(run) is None
    ledger.runs.ask_to_stop(run, "preempted", within_seconds=30)
    clock.advance(10)
    assert ledger.runs.stop_deadline(run) == 20.0
    ledger.runs.ask_to_stop(run, "asked again without a limit")
    assert ledger.runs.stop_deadline(run) == 20.0
    ledger.runs.ask_to_stop(run, "sooner", within_seconds=5)
    clock.advance(6)
    assert ledger.runs.stop_deadline(run) == -1.0
    ledger.leases.acquire(run, holder("next"), ttl_seconds=10)
    assert (ledger.runs.desired_state(run), ledger.runs.stop_deadline(run)) == ("run", None)
    bodies = [link.body for link in ledger.events.links(run) if link.kind == "desired_state"]
    assert [body["within_seconds"] for body in bodies] == [None, 30, 5, None]
    with pytest.raises(RunNotFound):
        ledger.runs.stop_deadline("toy-9")


def test_the_overview_shows_the_state_of_a_run(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    ledger.leases.start_session(fence, "id", "brave-otter")
    ledger.commits.commit(fence, commit_of(0))
    failed = ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.dispatch(fence, failed)
    ledger.phases.fail(fence, failed, "infrastructure", "engine lost")
    for phase, seconds in (("collect", 2.0), ("learn", 0.5)):
        clock.advance(1)
        attempt = ledger.phases.plan(fence, 0, 1, phase)
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.finish(fence, attempt, {}, seconds, bytes_to_driver=100)
    overview = ledger.overview.show(run)
    assert (overview.line.holder, overview.line.lease_expires_in, overview.line.last_commit_age) == ("first", 8.0, 2.0)
    assert overview.line.run == ledger.runs.find(run)
    collect, learn = overview.phases
    assert (collect.phase, collect.attempts, collect.done, collect.seconds) == ("collect", 2, 1, 2.0)
    assert (collect.failures, collect.bytes_to_driver) == ({"infrastructure": 1}, 100)
    assert (learn.phase, learn.failures) == ("learn", {})
    assert overview.outbox_pending == 1
    ledger.runs.create("toy", {}, "d", 10)
    lines = ledger.overview.runs()
    assert [line.run.id for line in lines] == ["toy-2", "toy-1"]
    assert lines[1] == overview.line
    assert (lines[0].holder, lines[0].last_commit_age) == (None, None)
    with pytest.raises(RunNotFound):
        ledger.overview.show("toy-9")


def test_a_line_ends_at_its_newest_commit(ledger: Ledger, run: str, fence: Fence) -> None:
    assert ledger.runs.line(run) == (IterationRange(run, 0, 0, -1),)
    commit_through(ledger, fence, range(4))
    ledger.runs.start_branch(fence, 1, "back")
    assert ledger.runs.line(run) == (IterationRange(run, 0, 0, 1), IterationRange(run, 1, 2, 1))
    ledger.commits.commit(fence, commit_of(2, branch=1))
    assert ledger.runs.line(run)[-1] == IterationRange(run, 1, 2, 2)
    assert ledger.runs.line(run, 0) == (IterationRange(run, 0, 0, 3),)
    with pytest.raises(RunNotFound, match=r"branch 7\b"):
        ledger.runs.line(run, 7)
