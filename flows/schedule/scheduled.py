"""The flow run that a worker starts for a window of a deployment: one session, or the reason why there is none.

Consumes a begun window (`flows.schedule.window_start`). Produces the flow run's final state: completed, or a sentence that
names the holder of the run, a paused run, or the error that ended the session. Changes of the spec that the window's
parameters ask for become a revision once the run is free, just before it is driven. The run's audit chain records why a
window did not drive the run; the reaper reads these records too (`flows.schedule.reaper`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from prefect import flow
from prefect.flows import Flow
from prefect.states import Completed, Failed

from db.core.errors import LeaseHeld, LedgerError
from db.ledger import Ledger
from flows.branching.branches import revise
from flows.driver.run_status import SessionOutcome
from flows.driver.stopping import StartInterrupted, start_ended_in_order
from flows.driver.windows import waits
from flows.launch import run_session
from flows.run.clock import Clock, SystemClock
from flows.run.home import Home
from flows.run.lease import is_keeper
from flows.run.pages import Pages
from flows.run.protocols import Notifier, Observer, Tracker
from flows.schedule.flow_names import FLOW
from flows.schedule.reaper import DEPLOYED
from flows.schedule.suspension import suspend_window
from flows.schedule.window_record import record_left, window_of_holder
from flows.schedule.window_start import (
    LOOK_SECONDS,
    NOBODY_AUTHORS,
    PAUSED,
    BegunWindow,
    Ending,
    now_of,
    paused,
    refused,
)
from yatt_core.errors import ExitCode, YattError
from yatt_core.logs import redact

HELD = "Held"

WindowFlow = Flow[..., Ending]


def window_flow(function: Callable[..., Ending]) -> WindowFlow:
    """Turns a function that supplies the external services into the flow of a window."""
    summary = (function.__doc__ or "").partition("\n")[0]  # the rest describes the parameters
    named = f"{{{DEPLOYED}}}"
    return flow(name=FLOW, description=summary, flow_run_name=named, retries=0, persist_result=False)(function)


def stopped_in_order(home: Home, run: str, body: Callable[[], Ending]) -> Ending:
    """Runs a window from its beginning; returns its final state.

    If it is cancelled in Prefect before its training loop heeds requests, it ends as one that trains: the run is stopped,
    nothing is held, and the flow run says so.

    run: the deployment's run.
    """
    try:
        with start_ended_in_order():
            return body()
    except StartInterrupted:
        try:
            with Ledger.open(home.ledger, migrate=False) as ledger:
                row = ledger.runs.find(run)
        except LedgerError as error:
            return Failed(message=redact(f"the window was asked to stop during its start: {error}"))
        said = f"run {run} is {row.state} at iteration {row.iteration}: the window was asked to stop during its start"
        return Completed(message=said)


def drive_window(
    home: Home,
    begun: BegunWindow,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    notifier: Callable[[], Notifier | None] = lambda: None,
    clock: Clock | None = None,
    pages: Pages | None = None,
) -> Ending:
    """Drives the run until the end of this flow run's window.

    notifier: creates the notifier; an error that it raises ends the window.
    """
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            parts = _Parts(
                home=home,
                observer=observer,
                trackers=trackers,
                notifier=notifier(),
                clock=clock or SystemClock(),
                pages=pages,
            )
            outcome = _drive(ledger, begun, parts)
            if isinstance(outcome, SessionOutcome):
                if outcome.exit_code == ExitCode.PAUSED:
                    suspend_window(ledger, begun.run, begun.flow_run)
                return _ending(outcome)
            return outcome
    except (YattError, LedgerError) as error:
        return Failed(message=redact(str(error)))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a session needs besides its window. Fields as in `drive_window`."""

    home: Home
    observer: Observer
    trackers: Mapping[str, Tracker]
    notifier: Notifier | None
    clock: Clock
    pages: Pages | None

    def session(self, begun: BegunWindow) -> SessionOutcome:
        return run_session(
            self.home,
            begun.run,
            self.observer,
            self.trackers,
            notifier=self.notifier,
            window=begun.window,
            pages=self.pages,
        )


def _drive(ledger: Ledger, begun: BegunWindow, parts: _Parts) -> SessionOutcome | Ending:
    """Drives a session; returns its outcome, or the final state of the window if it has driven nothing."""
    patient_until: datetime | None = None
    revision: int | None = None
    while True:
        try:
            if begun.changes and revision is None:
                try:
                    # Asked again under the lease: the run's spec may have changed since the window began.
                    revision = revise(parts.home, begun.run, begun.changes, refusal=NOBODY_AUTHORS)
                except YattError as error:
                    return refused(
                        ledger=ledger,
                        run=begun.deployed,
                        flow_run=begun.flow_run,
                        parameters=begun.parameters,
                        error=error,
                    )
            return parts.session(begun)
        except LeaseHeld as held:
            now = now_of(parts.clock)
            if is_keeper(held.holder):  # it is about to release the lease
                stays = not begun.window.is_over(now)
            else:
                patient_until = patient_until or now + timedelta(seconds=held.expires_in)
                stays = waits(begun.window, window_of_holder(ledger, begun.run), patient_until, now)
            if not stays:
                return _left(ledger, begun, _held(begun.run, held.holder, revision))
            parts.observer.stage(f"waiting for {held.holder} to end")
            parts.clock.sleep(LOOK_SECONDS)
            # A guard may have paused the run in the last iteration of the previous holder.
            if (waiting := paused(ledger, begun.run)) is not None:
                return _left(ledger, begun, waiting)


def _held(run: str, holder: str, revision: int | None) -> Ending:
    done = (
        "nothing was done" if revision is None else f"it was not driven; revision {revision} of its spec is in effect"
    )
    return Completed(name=HELD, message=f"run {run} is held by {holder}: {done}")


def _left(ledger: Ledger, begun: BegunWindow, ending: Ending) -> Ending:
    """Records why the window has not driven its run; returns the window's final state."""
    record_left(ledger, begun.run, begun.flow_run, ending.message or "")
    return ending


def _ending(outcome: SessionOutcome) -> Ending:
    """Returns the final state of a window that drove its run, or found the target already reached."""
    said = f"run {outcome.run} is {outcome.state} at iteration {outcome.iteration}: {redact(outcome.reason)}"
    return Completed(message=said) if outcome.exit_code == ExitCode.OK else Failed(name=PAUSED, message=said)
