"""A window whose run waits at a gate: its flow run is suspended in Prefect, and resumed once the gate is decided.

A suspended flow run has no process and holds no device, and Prefect's server keeps it over restarts; `pause_flow_run` would
keep the process, with its devices. When it is resumed, a worker starts the window again in a new process, which goes on
from the ledger. The approval is the ledger's alone: a flow run that somebody resumes in Prefect finds the gate still open, and
is suspended again. Consumes and produces links of the run's audit chain, so that each suspension is ended once.
"""

from __future__ import annotations

import logging
from uuid import UUID, uuid4

from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.flow_runs import suspend_flow_run

from db.ledger import Ledger
from flows.gates.waiting import awaited
from flows.prefect_io.prefect_client import AWAY, server_trouble

log = logging.getLogger("yatt_core.flow")
SUSPENDED = "window_suspended"
RESUMED = "window_resumed"


def suspend_window(ledger: Ledger, run: str, flow_run: str) -> None:
    """Suspends this flow run, which raises Prefect's `Pause`, if its run waits at a gate.

    Returns otherwise, and if Prefect refuses, as for a flow run without a deployment.
    """
    approval = awaited(ledger, run)
    if approval is None or approval.decision is not None:
        return
    ledger.events.append(run, SUSPENDED, {"flow_run": flow_run, "approval": approval.id})
    try:
        suspend_flow_run(key=str(uuid4()))  # with a key that was used before, Prefect would go on at once
    except (*AWAY, RuntimeError) as error:
        log.warning("run %s waits for approval %d; not suspended: %s", run, approval.id, server_trouble(error))


def suspend_again(ledger: Ledger, run: str, flow_run: str) -> None:
    """Suspends this flow run, which raises Prefect's `Pause`, if it was resumed while its gate is still open."""
    if any(link.body["flow_run"] == flow_run for link in ledger.events.of_kind(run, SUSPENDED)):
        suspend_window(ledger, run, flow_run)


def resume_windows(ledger: Ledger) -> list[str]:
    """Resumes the flow runs that are suspended at gates that have been decided; returns them.

    Raises what Prefect's client raises if the server does not answer.
    """
    resumed = []
    for row in ledger.approvals.decided_between(SUSPENDED, RESUMED):
        flow_run = _suspended_at(ledger, str(row.run), row.id)
        if flow_run is None:
            continue
        if not _resumed(UUID(flow_run), str(row.run)):
            continue
        ledger.events.append(str(row.run), RESUMED, {"flow_run": flow_run, "approval": row.id})
        resumed.append(flow_run)
    return resumed


def _resumed(flow_run: UUID, run: str) -> bool:
    """Resumes a flow run in Prefect; returns False if it is to be tried again.

    Prefect refuses, for example, to resume a flow run that is not suspended yet.
    """
    with get_client(sync_client=True) as client:
        try:
            answer = client.resume_flow_run(flow_run)
            if answer.status is SetStateStatus.ACCEPT:
                return True
            state = client.read_flow_run(flow_run).state
        except ObjectNotFound:
            log.info("flow run %s of run %s is not in Prefect any more", flow_run, run)
            return True
    log.debug("flow run %s of run %s is not resumed: %s", flow_run, run, answer.status)
    return state is not None and state.is_final()


def _suspended_at(ledger: Ledger, run: str, approval: int) -> str | None:
    """Returns the flow run that was last suspended for an approval; None if there is none, or it was resumed."""

    def last(kind: str) -> tuple[int, str]:
        links = [link for link in ledger.events.of_kind(run, kind) if link.body["approval"] == approval]
        return (links[-1].seq, str(links[-1].body["flow_run"])) if links else (0, "")

    suspended_at, flow_run = last(SUSPENDED)
    resumed_at, _ = last(RESUMED)
    return flow_run if suspended_at > resumed_at else None
