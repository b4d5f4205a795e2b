"""However a session ends: the ledger records the run's state, the lease is free, and no actor starts afterwards."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from db.core.engine import Database
from db.core.errors import Fenced, LedgerReadOnly, LedgerUnavailable
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.ledger_outage import LedgerOutage
from flows.driver.session import DriverSession
from flows.driver.session_claims import claimed_session, ended_on_error, ended_unless_claimed, offered
from flows.driver.windows import Window
from flows.launch import open_session
from flows.reports.session_report import publish_reports
from flows.run.clock import SystemClock
from flows.run.control_state import ControlState
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import OutboxItem, SilentObserver
from ops.terminal.failures import exit_code
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.errors import ExitCode, FencedError, InfrastructureError
from yatt_core.spec import load_spec


@pytest.fixture
def session(tmp_path: Path) -> DriverSession:
    home = Home(tmp_path / "runs")
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["tracking.enabled=false"])
    return open_session(home, create_run(home, spec), spec, SilentObserver(), None)


class ImpatientClock(SystemClock):
    """A clock that advances by a minute on every reading."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 60.0
        return self._now

    def sleep(self, seconds: float) -> None:
        pass


def recorded(session: DriverSession) -> tuple[str, str, str | None]:
    """Returns the run's state, its reason, and the holder of the lease."""
    with Ledger.open(session.context.home.ledger) as ledger:
        line = ledger.overview.show(session.context.run).line
    return line.run.state, line.run.state_reason, line.holder


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (InfrastructureError("token=abc"), "failed", "token=***"),
        (ZeroDivisionError("by nought"), "failed", "unexpected ZeroDivisionError: by nought"),
        (LedgerUnavailable("disk full"), "failed", "unexpected LedgerUnavailable: disk full"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
    ],
)
def test_every_error_leaves_a_recorded_state(
    session: DriverSession, error: BaseException, state: str, reason: str
) -> None:
    with pytest.raises(type(error)), ended_on_error(session):
        raise error
    assert recorded(session) == (state, reason, None)


def test_an_outcome_contains_no_secret(session: DriverSession) -> None:
    outcome = session.pause("no answer from http://me:hunter2@host/")
    assert "hunter2" not in outcome.reason and outcome.reason == recorded(session)[1]
    session.end("ended")


def test_an_expired_lease_that_nobody_took_leaves_a_failed_run(session: DriverSession) -> None:
    with pytest.raises(FencedError), ended_on_error(session):
        raise FencedError("the lease of term 1 ran out")
    assert recorded(session) == ("failed", "the lease of term 1 ran out", None)


def test_attempts_open_during_a_ledger_outage_have_failed_afterwards(session: DriverSession) -> None:
    attempt = session.context.ledger.phases.plan(session.context.fence, 0, 1, "collect")
    session.context.ledger.phases.dispatch(session.context.fence, attempt)
    session.ledger_outage.wait(LedgerUnavailable("token=abc: away"))
    (found,) = session.context.ledger.phases.attempts(session.context.run, 0, 1)
    assert (found.state, found.failure_class, found.reason) == ("FAILED", "away", "token=*** away")
    session.end("ended")


def test_a_ledger_that_became_read_only_counts_as_unavailable(
    session: DriverSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise LedgerReadOnly("the ledger x: /runs is not writable")

    context = replace(session.context, clock=ImpatientClock())
    session.ledger_outage = LedgerOutage(context, session.stops, session.threads, session.standby)
    with monkeypatch.context() as patch:
        patch.setattr(session.context.ledger.phases, "fail_open", refuses)
        with pytest.raises(LedgerUnavailable, match="did not answer for 7200 s: the ledger x: /runs is not") as raised:
            session.ledger_outage.wait(LedgerReadOnly("the ledger x"))
    assert exit_code(raised.value) == ExitCode.FAILURE
    session.end("ended")


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize(("part", "method"), [("leases", "start_session"), ("waits", "over"), ("runs", "set_state")])
def test_a_ledger_that_is_away_when_a_session_is_recorded_ends_no_driver(
    session: DriverSession, monkeypatch: pytest.MonkeyPatch, part: str, method: str, lost: str
) -> None:
    owner = getattr(session.context.ledger, part)
    record = getattr(owner, method)
    tried: list[str] = []

    def recording(*given: object) -> object:
        tried.append(method)
        found = record(*given) if lost == "answer" or len(tried) > 1 else None
        if len(tried) == 1:
            raise LedgerUnavailable("the ledger at db:5432 does not answer")
        return found

    monkeypatch.setattr(owner, method, recording)
    run = session.context.run
    with offered(session), claimed_session(run):
        session.book("flow-run", "brave-otter")
        assert recorded(session)[0] == "running"
    with Ledger.open(session.context.home.ledger) as ledger:
        (row,) = ledger.overview.sessions(run)
    assert (row.flow_run_id, row.outcome) == ("flow-run", "ended") and len(tried) >= 2


def test_a_ledger_that_is_away_from_the_outcome_on_changes_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "runs")
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml")
    session = open_session(home, create_run(home, spec), spec, SilentObserver(), {})

    def away(*_: object) -> None:
        raise LedgerUnavailable("the ledger at db:5432 does not answer")

    with monkeypatch.context() as patch, offered(session), claimed_session(session.context.run):
        session.book("flow-run", "brave-otter")
        session.pause("enough")
        for name in ("read", "write", "fenced"):
            patch.setattr(Database, name, away)
        publish_reports(session.context)
    assert session.failure is None and recorded(session)[:2] == ("paused", "enough")


def test_a_fenced_driver_leaves_the_state_to_its_successor(session: DriverSession) -> None:
    with Ledger.open(session.context.home.ledger) as ledger:
        ledger.leases.acquire(session.context.run, this_process("the next"), 60, holder_is_gone=lambda _: True)
        with pytest.raises(FencedError), ended_on_error(session):
            raise Fenced("term 1 is over")
    state, _, holder = recorded(session)
    assert state == "created" and holder is not None and "the next" in holder


def test_an_unreachable_ledger_does_not_hide_the_error_that_ended_the_session(
    session: DriverSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(session.context.ledger.runs, "set_state", unreachable)
    monkeypatch.setattr(session.context.ledger.leases, "release", unreachable)
    with pytest.raises(InfrastructureError, match="the cause"), ended_on_error(session):
        raise InfrastructureError("the cause")


def test_a_flow_that_fails_before_it_begins_leaves_a_recorded_state(session: DriverSession) -> None:
    with pytest.raises(ConnectionError), ended_unless_claimed(session), offered(session):
        raise ConnectionError("no Prefect server")
    assert recorded(session) == ("failed", "unexpected ConnectionError: no Prefect server", None)


def test_a_flow_that_claimed_its_session_ends_it_once(session: DriverSession) -> None:
    run = session.context.run
    with pytest.raises(ConnectionError), ended_unless_claimed(session), offered(session), claimed_session(run):
        raise ConnectionError("no MLflow")
    assert recorded(session) == ("failed", "unexpected ConnectionError: no MLflow", None)
    with Ledger.open(session.context.home.ledger) as ledger:
        assert [link.kind for link in ledger.events.links(session.context.run)].count("lease_released") == 1


def test_no_actors_are_started_after_the_end(session: DriverSession, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(session.start, "make_ready", lambda: started.append("actors"))
    connecting = threading.Event()
    connected = threading.Event()

    def connect() -> None:
        connecting.set()
        connected.wait(10)

    session.start.begin(connect)
    assert connecting.wait(10)
    threading.Timer(0.2, connected.set).start()
    session.end("interrupted")
    assert connected.is_set(), "the end waits for a start in progress"
    assert started == []


@pytest.mark.parametrize(("seconds_left", "stops"), [(3600.0, False), (0.0, True), (-5.0, True)])
def test_a_session_stops_at_the_end_of_its_window(session: DriverSession, seconds_left: float, stops: bool) -> None:
    now = datetime.fromtimestamp(session.context.clock.time_ms() / 1000, UTC)
    session.window = Window(now - timedelta(hours=8), now + timedelta(seconds=seconds_left))
    assert session.should_continue(ControlState.initial(session.context.spec.data)) is not stops
    assert session.stops.reason == (f"its window is over: {session.window}" if stops else "")
    session.end("ended")


class Meeting:
    """A tracker that closes only together with the others."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self.closed = False

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        return {item.key: "tracking-run" for item in items if item.kind == "run"}

    def close(self) -> None:
        self._barrier.wait(20)
        self.closed = True


def test_all_trackers_end_at_the_same_time(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    barrier = threading.Barrier(3)
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml")
    trackers = {name: Meeting(barrier) for name in ("mlflow", "tensorboard", "wandb")}
    session = open_session(home, create_run(home, spec), spec, SilentObserver(), trackers)
    session.end("done")
    assert all(tracker.closed for tracker in trackers.values())


class Waiting:
    """A tracker that delivers nothing until it is cut off; it then notes whether the lease is still held."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cut = threading.Event()
        self.holders: list[bool] = []
        self.delivering = threading.Event()

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        self.delivering.set()
        assert self._cut.wait(30)
        raise InfrastructureError("cut off")

    def cut(self) -> None:
        with Ledger.open(self._home.ledger, migrate=False) as ledger:
            self.holders += [holder is not None for holder in ledger.leases.holders().values()]
        self._cut.set()

    def close(self) -> None:
        """Does nothing."""


def test_a_delivery_that_takes_too_long_is_cut_off_before_the_lease_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.driver.threads.OUTBOX_DRAIN_SECONDS", 0.1)
    home = Home(tmp_path / "runs")
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["tracking.trackers=[mlflow]"])
    tracker = Waiting(home)
    session = open_session(home, create_run(home, spec), spec, SilentObserver(), {"mlflow": tracker})
    session.threads.deliver()
    assert tracker.delivering.wait(30)
    session.end("done")
    assert tracker.holders == [True]
    assert recorded(session)[2] is None


def test_a_delivery_is_cut_off_once_the_lease_is_lost(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["recovery.lease_seconds=1"])
    tracker = Waiting(home)
    session = open_session(home, create_run(home, spec), spec, SilentObserver(), {"mlflow": tracker})
    session.threads.deliver()
    assert tracker.delivering.wait(30)
    with Ledger.open(home.ledger) as ledger:
        ledger.leases.acquire(session.context.run, this_process("another driver"), 60, lambda holder: True)
    wait_until(lambda: tracker.holders, seconds=30.0)
    session.end("fenced")
