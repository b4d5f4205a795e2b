"""A Prefect server that runs share, and the owner of warm Ray heads, for runs that chaos strikes.

Takes a home and the environment of its drivers, which the owner must share. `tend` starts the owner again once it is gone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.prefect_io import prefect_server
from flows.run.home import Home
from flows.run.shared_cluster import clear_abandoned
from tests.services import ROOT
from yatt_core.supervisor.client import ensure_supervisor, stop_supervisor, wait_ready

SECONDS = 120.0
GRACE_SECONDS = 3 * 3600.0


class HeadOwner:
    """The owner's process."""

    def __init__(self, home: Home, environment: Mapping[str, str]) -> None:
        self._home = home
        self._environment = {**environment, "YATT_HOME": str(home.folder)}
        self._process: subprocess.Popen[bytes] | None = None
        home.group.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int | None:
        """The process's id; None if it does not run."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def tend(self) -> None:
        """Starts the process if there is none."""
        if self.pid is not None:
            return
        with (self._home.group / "clusters.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ops.group.clusters"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> bool:
        """Kills the process."""
        if self._process is None or self.pid is None:
            return False
        self._process.kill()
        self._process.wait()
        return True


@contextmanager
def warm_heads(home: Home, folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], HeadOwner]]:
    """Yields the environment of drivers that may take over warm heads, and the heads' owner."""
    (folder / "logs").mkdir(parents=True)
    ensure_supervisor(folder, [prefect_server.server_service(folder, folder / "starts")], GRACE_SECONDS)
    state = wait_ready(folder, [prefect_server.NAME], SECONDS)
    given = {**environment, "PREFECT_API_URL": f"http://{state.service(prefect_server.NAME).address}/api"}
    owner = HeadOwner(home, given)
    owner.tend()
    try:
        yield given, owner
    finally:
        owner.kill()
        clear_abandoned(home)
        stop_supervisor(folder)
