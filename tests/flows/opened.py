"""A session that is opened but not driven: its ledger, spec and guards are real, but no actor is started."""

from __future__ import annotations

from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import RESULT, Metric
from flows.driver.session import DriverSession
from flows.launch import open_session
from flows.run.clock import SystemClock
from flows.run.control_state import ControlState
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.services import ROOT
from yatt_core.spec import load_spec


class HandClock(SystemClock):
    """A manual clock: `now`, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def new_run(home: Home, *overrides: str) -> str:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["tracking.enabled=false", *overrides])
    return create_run(home, spec)


def opened(home: Home, run: str) -> DriverSession:
    """Opens a session, which takes the run's lease, as a driver would."""
    with Ledger.open(home.ledger) as ledger:
        spec = current_spec(ledger, run)
    return open_session(home, run, spec, SilentObserver(), None)


def commit(session: DriverSession, iteration: int, **values: float) -> ControlState:
    """Commits an iteration with metrics (`__` for a slash), judged by the session's guards as in the flow."""
    before = session.context.ledger.commits.latest(session.context.run)
    since = {} if before is None else ControlState.from_json(before.state).guards
    metrics = [Metric(key.replace("__", "/"), value, RESULT) for key, value in values.items()]
    judged = session.guards.judge(session.context.branch, iteration, since, metrics)
    state = ControlState(iteration, ControlState.initial(session.context.spec.data).cursor, guards=judged.since)
    row = IterationCommit(
        session.context.branch, iteration, state.to_json(), logged_at_ms=0, metrics=metrics, outbox=judged.entries,
        alarms=judged.alarms,
    )  # fmt: skip
    session.context.ledger.commits.commit(session.context.fence, row)
    session.guards.committed(judged)
    return state
