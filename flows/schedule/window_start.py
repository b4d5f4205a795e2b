"""The start of a window: which run it drives, or why it drives none.

Consumes the deployment's parameters and the scheduled time of the flow run. Produces a `BegunWindow`, or the flow run's
final state: its time is over, its run waits for an operator, or its parameters are refused, in which case nothing has
changed. The audit chain of the deployment's run records the window with its parameters, and why it did nothing.

A scheduled flow run drives until the end of its window, however late it starts. If the window is already over, it
does nothing, so a worker that was away does not catch up on missed windows. The window of a flow run that was started
manually begins when the flow run starts.

A new run starts from the present spec of the deployment's run, with its copies of reward files. A flow run that is tried
again continues the run that it has started before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed

from db.core.errors import LedgerError
from db.core.holder import this_process
from db.ledger import Ledger
from flows.branching.spec_changes import changed_spec
from flows.driver.windows import Window, moment_text
from flows.files.storage import store_of
from flows.gates.waiting import is_decided
from flows.prefect_io.flow_run_names import rename_flow_run
from flows.prefect_io.prefect_client import AWAY, server_needed, server_trouble
from flows.run.clock import Clock, SystemClock
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.owner import owner_of
from flows.schedule.parameters import WindowParameters
from flows.schedule.reaper import reap
from flows.schedule.schedule_times import following
from flows.schedule.suspension import suspend_again
from flows.schedule.window_record import (
    driven_run,
    record_left,
    record_new_run,
    record_refused,
    record_window,
    recorded_windows,
    window_of_holder,
)
from yatt_core.code_files import fetch_code
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.logs import redact
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")
MISSED = "Missed"
PAUSED = "Paused"
LOOK_SECONDS = 1.0
NOBODY_AUTHORS = (
    "Prefect's parameters do not say who gives them, so that they name no code, files, addresses or secrets; "
    "use `yatt resume --set`"
)
SERVER_SECONDS = 60.0
"""How long Prefect's server may be unreachable when a window begins."""
Ending = State[None]
Check = Callable[[RunSpec, Path, bool], Sequence[str]]
"""Checks the spec of a new run. Consumes the spec, a folder with copies of its reward files, and whether it has the model of the
deployment's run, which an earlier version may have accepted; returns warnings, raises `YattError`."""


@dataclass(frozen=True, slots=True)
class BegunWindow:
    """A window that drives a run.

    deployed: the deployment's run.
    run: the run to drive: `deployed`, or a new run.
    changes: changes to the run's spec that are still to be made, as `--set` takes them.
    """

    flow_run: str
    deployed: str
    run: str
    window: Window
    changes: tuple[str, ...]
    parameters: WindowParameters


def begin_window(
    home: Home,
    run: str,
    owner: str | None,
    parameters: WindowParameters,
    check: Check,
    clock: Clock | None = None,
) -> BegunWindow | Ending:
    """Begins this flow run's window; returns its final state if it drives no run.

    run: the deployment's run.
    owner: digest of the run that the deployment was made for.
    """
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None, "a window is a flow run"
    try:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            _check_owner(ledger, home, run, owner)
            return _Start(
                ledger=ledger,
                home=home,
                run=run,
                flow_run=context.flow_run,
                parameters=parameters,
                check=check,
                clock=clock or SystemClock(),
            ).begin()
    except (YattError, LedgerError) as error:
        return Failed(message=redact(str(error)))


@dataclass(frozen=True, slots=True)
class _Start:
    """A window that begins. Fields as in `begin_window`."""

    ledger: Ledger
    home: Home
    run: str
    flow_run: FlowRun
    parameters: WindowParameters
    check: Check
    clock: Clock

    @property
    def key(self) -> str:
        return str(self.flow_run.id)

    def begin(self) -> BegunWindow | Ending:
        """Records the window and decides what it drives."""
        before = current_spec(self.ledger, self.run)
        try:
            plan = self.parameters.plan()
            spec = changed_spec(before, plan.changes, self.run, NOBODY_AUTHORS)
        except ConfigurationError as error:
            return refused(ledger=self.ledger, run=self.run, flow_run=self.key, parameters=self.parameters, error=error)
        own = window_of(self.flow_run, plan.longest, now_of(self.clock))
        process = this_process(f"window of {self.run}")
        record_window(
            ledger=self.ledger,
            run=self.run,
            flow_run=self.key,
            window=own,
            process=process,
            parameters=self.parameters.given(),
        )
        _close_dead(self.ledger, self.home)
        reason = _missed(self.run, own, now_of(self.clock))
        if reason is None and not plan.new_run:
            reason = paused(self.ledger, self.run)
            if reason is not None:
                suspend_again(self.ledger, self.run, self.key)
        if reason is not None:
            record_left(self.ledger, self.run, self.key, reason.message or "")
            return reason
        if not plan.new_run:
            return BegunWindow(
                flow_run=self.key,
                deployed=self.run,
                run=self.run,
                window=own,
                changes=plan.changes,
                parameters=self.parameters,
            )
        try:
            made = self._new_run(spec, own, accepted=spec.model == before.model)
        except YattError as error:
            return refused(ledger=self.ledger, run=self.run, flow_run=self.key, parameters=self.parameters, error=error)
        self._wait_for_previous(own)
        return BegunWindow(
            flow_run=self.key, deployed=self.run, run=made, window=own, changes=(), parameters=self.parameters
        )

    def _new_run(self, spec: RunSpec, own: Window, accepted: bool) -> str:
        """Returns the new run of this flow run, which an earlier attempt at it may have created. accepted: as for `Check`."""
        if (known := driven_run(self.ledger, self.run, self.key)) != self.run:
            return known
        copies = self.home.run_folder(self.run)
        fetch_code(spec, copies, store_of(self.ledger, self.run, copies))
        for warning in self.check(spec, copies, accepted):
            log.warning("the new run of the deployment of %s: %s", self.run, redact(warning))
        made = create_run(self.home, spec, copies, f"deployment of {self.run}")
        process = this_process(f"window of {made}")
        record_window(
            ledger=self.ledger,
            run=made,
            flow_run=self.key,
            window=own,
            process=process,
            parameters=self.parameters.given(),
        )
        record_new_run(self.ledger, self.run, self.key, made)
        rename_flow_run(self.flow_run.id, made)
        return made

    def _wait_for_previous(self, own: Window) -> None:
        """Waits while the run of the previous window, which is over, still takes its last checkpoint on the devices."""
        others = [key for key in recorded_windows(self.ledger, self.run) if key != self.key]
        if not others:
            return
        run = driven_run(self.ledger, self.run, others[-1])
        while not own.is_over(now := now_of(self.clock)):
            line = self.ledger.overview.line(run)
            window = window_of_holder(self.ledger, run)
            if line.holder is None or line.lease_expires_in <= 0 or window is None or not window.is_over(now):
                return
            self.clock.sleep(LOOK_SECONDS)


def refused(ledger: Ledger, run: str, flow_run: str, parameters: WindowParameters, error: YattError) -> Ending:
    """Records that a window's parameters were refused, and returns the window's final state."""
    kind = error.failure_class.value
    why = redact(f"{kind}: the window cannot begin with its parameters, nothing was done: {error}")
    record_refused(
        ledger=ledger, run=run, flow_run=flow_run, why=why, failure_class=kind, parameters=parameters.given()
    )
    return Failed(message=why)


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


def _close_dead(ledger: Ledger, home: Home) -> None:
    """Closes the flow runs of windows whose process died with its worker; errors do not affect this window."""
    try:
        for closed in reap(ledger, home):
            log.warning("closed flow run %s of run %s: %s", closed.flow_run, closed.run, closed.why)
    except AWAY as error:
        log.warning("could not close dead flow runs: %s", server_trouble(error))


def now_of(clock: Clock) -> datetime:
    """Returns the clock's time in UTC."""
    return datetime.fromtimestamp(clock.time_ms() / 1000, UTC)


def _missed(run: str, own: Window, now: datetime) -> Ending | None:
    """Returns the final state of a window that is over; None if it is not."""
    if own.ends is None or not own.is_over(now):
        return None
    return Completed(name=MISSED, message=f"the window of run {run} ended at {moment_text(own.ends)}: nothing was done")


def paused(ledger: Ledger, run: str) -> Ending | None:
    """Returns the final state of a window if its run is paused, waiting for an operator or an approval; else None."""
    row = ledger.runs.find(run)
    if row.state != "paused" or is_decided(ledger, run):
        return None
    why = f"run {run} is paused and needs an operator: {row.state_reason}; to continue: `yatt resume {run}`"
    return Failed(name=PAUSED, message=redact(why))
