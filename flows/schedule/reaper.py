"""Closes the flow runs of windows whose process is dead, which Prefect would show as running for ever.

Consumes the flow runs that Prefect takes for alive and what is known of each: to the ledger its process, its session, the lease;
to Prefect, where the window has not begun yet, what its worker started (`flows.schedule.flow_run_process`).
Produces the state `Crashed` with the reason in words. `cause_of_death` is pure. The lease, not Prefect, keeps a run from two
drivers, so a flow run that is closed by mistake (its host does not answer for a long time, and it still works) loses its place
in Prefect's lists and nothing else.
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
"""Name of the flow whose runs are windows."""
ALIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
SILENT_SECONDS = 1800.0
"""Without a sign of life for so long, a process that nobody here can look for counts as dead."""
START_SECONDS = 60.0
"""So long after its last state a flow run without a window may be one that is started again, and Prefect name its old process."""
PAGE = 200


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of the process of a flow run.

    process: its name, empty where none was recorded. gone: it certainly no longer runs. here: it would run on this host, so
    `gone` is the whole truth. replaced: another driver ended its session for it. silent_seconds: since its last sign of life
    (lease renewed, window begun, state of the flow run changed).
    """

    process: str
    here: bool
    gone: bool
    replaced: bool
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Closed:
    """A flow run that was closed. why: its cause of death."""

    flow_run: str
    run: str
    why: str


def cause_of_death(signs: Signs) -> str | None:
    """Why the process of a flow run counts as dead, in words; None while it may live."""
    if signs.gone:
        return f"its process is gone: {signs.process}"
    if signs.replaced:
        return f"another driver has taken its run over: {signs.process}"
    if signs.here or signs.silent_seconds < SILENT_SECONDS:
        return None
    return f"no sign of life for {signs.silent_seconds:.0f} s: {signs.process or 'no process was ever seen'}"


def reap(ledger: Ledger, home: Home) -> list[Closed]:
    """Closes what is dead among the windows of this home's runs. Raises what Prefect's client raises."""
    with get_client(sync_client=True) as client:
        closed = []
        for flow_run in _taken_for_alive(client, home):
            run = str(flow_run.parameters["run"])
            why = cause_of_death(signs_of(ledger, run, flow_run))
            if why is None:
                continue
            # It may have ended in order since it was listed; from a process that is gone nothing follows any more.
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
    """What ledger and this host know of it; a run that the ledger does not have has left no sign but its flow run's state."""
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
    """Of one whose window has not begun, or is another ledger's."""
    process = infrastructure_of(flow_run)
    return Signs(
        process=process.text,
        here=process.runs is not None,
        gone=process.runs is False and silent_seconds >= START_SECONDS,
        replaced=False,
        silent_seconds=silent_seconds,
    )
