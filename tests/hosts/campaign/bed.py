"""Hosts for a campaign: some compute, the last one has the ledger, the object store and the Prefect server.

Each host has a disk of its own, a folder that all of them name alike, with the run's home and all temporary files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from flows.run.home import Home
from tests.hosts.campaign.storage import BUCKET, LEDGER
from tests.hosts.network import Hosts, NoHostsError
from tests.hosts.ray_nodes import SETTINGS

DISK = Path("/mnt")
DISK_BYTES = 384 << 20
COMPUTE = 3
SERVICES = "tests.hosts.campaign.storage"
ENDING_SECONDS = 60.0
FOREIGN = ("YATT_", "RAY_", "PREFECT_", "MLFLOW_", "AWS_")
"""Variables that may name services outside the campaign."""


class Bed:
    """The hosts and their services; a context manager.

    folder: for logs and the ledger, on this machine.
    compute: the hosts that compute, when created their number.
    store: whether the run has an object store, and each host the home on its own disk; else they share a home.
    services: the module that runs on the storage host, as `tests.hosts.campaign.storage` does.
    ledger: the ledger's address on this machine.
    environment: of drivers.
    """

    def __init__(self, folder: Path, store: bool, compute: int = COMPUTE, services: str = SERVICES) -> None:
        if os.geteuid() != 0:
            raise NoHostsError("needs root: PostgreSQL on the storage host runs as another user")
        self.folder = folder
        self.store = store
        self.hosts = Hosts(compute + 1, [DISK], DISK_BYTES)
        *self.compute, self.storage = self.hosts
        home = DISK / "runs" if store else folder / "runs"
        self.home = Home(home)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
            **SETTINGS,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(DISK / "tmp"),
            "HOME": str(DISK / "home"),
        }
        self.ledger = ""
        self._module = services
        self._services: subprocess.Popen[str] | None = None

    @property
    def overrides(self) -> list[str]:
        """The values of a spec that depend on the bed."""
        return [f"storage.url=s3://{BUCKET}/runs"] if self.store else []

    def new_log(self, name: str) -> Path:
        """Returns a file for the output of a process; files are numbered in the order of their processes."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{len(list(logs.iterdir())) + 1:03d}.{name}.txt"

    def tell(self, line: str) -> str:
        """Sends a line to the storage host's services, and returns the line with which they answer."""
        assert self._services is not None, "the services have not been started"
        assert self._services.stdin is not None
        assert self._services.stdout is not None
        self._services.stdin.write(line + "\n")
        self._services.stdin.flush()
        return self._services.stdout.readline()

    def __enter__(self) -> Bed:
        try:
            services = self.folder / "storage"
            services.mkdir(parents=True)
            with (self.folder / "storage.log").open("w") as log:
                self._services = self.storage.start(
                    [sys.executable, "-m", self._module, str(services), self.storage.address],
                    env={**self.environment, "TMPDIR": str(self.folder), "HOME": str(self.folder)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            assert self._services.stdout is not None
            said = self._services.stdout.readline()
            if not said:
                raise RuntimeError(f"the storage host does not start: see {self.folder / 'storage.log'}")
            given = json.loads(said)
            self.ledger = given.pop(LEDGER)
            self.environment |= given
        except BaseException:
            self.hosts.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._services is not None:
            self.storage.link.mend()
            self._services.communicate(timeout=ENDING_SECONDS)
        self.hosts.close()
