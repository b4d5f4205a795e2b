"""Closes the flow runs of dead processes, which Prefect would otherwise show as running for ever.

Consumes the flow runs that Prefect regards as alive: of windows, drivers, their blocks of iterations, checks of
pipelines, and maintenance. For each, the ledger has the process, the session and the lease; if its window has not begun,
and for a check and maintenance, Prefect's record names the worker's process (`flows.schedule.flow_run_process`). Produces
the state `Crashed` with a reason, or `Completed` if the session ended in order while Prefect did not answer.
`cause_of_death` is pure.

The lease, not Prefect, prevents two drivers of one run. So if a flow run is closed by mistake (because its host does
not answer for a long time, although it still works), it only disappears from Prefect's list of running flow runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Completed, Crashed

from db.core.errors import RunNotFound
from db.core.holder import is_gone, this_process
from db.ledger import Ledger
from db.write.lease import ENDED, LOST
from flows.run.home import Home
from flows.schedule.flow_names import FLOW, MAINTENANCE_FLOW, PIPELINE_FLOW, SESSION_FLOWS
from flows.schedule.flow_run_process import infrastructure_of
from flows.schedule.window_record import driven_run, recorded_windows
from yatt_core.logs import redact

DEPLOYED = "deployed_run"
"""The parameter of a window with the deployment's run."""
SESSION = "session"
"""The parameter of a block with the flow run of its session."""
ALIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
SILENT_SECONDS = 1800.0
"""How long a process that cannot be checked on this host may show no sign of life before it counts as dead."""
START_SECONDS = 60.0
"""Grace period after a change of state: a flow run may be restarting while Prefect still names its old process."""
PAGE = 200


@dataclass(frozen=True, slots=True)
class ProcessSigns:
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

    run: its run, or the pipeline that it checked, or the flow of maintenance.
    why: the cause of death.
    """

    flow_run: str
    run: str
    why: str


def cause_of_death(signs: ProcessSigns) -> str | None:
    """Returns the reason why the process of a flow run counts as dead; None if it may be alive."""
    if signs.gone:
        return f"its process is gone: {signs.process}"
    if signs.replaced:
        return f"another driver has taken over its run: {signs.process}"
    if signs.here or signs.silent_seconds < SILENT_SECONDS:
        return None
    return f"no sign of life for {signs.silent_seconds:.0f} s: {signs.process or 'no process was recorded'}"


def reap(ledger: Ledger, home: Home) -> list[Closed]:
    """Closes the flow runs of dead windows of this home's runs, and of sessions in this ledger that have ended.

    Raises what Prefect's client raises.
    """
    with get_client(sync_client=True) as client:
        windows = [run for run in _taken_for_alive(client, FLOW) if run.parameters.get("home") == str(home.folder)]
        found = [(flow_run, _end_of_window(ledger, flow_run)) for flow_run in windows]
        found += [(flow_run, end_of_session(ledger, flow_run)) for flow_run in _taken_for_alive(client, *SESSION_FLOWS)]
        others = _taken_for_alive(client, PIPELINE_FLOW, MAINTENANCE_FLOW)
        own = [run for run in others if run.parameters.get("home") == str(home.folder)]
        found += [(flow_run, end_of_worker(flow_run)) for flow_run in own]
        closed = []
        for flow_run, end in found:
            if end is None:
                continue
            # It may have ended normally since it was listed. A dead process cannot do so after this check.
            now = client.read_flow_run(flow_run.id)
            if now.state_type in ALIVE:
                client.set_flow_run_state(flow_run.id, end, force=True)
                named = flow_run.parameters
                run = named.get(DEPLOYED) or named.get("run") or named.get("pipeline") or MAINTENANCE_FLOW
                closed.append(Closed(str(flow_run.id), str(run), end.message or ""))
        return closed


def _taken_for_alive(client: SyncPrefectClient, *flows: str) -> list[FlowRun]:
    """Returns the flow runs of these flows that Prefect regards as alive, those of other ledgers included."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(ALIVE)))
    found: dict[UUID, FlowRun] = {}
    for offset in count(0, PAGE):
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=list(flows))),
            flow_run_filter=FlowRunFilter(state=states),
            sort=FlowRunSort.ID_DESC,
            limit=PAGE,
            offset=offset,
        )
        found |= {run.id: run for run in page}
        if len(page) < PAGE:
            break
    return list(found.values())


def _end_of_window(ledger: Ledger, flow_run: FlowRun) -> State[None] | None:
    run = driven_run(ledger, str(flow_run.parameters.get(DEPLOYED)), str(flow_run.id))
    why = cause_of_death(signs_of(ledger, run, flow_run))
    return None if why is None else Crashed(message=redact(why))


def end_of_worker(flow_run: FlowRun) -> State[None] | None:
    """Returns the final state of a check of a deployed pipeline, or of maintenance.

    None if its process may be alive, or is on another host. A dead check would keep the deployment's others from beginning.
    """
    state = flow_run.state
    signs = _unrecorded(flow_run, 0.0 if state is None else time.time() - state.timestamp.timestamp())
    return Crashed(message=redact(f"its process is gone: {signs.process}")) if signs.gone else None


def end_of_session(ledger: Ledger, flow_run: FlowRun) -> State[None] | None:
    """Returns the final state of a flow run of a driver session.

    None if the session may still be driven, has not been recorded, or belongs to another ledger.
    """
    run = str(flow_run.parameters.get("run"))
    key = str(flow_run.parameters.get(SESSION, flow_run.id))
    try:
        session = next((row for row in ledger.overview.sessions(run) if row.flow_run_id == key), None)
        line = ledger.overview.line(run)
    except RunNotFound:
        return None
    if session is None:
        return None
    if session.outcome == LOST or (session.ended_at is None and line.term != session.term):
        return Crashed(message="another driver has taken over its run")
    if session.ended_at is None:
        holder = ledger.leases.holders().get(run)
        gone = holder is not None and is_gone(holder)
        return Crashed(message=f"its process is gone: {holder.text}") if holder is not None and gone else None
    if time.time() - session.ended_at / 1000 < START_SECONDS:
        return None  # its driver may be about to report the end
    message = f"its session ended ({session.outcome}) while Prefect did not answer"
    return Completed(message=message) if session.outcome == ENDED else Crashed(message=message)


def signs_of(ledger: Ledger, run: str, flow_run: FlowRun) -> ProcessSigns:
    """Gathers the signs of life of a flow run's process.

    For a run that the ledger does not have, the flow run's state is the only sign.
    """
    key = str(flow_run.id)
    now = time.time()
    seen = [] if flow_run.state is None else [flow_run.state.timestamp.timestamp()]
    try:
        record = recorded_windows(ledger, run).get(key)
        line = ledger.overview.line(run)
        own = [session for session in ledger.overview.sessions(run) if session.flow_run_id == key]
    except RunNotFound:
        record = None
        own = []
    if own and own[0].term == line.term and line.holder is not None:
        seen.append(now + min(0.0, line.lease_expires_in))
    if record is None:
        return _unrecorded(flow_run, now - max(seen, default=now))
    process = record.process
    return ProcessSigns(
        process=process.text,
        here=process.host == this_process().host,
        gone=is_gone(process),
        replaced=bool(own) and own[0].outcome == LOST,
        silent_seconds=now - max([*seen, record.recorded_at / 1000]),
    )


def _unrecorded(flow_run: FlowRun, silent_seconds: float) -> ProcessSigns:
    """Returns the signs of life of a flow run whose window has not begun, or belongs to another ledger."""
    process = infrastructure_of(flow_run)
    return ProcessSigns(
        process=process.text,
        here=process.runs is not None,
        gone=process.runs is False and silent_seconds >= START_SECONDS,
        replaced=False,
        silent_seconds=silent_seconds,
    )
