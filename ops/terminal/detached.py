"""Starts a driver as a background process of its own session, and waits until it holds the run's lease.

Consumes a run that nobody drives; produces the process (`ops.driver_process`), and a log in the run's folder with its output.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.home import Home
from ops.driver_process import open_log, start_driver_process
from ops.presentation.output import message
from ops.terminal.people import identity
from yatt_core.errors import ExitCode

if TYPE_CHECKING:
    from db.ledger import Ledger

LOG = "detached.log"
POLL_SECONDS = 0.2
LAST_BYTES = 4000


@dataclass(frozen=True, slots=True)
class DetachedDriver:
    """The result of a start.

    process: the driver.
    exit_code: of a driver that has ended already; None if it holds the lease.
    log: the file with its output.
    said: what it has written, if it has ended.
    """

    run: str
    process: subprocess.Popen[bytes]
    exit_code: int | None
    log: Path
    said: str

    @property
    def pid(self) -> int:
        """The number of the driver's process."""
        return self.process.pid


def start_detached(
    home: Home, ledger: Ledger, run: str, accept_drift: bool, until: int | None = None
) -> DetachedDriver:
    """Starts a driver and returns once it holds the lease, or has ended before that.

    until: the iteration after which it stops; None for the run's target.
    """
    log = home.run_folder(run) / LOG
    with open_log(home, run, LOG) as stream:
        begins = stream.tell()
        process = start_driver_process(
            home=home, run=run, log=stream, accept_drift=accept_drift, until=until, identity=identity()
        )
    try:
        code = _await_lease(ledger, run, process)
    except KeyboardInterrupt:
        message(f"the driver goes on starting, pid {process.pid}; see {log}")
        raise
    return DetachedDriver(
        run=run, process=process, exit_code=code, log=log, said="" if code is None else _end_of(log, begins)
    )


def _await_lease(ledger: Ledger, run: str, process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a driver that ends before it holds the lease; None once it holds the lease."""
    from flows.run.lease import DRIVER

    while True:
        code = process.poll()
        holder = ledger.leases.holders().get(run)
        if holder is not None and holder.pid == process.pid and holder.text.startswith(DRIVER):
            return None
        if code is not None:
            return code if code >= 0 else ExitCode.FAILURE
        time.sleep(POLL_SECONDS)


def _end_of(log: Path, begins: int) -> str:
    """Returns the end of what was written to the log from a position on."""
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(begins, size - LAST_BYTES))
        return stream.read().decode("utf-8", "replace").strip()
