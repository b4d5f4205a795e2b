"""The flow run that a worker starts for a window of a deployment: one session of a run, or the reason why there is none.

Consumes the deployment's parameters and what the flow run was scheduled for. Produces the final state of the flow run: done,
or in one sentence who holds the run, that the window was missed, or what ended the session. That the window began, in which
process, and why it was left are links of the run's audit chain, which is also where the reaper looks (`flows.schedule.reaper`).

A flow run that was scheduled for a time drives until the end of that window, however late it starts; one whose window is over
does nothing, so a worker that comes back finds nothing to catch up with. One that a person asked for begins when it starts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
"""How long Prefect's server may be away when a window begins."""
Ending = State[None]

WindowFlow = Flow[..., Ending]


def window_flow(function: Callable[..., Ending]) -> WindowFlow:
    """Makes a flow of the function that brings what comes from the outside."""
    return flow(name=FLOW, flow_run_name="{run}", retries=0, persist_result=False)(function)


def drive_window(
    home: Home,
    run: str,
    owner: str | None,
    longest: timedelta | None,
    observer: Observer,
    tracker: Tracker,
    notifier: Callable[[], Notifier | None] = lambda: None,
    clock: Clock | None = None,
) -> Ending:
    """Drives the run until the end of the window that this flow run is.

    owner: which run of that name its deployment was made for. longest: how long a window may last. notifier: makes what tells
    people; what it raises ends the window like any error.
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
            outcome = reason or _drive(ledger, home, run, own, observer, tracker, notifier(), clock)
            if isinstance(outcome, Outcome):
                return _ending(outcome)
            record_left(ledger, run, str(flow_run.id), outcome.message or "")
            return outcome
    except (YattError, LedgerError) as error:
        return Failed(message=redact(str(error)))


def _check_owner(ledger: Ledger, home: Home, run: str, owner: str | None) -> None:
    """Raises `ConfigurationError` where the deployment was made for another ledger's run of this name, or does not say for
    which one, `RunNotFound`.
    """
    here = owner_of(ledger, ledger.runs.find(run).id)
    if owner is None:
        raise ConfigurationError(
            f"the deployment names no owner of run {run}, so whose run is meant cannot be known; nothing was done. Right would "
            f"be to deploy again, under the YATT_LEDGER of that run: `yatt deploy --run {run} --name NAME` with its schedule"
        )
    if owner != here:
        raise ConfigurationError(
            f"the deployment was made for another run {run} than the one in this worker's ledger {home.ledger}: it names owner "
            f"{owner}, this one's is {here}; nothing was done. Right would be a worker with the YATT_LEDGER that `yatt deploy` "
            f"had, or to deploy again under this one: `yatt deploy --run {run} --name NAME` with its schedule"
        )


def window_of(flow_run: FlowRun, longest: timedelta | None, now: datetime) -> Window:
    """From when to when a flow run may drive; Prefect's server is asked for the start that follows."""
    begins = now
    if flow_run.auto_scheduled and flow_run.expected_start_time is not None:
        begins = datetime.fromtimestamp(flow_run.expected_start_time.timestamp(), UTC)
    if flow_run.deployment_id is None:
        return Window.between(begins, longest, ())
    deployment = _deployment(flow_run.deployment_id)
    active = [] if deployment.paused else [row.schedule for row in deployment.schedules if row.active]
    return Window.between(begins, longest, following(active, begins))


def _deployment(key: UUID) -> DeploymentResponse:
    """A deployment, from a server that may just be starting again. Raises `InfrastructureError` when it stays away."""
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
    """A window before this one may have died with its worker; that Prefect is told so is no condition for this one."""
    try:
        for closed in reap(ledger, home):
            log.warning("flow run %s of run %s is closed: %s", closed.flow_run, closed.run, closed.why)
    except AWAY as error:
        log.warning("dead flow runs stay open: %s", server_trouble(error))


def _reason_to_leave(ledger: Ledger, run: str, own: Window, now: datetime) -> Ending | None:
    """The end of a window that has nothing to do here; None where it drives."""
    if own.ends is not None and own.is_over(now):
        return Completed(
            name=MISSED, message=f"the window of run {run} was over at {moment_text(own.ends)}: nothing was done"
        )
    return _paused(ledger, run)


def _paused(ledger: Ledger, run: str) -> Ending | None:
    """The end of a window of a run that somebody has to look at first; None for any other."""
    row = ledger.runs.find(run)
    if row.state != "paused":
        return None
    why = f"run {run} is paused until somebody has looked: {row.state_reason}; `yatt resume {run}` goes on"
    return Failed(name=PAUSED, message=redact(why))


def _drive(
    ledger: Ledger,
    home: Home,
    run: str,
    own: Window,
    observer: Observer,
    tracker: Tracker,
    notifier: Notifier | None,
    clock: Clock,
) -> Outcome | Ending:
    """Takes the lease and drives; the end of a window in which somebody else is alive and drives."""
    patient_until: datetime | None = None
    while True:
        try:
            return run_session(home, run, observer, tracker, notifier=notifier, window=own)
        except LeaseHeld as held:
            now = _now(clock)
            if is_keeper(held.holder):  # it is about to give the lease back
                stays = not own.is_over(now)
            else:
                patient_until = patient_until or now + timedelta(seconds=held.expires_in)
                stays = waits(own, window_of_holder(ledger, run), patient_until, now)
            if not stays:
                return Completed(name=HELD, message=f"run {run} is held by {held.holder}: nothing was done")
            observer.stage(f"waiting for {held.holder} to end")
            clock.sleep(LOOK_SECONDS)
            # A guard may have paused it in the last iteration of the one that was waited for.
            if (paused := _paused(ledger, run)) is not None:
                return paused


def _ending(outcome: Outcome) -> Ending:
    """How a window ends that drove, or found the target reached."""
    said = f"run {outcome.run} is {outcome.state} at iteration {outcome.iteration}: {redact(outcome.reason)}"
    return Completed(message=said) if outcome.exit_code == ExitCode.OK else Failed(name=PAUSED, message=said)
