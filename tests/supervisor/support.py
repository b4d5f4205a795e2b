"""Services of a few lines of Python, and the running processes of a run folder's services."""

from __future__ import annotations

import sys
from pathlib import Path

from yatt_core.supervisor.process import ProcessIdentity, session_members
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import SupervisorFiles


def supervised(folder: Path) -> list[ProcessIdentity]:
    """Returns the running processes started by a run folder's supervisors, in any session or group."""
    return session_members([], SupervisorFiles.of(folder).mark)


def script_service(folder: Path, code: str, name: str = "echo", **options) -> ServiceSpec:
    """Returns a service that runs some Python code, reports that it is ready, and sleeps."""
    text = f"{code}\nprint('ready', flush=True)\nimport time\ntime.sleep(600)"
    return ServiceSpec(
        name=name,
        argv=(sys.executable, "-S", "-c", text),
        environment={},
        ready=options.pop("ready", "log:ready"),
        log_file=str(folder / f"{name}.log"),
        stop_seconds=options.pop("stop_seconds", 0.3),
        **options,
    )
