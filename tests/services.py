"""One Ray head and one Prefect server for all tests of a session, started the way a run's supervisor would."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flows.prefect_io import prefect_server
from tests import faults
from tests.recovery.failpoints import VARIABLE
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_environment, ray_head_service
from yatt_core.supervisor.client import ensure_supervisor, wait_ready

ROOT = Path(__file__).parent.parent
GRACE_SECONDS = 3 * 3600.0
"""Nobody sends heartbeats to these services, and a whole session may take longer than an hour."""


def start_shared_services(folder: Path, actors: Mapping[str, str] | None = None) -> dict[str, str]:
    """Starts both services and returns the environment of drivers that use them; `stop_supervisor(folder)` ends them.

    actors: additional environment of Ray's processes; a PYTHONPATH in it takes precedence.
    """
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    head = ray_head_service(folder, cpus=8)
    # Workers must find the reward functions of tests and the faults that tests inject.
    path = {"PYTHONPATH": os.pathsep.join([*filter(None, [(actors or {}).get("PYTHONPATH")]), faults.PYTHONPATH])}
    head = replace(head, environment={**head.environment, **(actors or {}), **path})
    ensure_supervisor(folder, [head, prefect_server.server_service(folder, folder / "starts")], GRACE_SECONDS)
    state = wait_ready(folder, [SERVICE_NAME, prefect_server.NAME], 120.0)
    return {
        **ray_environment(folder),
        "YATT_RAY_ADDRESS": state.service(SERVICE_NAME).address,
        "PREFECT_API_URL": f"http://{state.service(prefect_server.NAME).address}/api",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(faults.WORKLOADS)]),
    }


def failpoints_of_actors(folder: Path) -> dict[str, str]:
    """Returns the environment that turns durable steps and methods of actors into failpoints, armed by the folder."""
    return {VARIABLE: str(folder), "PYTHONPATH": str(ROOT / "tests" / "recovery" / "site")}
