"""The members of the service group as services of a supervisor: Prefect, worker, MLflow, dashboard, keeper, queue, clusters.

Consumes a home and ports; produces `ServiceSpec`s. Pure, apart from what `databases` and `secrets` read.
Database addresses may contain passwords, so they are passed only through the supervisor's environment, never in
a request, which is stored in a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from flows.driver.attachment import RAY_VARIABLE
from flows.prefect_io import prefect_server
from flows.prefect_io.prefect_server import PASSWORD_VARIABLE, PREFECT_VARIABLE, SERVER_PASSWORD_VARIABLE
from flows.run.home import LEDGER_VARIABLE, Home, with_driver
from ops.group.password import password_of
from yatt_core.errors import ConfigurationError
from yatt_core.supervisor.services import ServiceSpec

PREFECT = prefect_server.NAME
WORKER = prefect_server.WORKER
MLFLOW = "mlflow"
DASHBOARD = "dashboard"
KEEPER = "keeper"
QUEUE = "queue"
CLUSTERS = "clusters"
ORDER = (PREFECT, WORKER, MLFLOW, DASHBOARD, KEEPER, QUEUE, CLUSTERS)
LOOPBACK = "127.0.0.1"
HEALTH = {PREFECT: "/api/health", WORKER: "/health", MLFLOW: "/health", DASHBOARD: "/health"}
KEEPER_READY = "the keeper is ready"
QUEUE_READY = "the queue's scheduler is ready"
CLUSTERS_READY = "clusters can be borrowed"
WARM_HEADS_VARIABLE = "YATT_WARM_HEADS"
MOST_WARM_HEADS = 64
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
OPS = __package__.rpartition(".")[0]
"""The package of all rooms, as this module's own is named: `ops` in a checkout, else `yatt.ops`."""
COMMAND = f"{OPS}.cli.main"
"""The module of the command line."""
STORE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of the group.

    worker: the port at which the worker answers health checks.
    """

    prefect: int
    mlflow: int
    dashboard: int
    worker: int

    def address(self, member: str) -> str:
        """Returns the address of a member; empty for one that does not listen."""
        port = {PREFECT: self.prefect, MLFLOW: self.mlflow, DASHBOARD: self.dashboard, WORKER: self.worker}.get(member)
        return f"http://{LOOPBACK}:{port}" if port else ""


def databases(home: Home) -> dict[str, str]:
    """Returns the database addresses by variable, with the installed drivers: from the environment, else SQLite."""
    given = os.environ.get(prefect_server.DATABASE_VARIABLE)
    prefect = with_driver(given, "asyncpg") if given else prefect_server.sqlite_address(home.group / "prefect")
    return {prefect_server.DATABASE_VARIABLE: prefect, STORE_VARIABLE: home.mlflow_store, LEDGER_VARIABLE: home.ledger}


def secrets(home: Home) -> dict[str, str]:
    """Returns the part of the members' environment that is kept out of requests: databases and Prefect's password."""
    return databases(home) | dict.fromkeys((SERVER_PASSWORD_VARIABLE, PASSWORD_VARIABLE), password_of(home))


def members(home: Home, ports: Ports, surroundings: Mapping[str, str]) -> list[ServiceSpec]:
    """Returns the services of the group.

    surroundings: the environment, which may override retention settings and the number of warm Ray heads.

    Raises `ConfigurationError` if that number is none.
    """
    shared = {**TELEMETRY_OFF, "YATT_HOME": str(home.folder), "MLFLOW_TRACKING_URI": ports.address(MLFLOW)}
    prefect = prefect_server.group_server_service(home.group, ports.prefect, surroundings)
    worker = prefect_server.worker_service(home.group, ports.prefect, ports.worker, shared)
    return [
        prefect,
        worker,
        _mlflow(home, ports.mlflow),
        _dashboard(home, ports.dashboard, shared),
        _keeper(home, ports, shared),
        _queue(home, shared),
        *([_clusters(home)] if warm_heads(surroundings) else []),
    ]


def warm_heads(surroundings: Mapping[str, str]) -> int:
    """Returns how many Ray heads the group keeps warm for runs: none if runs use a cluster that exists already.

    Raises `ConfigurationError` if the variable is no such number.
    """
    given = surroundings.get(WARM_HEADS_VARIABLE, "1")
    if not given.isdecimal() or int(given) > MOST_WARM_HEADS:
        raise ConfigurationError(
            f"{WARM_HEADS_VARIABLE} is {given!r}; it must be the number of Ray heads to keep warm, 0 to {MOST_WARM_HEADS}"
        )
    return 0 if surroundings.get(RAY_VARIABLE) else int(given)


def _mlflow(home: Home, port: int) -> ServiceSpec:
    """Describes MLflow's server.

    It shows all artifacts, because its clients store theirs in the same folder as runs that write to its store
    directly.
    """
    artifacts = ["--no-serve-artifacts", "--default-artifact-root", home.artifacts.as_uri()]
    # Logging a line per request would add up to hundreds of MB a year.
    quiet = ["--uvicorn-opts", "--no-access-log"]
    command = ["server", "--host", LOOPBACK, "--port", str(port), "--workers", "1", *artifacts, *quiet]
    return ServiceSpec(
        name=MLFLOW,
        argv=(sys.executable, "-m", "mlflow", *command),
        # Job execution would add seven processes, for features of MLflow that YATT does not use.
        environment={**TELEMETRY_OFF, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        ready=f"http://{LOOPBACK}:{port}{HEALTH[MLFLOW]}",
        log_file=str(home.group / "logs" / "mlflow.log"),
        start_seconds=prefect_server.START_SECONDS,
    )


def _dashboard(home: Home, port: int, shared: Mapping[str, str]) -> ServiceSpec:
    return ServiceSpec(
        name=DASHBOARD,
        argv=(sys.executable, "-m", COMMAND, "dashboard", "--port", str(port)),
        environment=shared,
        ready=f"http://{LOOPBACK}:{port}{HEALTH[DASHBOARD]}",
        log_file=str(home.group / "logs" / "dashboard.log"),
        start_seconds=prefect_server.START_SECONDS,
    )


def _keeper(home: Home, ports: Ports, shared: Mapping[str, str]) -> ServiceSpec:
    return ServiceSpec(
        name=KEEPER,
        argv=(sys.executable, "-m", f"{__package__}.keeper"),
        environment={**shared, PREFECT_VARIABLE: f"{ports.address(PREFECT)}/api"},
        ready=f"log:{KEEPER_READY}",
        log_file=str(home.group / "logs" / "keeper.log"),
        stop_seconds=30.0,
        needs=(MLFLOW, PREFECT),
    )


def _queue(home: Home, shared: Mapping[str, str]) -> ServiceSpec:
    """Describes the queue's scheduler; the drivers that it starts outlive it."""
    return ServiceSpec(
        name=QUEUE,
        argv=(sys.executable, "-m", f"{OPS}.queueing.scheduler"),
        environment=shared,
        ready=f"log:{QUEUE_READY}",
        log_file=str(home.group / "logs" / "queue.log"),
        stop_seconds=30.0,
        needs=(MLFLOW, PREFECT),
    )


def _clusters(home: Home) -> ServiceSpec:
    """Describes the owner of warm Ray heads. Its environment is that of runs, without the settings of the other members."""
    return ServiceSpec(
        name=CLUSTERS,
        argv=(sys.executable, "-m", f"{__package__}.clusters"),
        environment={**TELEMETRY_OFF, "YATT_HOME": str(home.folder)},
        ready=f"log:{CLUSTERS_READY}",
        log_file=str(home.group / "logs" / "clusters.log"),
        stop_seconds=30.0,
        needs=(MLFLOW, PREFECT),  # whose start needs the cores
    )
