"""The process that the group's worker started for a flow run, as it is on this host; until its window begins no ledger knows it.

Consumes what Prefect keeps of a flow run: its worker's name, which says the host (`flows.prefect_io.prefect_server.worker_name`), and a
process id. A process is known by the flow run in its environment, so that none is taken for it which came to have its id later.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect.client.schemas.objects import FlowRun

from db.core.holder import PROC
from flows.prefect_io.prefect_server import worker_name

WORKER_LABEL, FLOW_RUN_VARIABLE = "prefect.worker.name", "PREFECT__FLOW_RUN_ID"


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """text: how a person would call the process; empty where Prefect knows of none. runs: None where nobody here can tell."""

    text: str
    runs: bool | None


def infrastructure_of(flow_run: FlowRun) -> Infrastructure:
    """The process of a flow run, as far as it can be known here."""
    pid, worker = flow_run.infrastructure_pid, flow_run.labels.get(WORKER_LABEL)
    if pid is None:
        return Infrastructure("", None)
    text = f"pid {pid} of worker {worker}"
    return Infrastructure(text, _runs(pid, str(flow_run.id)) if worker == worker_name() else None)


def _runs(pid: str, flow_run: str) -> bool | None:
    try:
        environment = (PROC / pid / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return None
    return f"{FLOW_RUN_VARIABLE}={flow_run}".encode() in environment.split(b"\0")
