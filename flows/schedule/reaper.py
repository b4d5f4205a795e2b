"""Closes the flow runs of windows whose process is dead, which Prefect would otherwise show as running for ever.

Consumes the flow runs that Prefect regards as alive. For each, the ledger has the process, the session and the lease;
if its window has not begun, Prefect's record names the worker's process (`flows.schedule.flow_run_process`).
Produces the state `Crashed` with a reason. `cause_of_death` is pure.

The lease, not Prefect, prevents two drivers of one run. So if a flow run is closed by mistake (because its host does
not answer for a long time, although it still works), it only disappears from Prefect's list of running flow runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Crashed

from db.core.errors import RunNotFound
from db.core.holder import is_gone, this_process
from db.ledger import Ledger
from db.write.lease import LOST
from flows.run.home import Home
from flows.schedule.flow_run_process import infrastructure_of
from flows.schedule.window_record import recorded_windows
from yatt_core.logs import redact

FLOW = "yatt"
"""Name of the flow whose flow runs are windows."""
ALIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
SILENT_SECONDS = 1800.0
"""How long a process that cannot be checked on this host may show no sign of life before it counts as dead."""
START_SECONDS = 60.0
"""Grace period after a change of state: a flow run may be restarting while Prefect still names its old process."""
PAGE = 200


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known about the process of a flow run.

    process: its name; empty if none was recorded.
    here: whether it belongs to this host, in which case `gone` is reliable even if it is False.
    gone: whether it is certainly no longer running.
    replaced: whether another driver has taken over its run.
    silent_seconds: seconds since its last sign of life (lease renewed, window begun, state of the flow run changed).
    """

    process: str
    here: bool
    gone: bool
    replaced: bool
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Closed:
    """A flow run that was closed.

    why: the cause of death.
    """

    flow_run: str
    run: str
    why: str


def cause_of_death(signs: Signs) -> str | None:
    """Returns the reason why the process of a flow run counts as dead; None if it may be alive."""
    if signs.gone:
        return f"its process is gone: {signs.process}"
    if signs.replaced:
        return f"another driver has taken over its run: {signs.process}"
    if signs.here or signs.silent_seconds < SILENT_SECONDS:
        return None
    return f"no sign of life for {signs.silent_seconds:.0f} s: {signs.process or 'no process was recorded'}"


def reap(ledger: Ledger, home: Home) -> list[Closed]:
    """Closes the flow runs of dead windows of this home's runs. Raises what Prefect's client raises."""
    with get_client(sync_client=True) as client:
        closed = []
        for flow_run in _taken_for_alive(client, home):
            run = str(flow_run.parameters["run"])
            why = cause_of_death(signs_of(ledger, run, flow_run))
            if why is None:
                continue
            # It may have ended normally since it was listed. A dead process cannot do so after this check.
            now = client.read_flow_run(flow_run.id)
            if now.state_type in ALIVE:
                client.set_flow_run_state(flow_run.id, Crashed(message=redact(why)), force=True)
                closed.append(Closed(str(flow_run.id), run, why))
        return closed


def _taken_for_alive(client: SyncPrefectClient, home: Home) -> list[FlowRun]:
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(ALIVE)))
    found = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
        flow_run_filter=FlowRunFilter(state=states),
        limit=PAGE,
    )
    return [flow_run for flow_run in found if flow_run.parameters.get("home") == str(home.folder)]


def signs_of(ledger: Ledger, run: str, flow_run: FlowRun) -> Signs:
    """Gathers the signs of life of a flow run's process.

    For a run that the ledger does not have, the flow run's state is the only sign.
    """
    key, now = str(flow_run.id), time.time()
    seen = [] if flow_run.state is None else [flow_run.state.timestamp.timestamp()]
    try:
        record = recorded_windows(ledger, run).get(key)
        line = ledger.overview.line(run)
        own = [session for session in ledger.overview.sessions(run) if session.flow_run_id == key]
    except RunNotFound:
        record, own = None, []
    if own and own[0].term == line.term and line.holder is not None:
        seen.append(now + min(0.0, line.lease_expires_in))
    if record is None:
        return _unrecorded(flow_run, now - max(seen, default=now))
    process = record.process
    return Signs(
        process=process.text,
        here=process.host == this_process().host,
        gone=is_gone(process),
        replaced=bool(own) and own[0].outcome == LOST,
        silent_seconds=now - max(*seen, record.recorded_at / 1000),
    )


def _unrecorded(flow_run: FlowRun, silent_seconds: float) -> Signs:
    """Returns the signs of life of a flow run whose window has not begun, or belongs to another ledger."""
    process = infrastructure_of(flow_run)
    return Signs(
        process=process.text,
        here=process.runs is not None,
        gone=process.runs is False and silent_seconds >= START_SECONDS,
        replaced=False,
        silent_seconds=silent_seconds,
    )
