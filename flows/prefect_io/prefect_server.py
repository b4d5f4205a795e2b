"""Loopback Prefect servers as services of a supervisor: a run's own, or the service group's with its worker; and the
settings of their clients.

Settings must be in the environment before prefect is first imported, so this module does not import it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from db.core.holder import this_process
from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError
from yatt_core.supervisor.services import ServiceSpec

NAME = "prefect"
WORKER = "worker"
WORK_POOL = "yatt"
PREFECT_VARIABLE = "PREFECT_API_URL"
DATABASE_VARIABLE = "PREFECT_API_DATABASE_CONNECTION_URL"
SERVER_PASSWORD_VARIABLE, PASSWORD_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""What a server asks for, and what its clients bring, as `user:password`."""
RETENTION = {
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 24 * 3600),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P7D",
}
"""How long the group keeps finished flow runs (seconds) and events (a duration), unless the surroundings say otherwise."""
BULK_RECORDING = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
}
"""Task runs are recorded in bulk: one by one the server would take as much of a core as a small trainer."""
START_SECONDS = 900.0
"""How long members of the group may take to start: on a machine that is busy, to start one anew would only take longer."""
DRIVER_SECONDS = 60.0
"""How long drivers that the worker started may take to reach a safe point when the group ends."""


def _common(folder: Path) -> dict[str, str]:
    # Two paths are given on their own: their defaults lie in ~/.prefect, whatever the home is.
    return {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(folder / "memo_store.toml"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),
        "PREFECT_PROFILES_PATH": str(folder / "profiles.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "DO_NOT_TRACK": "true",
    }


def server_service(run_folder: Path) -> ServiceSpec:
    """The server: SQLite in the run folder, no telemetry, and none of the services that only deployments need.

    Events of task runs are not kept beside them: with events, too, the server would take more time than a small trainer.
    """
    folder = run_folder / "prefect"
    unused = (
        "CANCELLATION_CLEANUP",
        "CLEANUP_RECONCILER",
        "EVENT_PERSISTER",
        "FOREMAN",
        "LATE_RUNS",
        "PAUSE_EXPIRATIONS",
        "REPOSSESSOR",
        "SCHEDULER",
        "TRIGGERS",
    )
    environment = _common(folder) | {
        DATABASE_VARIABLE: sqlite_address(folder),
        **BULK_RECORDING,
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "flow_runs",
        **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in unused},
    }
    return _server(run_folder, "{port}", environment)


def _server(folder: Path, port: str, environment: Mapping[str, str]) -> ServiceSpec:
    command = [
        sys.executable,
        "-m",
        "flows.prefect_io.prefect_serving",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    return ServiceSpec(
        name=NAME,
        argv=tuple(command),
        environment=environment,
        ready=f"http://127.0.0.1:{port}/api/health",
        log_file=str(folder / "logs" / "prefect.log"),
    )


def sqlite_address(folder: Path) -> str:
    """Prefect's database as an SQLite file in its folder."""
    return f"sqlite+aiosqlite:///{folder / 'prefect.db'}"


def group_server_service(folder: Path, port: int, surroundings: Mapping[str, str]) -> ServiceSpec:
    """The service group's server: everything that deployments need, and a vacuum for what finished long ago.

    Its database is what `DATABASE_VARIABLE` says in the environment of the supervisor: an address may hold a password, and a
    request lies in a file. surroundings: an environment that may change `RETENTION`.
    """
    address = f"http://127.0.0.1:{port}"
    environment = _common(folder / "prefect") | {
        **BULK_RECORDING,
        **{name: surroundings.get(name, default) for name, default in RETENTION.items()},
        PREFECT_VARIABLE: f"{address}/api",
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        # Pages of other origins may ask a loopback server too; without these they would be answered.
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    }
    return replace(_server(folder, str(port), environment), start_seconds=START_SECONDS)


def worker_name() -> str:
    """That of the group's worker on this host, and on no other: Prefect keeps it with each flow run that the worker starts."""
    return f"{WORK_POOL}-{json_digest(this_process().host)[:12]}"


def worker_service(folder: Path, prefect_port: int, health_port: int, environment: Mapping[str, str]) -> ServiceSpec:
    """A process worker of the pool `WORK_POOL`, which it makes if need be. environment: for it and the drivers it starts.

    Drivers survive its death. When the group ends they are asked to stop, and have `DRIVER_SECONDS` to reach a safe point.
    """
    command = [
        "worker",
        "start",
        "--pool",
        WORK_POOL,
        "--type",
        "process",
        "--name",
        worker_name(),
        "--with-healthcheck",
    ]
    settings = _common(folder / "prefect") | {
        PREFECT_VARIABLE: f"http://127.0.0.1:{prefect_port}/api",
        "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
        "PREFECT_WORKER_WEBSERVER_PORT": str(health_port),
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "PREFECT_CLI_COLORS": "false",
    }
    return ServiceSpec(
        name=WORKER,
        argv=(sys.executable, "-m", "prefect", *command),
        environment=settings | dict(environment),
        ready=f"http://127.0.0.1:{health_port}/health",
        log_file=str(folder / "logs" / "worker.log"),
        start_seconds=START_SECONDS,
        stop_seconds=DRIVER_SECONDS,
        needs=(NAME,),
        offspring_survives=True,
    )


def named_server() -> str | None:
    """The server that the environment names, without `/api`; None where it names none.

    Raises `ConfigurationError` for what cannot be an address.
    """
    given = os.environ.get(PREFECT_VARIABLE)
    if not given:
        return None
    try:
        parts = urlsplit(given)
        fitting = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fitting = False
    if not fitting:
        raise ConfigurationError(
            f"{PREFECT_VARIABLE}: {shown(given)!r} is no address of a Prefect server; right would be such as "
            "http://127.0.0.1:4200/api"
        )
    return given.rstrip("/").removesuffix("/api")


def shown(address: str) -> str:
    """An address without the user and password that it may hold."""
    return re.sub(r"^(\w+://)?.*@", lambda match: match[1] or "", address)


def use_server(run_folder: Path, address: str, password: str | None = None) -> None:
    """Points this process's Prefect client at a server; call it before prefect is imported.

    password: what the server asks for, as `user:password`; where none is given, what the environment says of clients, else of
    servers, as one that is started here takes it from there.
    """
    if password is not None:
        os.environ[PASSWORD_VARIABLE] = password
    elif SERVER_PASSWORD_VARIABLE in os.environ:
        os.environ.setdefault(PASSWORD_VARIABLE, os.environ[SERVER_PASSWORD_VARIABLE])
    os.environ |= _common(run_folder / "prefect") | {
        PREFECT_VARIABLE: f"{address.rstrip('/')}/api",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "PREFECT_CLI_COLORS": "false",
    }
