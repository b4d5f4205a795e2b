"""Finds the process that the service group's worker started for a flow run; no ledger has it until its window begins.

Consumes Prefect's record of the flow run: the worker's name, which identifies the host
(`flows.prefect_io.prefect_server.worker_name`), and the process id. A process is identified by the flow run in its
environment, so that a later process with the same id is not mistaken for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect.client.schemas.objects import FlowRun

from db.core.holder import PROC
from flows.prefect_io.prefect_server import worker_name

WORKER_LABEL = "prefect.worker.name"
FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """The process of a flow run.

    text: a description of the process; empty if Prefect has recorded none.
    runs: whether the process is running; None if that cannot be determined on this host.
    """

    text: str
    runs: bool | None


def infrastructure_of(flow_run: FlowRun) -> Infrastructure:
    """Returns what this host can find out about the process of a flow run."""
    pid = flow_run.infrastructure_pid
    worker = flow_run.labels.get(WORKER_LABEL)
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
