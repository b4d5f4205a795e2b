"""Local Prefect servers and workers as supervised services of a run or of the service group, and client settings.

The settings must be in the environment before prefect is first imported, so this module does not import it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from db.core.holder import this_process
from flows.run.pages import page_address
from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.variables import default_variables, set_variables

NAME = "prefect"
DATABASE_FILE = "prefect.db"
WORKER = "worker"
WORK_POOL = "yatt"
PREFECT_VARIABLE = "PREFECT_API_URL"
DATABASE_VARIABLE = "PREFECT_API_DATABASE_CONNECTION_URL"
TEMPLATES_VARIABLE = "YATT_PREFECT_TEMPLATES"
"""The folder with empty databases of which a run's server begins with one."""
SQLITE = "sqlite+aiosqlite:///"
SERVER_PASSWORD_VARIABLE, PASSWORD_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
"""The credentials that a server requires and that its clients send, as `user:password`."""
RETENTION = {
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 24 * 3600),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P7D",
}
"""How long the group keeps finished flow runs (seconds) and events (a duration); the environment can override it."""
BULK_RECORDING = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
}
"""Records task runs in batches: if it recorded them one at a time, the server would use as much CPU time as a small
trainer."""
CLIENT_RETRIES = "3"
"""How often a driver repeats a request to a server that has stopped answering: for some 14 s, instead of a minute."""
QUEUED_EVENTS = "10000"
"""How many events a driver keeps for a server that is away; by default the number would not be limited."""
LOGGED_IN_FILES = {
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT__INTERNAL_PROPAGATE": "true",
}
"""Sends what Prefect's client logs, tracebacks included, to the process's log file and not to its terminal."""
START_SECONDS = 900.0
"""How long members of the group may take to start; on a busy machine, a restart would only take longer."""
HEARTBEAT_SECONDS = 60
"""Between two heartbeats of a flow run, by which Prefect's server notices that its machine is dead."""
HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS)}
DRIVER_SECONDS = 60.0
"""How long the worker's drivers may take to reach a safe point when the group shuts down."""


def own_paths(folder: Path) -> dict[str, str]:
    """Returns settings that keep all files of Prefect in a folder, and telemetry off."""
    # Some paths are set explicitly: their defaults are in ~/.prefect, regardless of the home.
    return {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(folder / "memo_store.toml"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),
        "PREFECT_PROFILES_PATH": str(folder / "profiles.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "DO_NOT_TRACK": "true",
    }


def server_service(folder: Path, starts: Path) -> ServiceSpec:
    """Returns a run's own server: SQLite in the folder, no telemetry, none of the services for deployments.

    folder: the run's, or that of a cluster that runs share.
    starts: the folder of what starts of runs have in common.

    Events of task runs are not kept: storing them would take more CPU time than a small trainer.
    """
    own = folder / "prefect"
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
    environment = own_paths(own) | {
        DATABASE_VARIABLE: sqlite_address(own),
        TEMPLATES_VARIABLE: str(starts),
        **BULK_RECORDING,
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "flow_runs",
        **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in unused},
    }
    return _server(folder, "{port}", environment)


def _server(folder: Path, port: str, environment: Mapping[str, str]) -> ServiceSpec:
    command = [
        sys.executable,
        "-m",
        f"{__package__}.prefect_serving",
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
    """Returns the address of Prefect's database, an SQLite file in the folder."""
    return f"{SQLITE}{folder / DATABASE_FILE}"


def sqlite_file(address: str) -> Path:
    """Returns the file of the database at an address that `sqlite_address` has returned."""
    return Path(address.removeprefix(SQLITE))


def own_database(run_folder: Path) -> Path:
    """Returns the file of the database of a run's own server."""
    return run_folder / "prefect" / DATABASE_FILE


def group_server_service(folder: Path, port: int, surroundings: Mapping[str, str]) -> ServiceSpec:
    """Returns the service group's server: everything that deployments need, and a vacuum for old flow runs and events.

    Its database is set by `DATABASE_VARIABLE` in the supervisor's environment, not here: the address may hold a
    password, and requests to the supervisor are stored in files.

    surroundings: an environment that may override `RETENTION`.
    """
    address = f"http://127.0.0.1:{port}"
    environment = own_paths(folder / "prefect") | {
        **BULK_RECORDING,
        **{name: surroundings.get(name, default) for name, default in RETENTION.items()},
        PREFECT_VARIABLE: f"{address}/api",
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        # Without these, a loopback server would answer requests from web pages of any origin.
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        # Nobody looks at a heartbeat once the next one has come.
        "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": '{"prefect.flow-run.heartbeat": 3600}',
    }
    return replace(_server(folder, str(port), environment), start_seconds=START_SECONDS)


def worker_name() -> str:
    """Returns the name of the group's worker, unique to this host; Prefect records it with the worker's flow runs."""
    return f"{WORK_POOL}-{json_digest(this_process().host)[:12]}"


def worker_service(folder: Path, prefect_port: int, health_port: int, environment: Mapping[str, str]) -> ServiceSpec:
    """Returns a process worker of the pool `WORK_POOL`; the worker creates the pool if necessary.

    Drivers survive the death of the worker. When the group shuts down, they are asked to stop and have
    `DRIVER_SECONDS` to reach a safe point.

    environment: settings for the worker and the drivers that it starts.
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
    settings = own_paths(folder / "prefect") | {
        PREFECT_VARIABLE: f"http://127.0.0.1:{prefect_port}/api",
        **HEARTBEATS,
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


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A Prefect server that several runs use: one that the environment names, or the service group's.

    address: without `/api`.
    text: a description of the server, without credentials.
    password: its credentials, as `user:password`; None if they are those in the environment, if any.
    """

    address: str
    text: str
    password: str | None = None


def named_server() -> SharedServer | None:
    """Returns the server that the environment names; None if it names none.

    Raises `ConfigurationError` if the address is invalid.
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
            f"{PREFECT_VARIABLE}: {shown(given)!r} is not the address of a Prefect server; expected something like "
            "http://127.0.0.1:4200/api"
        )
    address = given.rstrip("/").removesuffix("/api")
    return SharedServer(address, f"the Prefect server that {PREFECT_VARIABLE} names, {shown(address)}")


def shown(address: str) -> str:
    """Returns an address without user and password."""
    return re.sub(r"^(\w+://)?.*@", lambda match: match[1] or "", address)


@dataclass(frozen=True, slots=True)
class ServerVariables:
    """The environment's own choice of a Prefect server and of credentials, which `use_server` replaces.

    values: the variables that are set.
    """

    values: Mapping[str, str]

    @classmethod
    def current(cls) -> ServerVariables:
        """Reads the variables; call it before the first `use_server`."""
        names = (PREFECT_VARIABLE, PASSWORD_VARIABLE)
        return cls({name: os.environ[name] for name in names if name in os.environ})

    def restore(self) -> None:
        """Undoes `use_server`, so that its server does not count as the environment's, nor a child inherit the password."""
        for name in (PREFECT_VARIABLE, PASSWORD_VARIABLE):
            os.environ.pop(name, None)
        os.environ |= self.values


def use_server(run_folder: Path, address: str, password: str | None = None) -> None:
    """Points this process's Prefect client at a server; call it before prefect is imported, if possible.

    password: the server's credentials, as `user:password`. If None, the client credentials in the environment are used;
        if there are none, the server credentials there, which a server started from the same environment requires.
    """
    if password is not None:
        set_variables({PASSWORD_VARIABLE: password})
    elif SERVER_PASSWORD_VARIABLE in os.environ:
        default_variables({PASSWORD_VARIABLE: os.environ[SERVER_PASSWORD_VARIABLE]})
    settings = own_paths(run_folder / "prefect") | {
        PREFECT_VARIABLE: f"{address.rstrip('/')}/api",
        **LOGGED_IN_FILES,
        **HEARTBEATS,
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "PREFECT_CLIENT_MAX_RETRIES": CLIENT_RETRIES,
        "PREFECT_EVENTS_WORKER_MAX_QUEUE_SIZE": QUEUED_EVENTS,
        "PREFECT_CLI_COLORS": "false",
    }
    set_variables(settings)
    if "prefect.context" in sys.modules:
        # An earlier attempt to start may have used another address or password.
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


def prefect_of_environment() -> str:
    """Returns the address of the pages of the Prefect server that this process uses; empty if it uses none."""
    return page_address(os.environ.get(PREFECT_VARIABLE))
