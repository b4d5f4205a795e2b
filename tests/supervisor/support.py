"""Services of a few lines of Python, and what of a run folder's services still runs."""

from __future__ import annotations

import sys
from pathlib import Path

from yatt_core.supervisor.process import ProcessIdentity, session_members
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import SupervisorFiles


def supervised(folder: Path) -> list[ProcessIdentity]:
    """What the supervisors of a run folder started and still runs, in whatever session or group."""
    return session_members([], SupervisorFiles.of(folder).mark)


def script_service(folder: Path, code: str, name: str = "echo", **options) -> ServiceSpec:
    """A service that runs a few lines of Python (after which it sleeps) and says that it is ready."""
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
