"""A loopback Prefect server of the run's own, as a service of the supervisor, and the settings of its client.

Settings must be in the environment before prefect is first imported, so this module does not import it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from yatt_core.cluster.services import ServiceSpec

NAME = "prefect"


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

    Task runs are recorded in bulk and their events are not kept beside them: one by one, with events, the server would take
    as much of a core as a small trainer.
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
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder / 'prefect.db'}",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "flow_runs",
        **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in unused},
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", "{port}"]
    return ServiceSpec(
        name=NAME,
        argv=tuple(command),
        environment=environment,
        ready="http://127.0.0.1:{port}/api/health",
        log_file=str(run_folder / "logs" / "prefect.log"),
    )


def use_server(run_folder: Path, address: str) -> None:
    """Points this process's Prefect client at a server; call it before prefect is imported."""
    os.environ |= _common(run_folder / "prefect") | {
        "PREFECT_API_URL": f"{address.rstrip('/')}/api",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_CLIENT_METRICS_ENABLED": "false",
        "PREFECT_CLI_COLORS": "false",
    }
