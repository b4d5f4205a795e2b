"""A start survives services that fail meanwhile, within the budget, and too many lost drivers pause the run."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.errors import LedgerUnavailable
from db.ledger import Ledger
from db.write.runs import Runs
from flows.driver import start_retries
from flows.driver.session import DRIVER, DriverSession
from flows.driver.session_claims import claimed_session, ended_unless_claimed, offered
from flows.driver.start_retries import PAUSE_SECONDS, START_FAILED, with_retries
from flows.launch import open_session
from flows.run.clock import SystemClock
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.db.tools import holder
from tests.services import ROOT
from yatt_core.errors import (
    AwayError,
    ConfigurationError,
    ExitCode,
    InfrastructureError,
    LostActorError,
    StorageFullError,
)
from yatt_core.spec import load_spec

OVERRIDES = ("tracking.enabled=false", "recovery.budgets.infrastructure=3", "recovery.budgets.lost_drivers_per_hour=2")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


@pytest.fixture
def session(home: Home) -> DriverSession:
    return opened(home, create_run(home, load_spec(ROOT / "tests" / "specs" / "virtual.yaml", OVERRIDES)))


def opened(home: Home, run: str) -> DriverSession:
    with Ledger.open(home.ledger) as ledger:
        spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", OVERRIDES)
        assert ledger.runs.find(run)
    return open_session(home, run, spec, SilentObserver(), None)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_retries, "PAUSE_SECONDS", 0.0)


class Start:
    """A start that fails a number of times, then succeeds."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


def test_a_start_is_repeated_and_each_failure_is_recorded(session: DriverSession) -> None:
    start = Start(2, InfrastructureError("the Prefect server is gone"))
    assert with_retries(session, start) == "done"
    recorded = session.context.ledger.events.of_kind(session.context.run, START_FAILED)
    assert [link.body["attempt"] for link in recorded] == [1, 2]
    assert all("the Prefect server is gone" in link.body["reason"] for link in recorded)
    session.end("ended")


def test_a_start_that_exhausts_the_budget_fails_and_leaves_a_recorded_state(session: DriverSession) -> None:
    start = Start(9, InfrastructureError("no Ray head"))
    with pytest.raises(InfrastructureError, match="no Ray head"), ended_unless_claimed(session):
        with_retries(session, start)
    assert start.calls == 3
    with Ledger.open(session.context.home.ledger) as ledger:
        row = ledger.runs.find(session.context.run)
    assert (row.state, row.state_reason) == ("failed", "no Ray head")


def test_actors_that_die_during_the_start_have_a_budget_of_their_own(session: DriverSession) -> None:
    assert with_retries(session, Start(9, LostActorError("trainer-0: its actor died"))) == "done"
    start = Start(99, LostActorError("trainer-0: its actor died"))
    with pytest.raises(LostActorError, match="its actor died"), ended_unless_claimed(session):
        with_retries(session, start)
    assert start.calls == session.context.spec.recovery.budgets.lost_actors == 10


def test_a_start_that_fails_again_is_repeated_after_longer_and_longer_pauses(
    session: DriverSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(start_retries, "PAUSE_SECONDS", PAUSE_SECONDS)
    monkeypatch.setattr(SystemClock, "sleep", lambda clock, seconds: pauses.append(seconds))
    assert with_retries(session, Start(5, LostActorError("trainer-0: its actor died"))) == "done"
    session.end("ended")
    assert len(pauses) == 5 and pauses[0] >= 1.0
    assert all(later >= earlier + 1.0 for earlier, later in itertools.pairwise(pauses))


def test_what_is_away_is_waited_for_whatever_the_budget(session: DriverSession) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.driver.outages.pause_before", lambda tries, chance, longest: 0.0)
        assert with_retries(session, Start(5, AwayError("a node of the run is away: it is lost"))) == "done"
    run = session.context.run
    assert not session.context.ledger.events.of_kind(run, START_FAILED)
    assert session.context.ledger.runs.find(run).state_reason.startswith("waiting for a node of the run since ")
    session.book("", "")
    assert session.context.ledger.runs.find(run).state_reason == ""
    session.end("ended")


@pytest.mark.parametrize("error", [ConfigurationError("a wrong name"), StorageFullError("no space")])
def test_other_failures_are_not_repeated(session: DriverSession, error: Exception) -> None:
    start = Start(1, error)
    with pytest.raises(type(error)), ended_unless_claimed(session):
        with_retries(session, start)
    assert start.calls == 1


def test_a_failure_of_the_training_loop_is_not_repeated(session: DriverSession) -> None:
    calls = []

    def start() -> None:
        calls.append(1)
        with offered(session), claimed_session(session.context.run):
            raise InfrastructureError("a phase exhausted its own budget")

    with pytest.raises(InfrastructureError, match="its own budget"), ended_unless_claimed(session):
        with_retries(session, start)
    assert calls == [1]


def test_too_many_lost_drivers_in_a_row_pause_the_run_until_a_resume(home: Home, session: DriverSession) -> None:
    run = session.context.run
    session.end("ended")
    with Ledger.open(home.ledger) as ledger:
        for number in range(4):
            ledger.leases.acquire(run, holder(f"{DRIVER}{run} {number}"), 60, lambda _: True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("db.write.lease.is_gone", lambda _: True)
        patch.setattr("db.write.lease.Leases.acquire.__defaults__", (lambda _: True,))
        outcome = opened(home, run).obstructed()
    assert outcome is not None and (outcome.state, outcome.exit_code) == ("paused", ExitCode.PAUSED)
    assert "4 drivers in a row" in outcome.reason and "lost_drivers_per_hour is 2" in outcome.reason
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("db.write.phases.Phases.got_on_at", lambda self, run: 10**15)
        going_on = opened(home, run)
        assert going_on.obstructed() is None, "what was made meanwhile begins a new count"
        going_on.end("ended")
    resumed = opened(home, run)
    assert resumed.obstructed() is None, "an orderly end begins a new count"
    resumed.end("ended")


def test_a_start_that_waited_too_long_ends_although_the_ledger_does_not_record_it_at_once(
    session: DriverSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.driver.outages.HOUR", 0.0)
    monkeypatch.setattr("flows.driver.ledger_outage.pause_before", lambda tries, chance, longest: 0.0)
    set_state = Runs.set_state
    refused = list[str]()

    def setting(runs: Runs, fence: Fence, state: str, *more: object) -> None:
        if state == "paused" and not refused:
            refused.append(state)
            raise LedgerUnavailable("the ledger does not answer")
        set_state(runs, fence, state, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Runs, "set_state", setting)
    start = Start(9, AwayError("the Prefect server is away: connection refused"))
    outcome = with_retries(session, start)
    assert (outcome.state, start.calls, refused) == ("paused", 1, ["paused"])
