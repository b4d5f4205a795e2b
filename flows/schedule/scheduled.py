"""The flow run that a worker starts for a window of a deployment: one session, or the reason why there is none.

Consumes the deployment's parameters and the scheduled time of the flow run. Produces the flow run's final state:
completed, or a sentence that names the holder of the run, a missed window, or the error that ended the session. The
run's audit chain records the start of the window, its process, and why it did not drive the run; the reaper
reads these records too (`flows.schedule.reaper`).

A scheduled flow run drives until the end of its window, however late it starts. If the window is already over, it
does nothing, so a worker that was away does not catch up on missed windows. The window of a flow run that was started
manually begins when the flow run starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.context import FlowRunContext
from prefect.flows import Flow
from prefect.states import Completed, Failed

from db.core.errors import LeaseHeld, LedgerError
from db.core.holder import this_process
from db.ledger import Ledger
from flows.driver.run_status import Outcome
from flows.driver.windows import Window, moment_text, waits
from flows.launch import run_session
from flows.prefect_io.prefect_client import AWAY, server_needed, server_trouble
from flows.run.clock import Clock, SystemClock
from flows.run.home import Home
from flows.run.lease import is_keeper
from flows.run.owner import owner_of
from flows.run.pages import Pages
from flows.run.protocols import Notifier, Observer, Tracker
from flows.schedule.reaper import FLOW, reap
from flows.schedule.schedule_times import following
from flows.schedule.window_record import record_left, record_window, window_of_holder
from yatt_core.errors import ConfigurationError, ExitCode, InfrastructureError, YattError
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.flow")
HELD, MISSED, PAUSED = "Held", "Missed", "Paused"
LOOK_SECONDS = 1.0
SERVER_SECONDS = 60.0
"""How long Prefect's server may be unreachable when a window begins."""
Ending = State[None]

WindowFlow = Flow[..., Ending]


def window_flow(function: Callable[..., Ending]) -> WindowFlow:
    """Turns a function that supplies the external services into the flow of a window."""
    return flow(name=FLOW, flow_run_name="{run}", retries=0, persist_result=False)(function)


def drive_window(
    home: Home,
    run: str,
    owner: str | None,
    longest: timedelta | None,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    notifier: Callable[[], Notifier | None] = lambda: None,
    clock: Clock | None = None,
    pages: Pages | None = None,
) -> Ending:
    """Drives the run until the end of this flow run's window.

    owner: digest of the run that the deployment was made for.
    longest: the maximum duration of a window.
    notifier: creates the notifier; an error that it raises ends the window.
    """
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None, "a window is a flow run"
    flow_run, clock = context.flow_run, clock or SystemClock()
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            _check_owner(ledger, home, run, owner)
            own = window_of(flow_run, longest, _now(clock))
            record_window(ledger, run, str(flow_run.id), own, this_process(f"window of {run}"))
            _close_dead(ledger, home)
            reason = _reason_to_leave(ledger, run, own, _now(clock))
            outcome = reason or _drive(ledger, home, run, own, observer, trackers, notifier(), clock, pages)
            if isinstance(outcome, Outcome):
                return _ending(outcome)
            record_left(ledger, run, str(flow_run.id), outcome.message or "")
            return outcome
    except (YattError, LedgerError) as error:
        return Failed(message=redact(str(error)))


def _check_owner(ledger: Ledger, home: Home, run: str, owner: str | None) -> None:
    """Checks that the deployment was made for this ledger's run.

    Raises `ConfigurationError` if the deployment names no owner or a run of another ledger; `RunNotFound`.
    """
    here = owner_of(ledger, ledger.runs.find(run).id)
    if owner is None:
        raise ConfigurationError(
            f"the deployment names no owner of run {run}, so it may be meant for another ledger; nothing was done. "
            f"Deploy it again, with the YATT_LEDGER of that run: `yatt deploy --run {run} --name NAME` and its schedule"
        )
    if owner != here:
        raise ConfigurationError(
            f"the deployment was made for another run {run} than the one in this worker's ledger {home.ledger}: it "
            f"names owner {owner}, but this run's owner is {here}; nothing was done. Start a worker with the "
            f"YATT_LEDGER that `yatt deploy` had, or deploy again with this one: "
            f"`yatt deploy --run {run} --name NAME` and its schedule"
        )


def window_of(flow_run: FlowRun, longest: timedelta | None, now: datetime) -> Window:
    """Returns the window of a flow run; asks Prefect's server for the next start."""
    begins = now
    if flow_run.auto_scheduled and flow_run.expected_start_time is not None:
        begins = datetime.fromtimestamp(flow_run.expected_start_time.timestamp(), UTC)
    if flow_run.deployment_id is None:
        return Window.between(begins, longest, ())
    deployment = _deployment(flow_run.deployment_id)
    active = [] if deployment.paused else [row.schedule for row in deployment.schedules if row.active]
    return Window.between(begins, longest, following(active, begins))


def _deployment(key: UUID) -> DeploymentResponse:
    """Reads a deployment, waiting for a server that is restarting.

    Raises `InfrastructureError` if the server does not answer within `SERVER_SECONDS`.
    """
    until = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            with get_client(sync_client=True) as client:
                return client.read_deployment(key)
        except AWAY as error:
            if time.monotonic() > until:
                raise InfrastructureError(server_needed(error)) from error
            time.sleep(LOOK_SECONDS)


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.time_ms() / 1000, UTC)


def _close_dead(ledger: Ledger, home: Home) -> None:
    """Closes the flow runs of windows whose process died with its worker; errors do not affect this window."""
    try:
        for closed in reap(ledger, home):
            log.warning("closed flow run %s of run %s: %s", closed.flow_run, closed.run, closed.why)
    except AWAY as error:
        log.warning("could not close dead flow runs: %s", server_trouble(error))


def _reason_to_leave(ledger: Ledger, run: str, own: Window, now: datetime) -> Ending | None:
    """Returns the final state of a window that should not drive its run; None if it should."""
    if own.ends is not None and own.is_over(now):
        return Completed(
            name=MISSED, message=f"the window of run {run} ended at {moment_text(own.ends)}: nothing was done"
        )
    return _paused(ledger, run)


def _paused(ledger: Ledger, run: str) -> Ending | None:
    """Returns the final state of a window if its run is paused, waiting for an operator; else None."""
    row = ledger.runs.find(run)
    if row.state != "paused":
        return None
    why = f"run {run} is paused and needs an operator: {row.state_reason}; to continue: `yatt resume {run}`"
    return Failed(name=PAUSED, message=redact(why))


def _drive(
    ledger: Ledger,
    home: Home,
    run: str,
    own: Window,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    notifier: Notifier | None,
    clock: Clock,
    pages: Pages | None,
) -> Outcome | Ending:
    """Drives a session; returns its outcome, or the final state of the window if another driver holds the run."""
    patient_until: datetime | None = None
    while True:
        try:
            return run_session(home, run, observer, trackers, notifier=notifier, window=own, pages=pages)
        except LeaseHeld as held:
            now = _now(clock)
            if is_keeper(held.holder):  # it is about to release the lease
                stays = not own.is_over(now)
            else:
                patient_until = patient_until or now + timedelta(seconds=held.expires_in)
                stays = waits(own, window_of_holder(ledger, run), patient_until, now)
            if not stays:
                return Completed(name=HELD, message=f"run {run} is held by {held.holder}: nothing was done")
            observer.stage(f"waiting for {held.holder} to end")
            clock.sleep(LOOK_SECONDS)
            # A guard may have paused the run in the last iteration of the previous holder.
            if (paused := _paused(ledger, run)) is not None:
                return paused


def _ending(outcome: Outcome) -> Ending:
    """Returns the final state of a window that drove its run, or found the target already reached."""
    said = f"run {outcome.run} is {outcome.state} at iteration {outcome.iteration}: {redact(outcome.reason)}"
    return Completed(message=said) if outcome.exit_code == ExitCode.OK else Failed(name=PAUSED, message=said)
