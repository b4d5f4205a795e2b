"""Guards of a session on a real ledger: alarms in the commit's transaction, requests, stalls and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from db.ledger import Ledger
from db.write.outbox import PEOPLE
from flows.billing.session_billing import SessionBilling
from flows.branching.branches import revise
from flows.driver.guards import Guards
from flows.driver.run_status import set_state
from flows.driver.session import DriverSession
from flows.driver.stopping import StopRequests
from flows.phases.failure_policy import Paused, handle_failure
from flows.phases.guard_rollback import roll_back
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.flows.opened import HandClock, commit, new_run, opened
from yatt_core.errors import ExitCode, NumericError

HIGH = "guards.custom=[{name: high, metric: reward/mean, at_most: 1.0, window: 2, action: ACTION}]"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


class Opener:
    """Opens sessions in one home and ends those that a test has not ended."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._sessions = list[DriverSession]()

    def new(self, *overrides: str) -> DriverSession:
        return self.again(new_run(self.home, *overrides))

    def again(self, run: str) -> DriverSession:
        self._sessions.append(opened(self.home, run))
        return self._sessions[-1]

    def end(self, session: DriverSession, outcome: str = "ended") -> None:
        self._sessions.remove(session)
        session.end(outcome)

    def close(self) -> None:
        for session in self._sessions:
            session.end("ended")


@pytest.fixture
def opener(home: Home) -> Iterator[Opener]:
    opener = Opener(home)
    yield opener
    opener.close()


def test_an_alarm_comes_with_its_commit_and_its_evidence(opener: Opener) -> None:
    session = opener.new(HIGH.replace("ACTION", "alert"), "guards.notify={}")
    for iteration, value in enumerate((0.5, 3.0, 3.0, 3.0)):
        commit(session, iteration, reward__mean=value)
    rows = session.context.ledger.alarms.of(session.context.run)
    assert [(row.rule, row.iteration, row.first) for row in rows] == [("high", 1, 0), ("high", 3, 2)], "each value once"
    assert rows[0].evidence == {
        "metric": "reward/mean", "bound": "at_most", "observed": 1.75, "threshold": 1.0, "baseline": None,
        "window": [[0, 0.5], [1, 3.0]],
    }  # fmt: skip
    kinds = [link.kind for link in session.context.ledger.events.links(session.context.run)]
    assert [kinds[place - 1] for place, kind in enumerate(kinds) if kind == "alarm"] == ["commit", "commit"]
    assert session.context.ledger.events.verify(session.context.run) is None
    told = session.context.ledger.outbox.claim(session.context.fence, lane=PEOPLE)
    assert [row.id for row in told] == [row.id for row in rows]
    assert {row.kind for row in session.context.ledger.outbox.claim(session.context.fence)} == {"metrics"}, (
        "the tracker gets no alarm"
    )
    assert session.guards.ending(0, 3) is None


@pytest.mark.parametrize(("action", "state", "code"), [("pause", "paused", 4), ("stop", "stopped", 0)])
def test_an_ending_is_requested_until_it_has_happened(opener: Opener, action: str, state: str, code: int) -> None:
    session = opener.new(HIGH.replace("ACTION", action))
    run = session.context.run
    for iteration in (0, 1):
        commit(session, iteration, reward__mean=3.0)
    asked = session.guards.ending(0, 1)
    assert asked is not None and (asked.state, asked.exit_code) == (state, code)
    assert "guard high: reward/mean was 3 on average over iterations 0 to 1, above 1" in asked.reason
    opener.end(session, "lost")  # killed after the commit

    follower = opener.again(run)
    assert follower.guards.ending(0, 1) == asked
    set_state(follower.context, asked.state, asked.reason)
    opener.end(follower)

    resumed = opener.again(run)
    assert resumed.guards.ending(0, 1) is None, "the resume is a person's answer"
    commit(resumed, 2, reward__mean=3.0)
    assert resumed.guards.ending(0, 2) is None, "two values after the alarm are needed"
    commit(resumed, 3, reward__mean=3.0)
    assert resumed.guards.ending(0, 3) is not None


def test_many_samples_without_a_score_raise_an_alarm_and_most_pause_the_run(opener: Opener) -> None:
    session = opener.new()
    run = session.context.run
    alarms = session.context.ledger.alarms
    for iteration in range(6):
        commit(session, iteration, unscored_fraction=0.05)
    assert alarms.of(run) == []
    for iteration in range(6, 9):
        commit(session, iteration, unscored_fraction=0.2)
    assert {(row.rule, row.action) for row in alarms.of(run)} == {("unscored", "alert")}
    assert session.guards.ending(0, 8) is None
    for iteration in (9, 10):
        commit(session, iteration, unscored_fraction=0.31)
    assert ("mostly_unscored", 10, "pause") in [(row.rule, row.iteration, row.action) for row in alarms.of(run)]
    asked = session.guards.ending(0, 10)
    assert asked is not None and (asked.state, asked.exit_code) == ("paused", ExitCode.PAUSED)
    assert "guard mostly_unscored: unscored_fraction was 0.31 " in asked.reason


def test_a_successor_judges_the_same_windows_as_an_undisturbed_driver(opener: Opener) -> None:
    values = [1.0, 2.0, 0.5, 3.0, 0.0, 4.0, 4.0, 4.0]
    guard = HIGH.replace("ACTION", "alert")
    quiet = opener.new(guard)
    struck = opener.new(guard)
    for iteration, value in enumerate(values):
        commit(quiet, iteration, reward__mean=value)
        # The iteration is judged by a driver that dies before it commits, then again by the next driver.
        struck.guards.judge(0, iteration, {}, [])
        run = struck.context.run
        opener.end(struck, "lost")
        struck = opener.again(run)
        commit(struck, iteration, reward__mean=value)
    one, other = (
        [(row.iteration, row.evidence) for row in session.context.ledger.alarms.of(session.context.run)]
        for session in (quiet, struck)
    )
    assert one == other and len(one) == 4


def test_a_rollback_without_a_target_becomes_a_pause(opener: Opener) -> None:
    """Without a checkpoint there is nothing to roll back to."""
    session = opener.new(HIGH.replace("ACTION", "rollback"))
    for iteration in (0, 1):
        state = commit(session, iteration, reward__mean=3.0)
    assert session.guards.ending(0, 1) is None
    assert session.guards.to_roll_back() is not None
    assert not roll_back(session, state)
    asked = session.guards.ending(0, 1)
    assert asked is not None and asked.state == "paused" and "iteration 0" in asked.reason
    assert not roll_back(session, state), "requested only once"
    assert [row.action for row in session.context.ledger.alarms.of(session.context.run)] == ["rollback", "pause"]
    set_state(session.context, "paused", asked.reason)
    session.guards.look_up()
    assert session.guards.ending(0, 1) is None and session.guards.to_roll_back() is None


def test_a_branch_whose_opening_was_not_acknowledged_is_not_opened_again(opener: Opener) -> None:
    session = opener.new(HIGH.replace("ACTION", "rollback"))
    for iteration in (0, 1):
        state = commit(session, iteration, reward__mean=3.0)
    session.context.ledger.runs.start_branch(session.context.fence, 0, "guard high at iteration 1 of branch 0")
    assert roll_back(session, state)
    assert session.context.branch == 1 and len(session.context.ledger.overview.branches(session.context.run)) == 2
    assert not roll_back(session, state)


def test_a_new_branch_settles_requests_of_the_previous_one(opener: Opener) -> None:
    session = opener.new(HIGH.replace("ACTION", "pause"))
    for iteration in (0, 1):
        commit(session, iteration, reward__mean=3.0)
    session.context.ledger.runs.start_branch(session.context.fence, 0, "yatt rollback --to 0")
    session.guards.look_up()
    assert session.guards.ending(1, 0) is None


@pytest.mark.parametrize("wanted", ["rollback", "pause", "stop"])
def test_a_non_finite_update_raises_an_alarm_under_every_policy(opener: Opener, wanted: str) -> None:
    session = opener.new(f"recovery.on_non_finite={wanted}")
    for _ in range(2):  # a driver that dies after the alarm meets the same update again
        attempt = session.context.ledger.phases.plan(session.context.fence, 0, 3, "learn")
        session.context.ledger.phases.dispatch(session.context.fence, attempt)
        session.context.ledger.phases.fail(session.context.fence, attempt, "numeric", "the loss is nan")
        with suppress(Paused):
            handle_failure(session, 3, "learn", NumericError("the loss is nan"))
    (alarm,) = session.context.ledger.alarms.of(session.context.run)
    assert (alarm.rule, alarm.iteration, alarm.action) == ("non_finite", 3, "alert")
    assert "update 3 " in alarm.text and wanted in alarm.text and alarm.evidence == {"reason": "the loss is nan"}
    assert session.guards.ending(0, 2) is None, "recovery handles it, not the guard"


def guards_of(session: DriverSession, clock: HandClock, stops: StopRequests) -> Guards:
    ledger = session.context.ledger
    fence = session.context.fence
    spec = session.context.spec
    billing = SessionBilling(ledger, fence, spec, clock, None)
    return Guards(ledger, fence, spec, clock, SilentObserver(), stops, billing)


@pytest.mark.parametrize("action", ["alert", "pause"])
def test_a_stalled_phase_is_reported_once_per_attempt(opener: Opener, action: str) -> None:
    session = opener.new(f"guards.stalled_phase={{fraction: 0.5, action: {action}}}")
    clock = HandClock()
    stops = StopRequests()
    guards = guards_of(session, clock, stops)
    with Ledger.open(session.context.home.ledger) as beat:
        guards.look_at_phase(beat)
        for attempt in (1, 2):
            with guards.phase(0, 3, "collect", attempt, deadline=100.0):
                clock.now += 49.0
                guards.look_at_phase(beat)
                assert len(beat.alarms.of(session.context.run)) == attempt - 1
                clock.now += 2.0
                guards.look_at_phase(beat)
                guards.look_at_phase(beat)
        clock.now += 1000.0
        guards.look_at_phase(beat)
        rows = beat.alarms.of(session.context.run)
    assert [(row.rule, row.evidence["attempt"], row.evidence["threshold"]) for row in rows] == [
        ("stalled_phase", 1, 50.0), ("stalled_phase", 2, 50.0),
    ]  # fmt: skip
    assert "collect " in rows[0].text and " 51 s" in rows[0].text and " 100 s" in rows[0].text
    assert stops.asked == stops.overdue == (action == "pause")
    assert (guards.ending(0, 2) is not None) == (action == "pause")


def test_budgets_count_every_session_and_are_reported_once_per_limit(opener: Opener) -> None:
    session = opener.new("guards.budget={device_hours: 3.0, wall_hours: 2.0}", "trainer.engine.ranks=2")
    run = session.context.run
    clock = HandClock()
    guards = guards_of(session, clock, StopRequests())
    assert guards.ending(0, 4) is None
    clock.now = 1.6 * 3600
    for _ in range(2):
        over = guards.ending(0, 4)
        assert over is not None and over.exit_code == ExitCode.PAUSED and over.state == "paused"
        assert "3.2 device-hours" in over.reason and "budget is 3;" in over.reason
    clock.now = 2.1 * 3600
    assert guards.ending(0, 5) is not None
    rows = session.context.ledger.alarms.of(run)
    assert [(row.evidence["bound"], row.action) for row in rows] == [
        ("wall_hours", "alert"), ("device_hours", "pause"), ("wall_hours", "pause"),
    ], "a warning at 0.8 of a limit"  # fmt: skip
    opener.end(session)
    revise(opener.home, run, ["guards.budget={wall_hours: 9.0}"])
    assert opener.again(run).guards.ending(0, 5) is None, "a raised budget requests nothing"
