"""Starts a driver for a run on behalf of a token's holder (`ops.driver_process`).

Consumes a run without a driver. Produces the process, `resume.log` in the run folder with its output, and events in the audit
chain: who requested the driver and, if it ended with an error, the last line of its output. While a started driver has
not taken the run's lease yet, no second one is started.
"""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from db.core.errors import LeaseHeld
from db.core.subjects import of_run
from db.ledger import Ledger
from db.write.events import RESUME_REQUESTED
from flows.run.home import Home
from ops.driver_process import open_log, start_driver_process
from ops.queries.run_list import DRIVEN, find_line
from yatt_core.errors import ConfigurationError, ExitCode
from yatt_core.logs import redact

RESUME_LOG = "resume.log"
FAILED = "resume_failed"
LAST_WORDS_BYTES = 2_000
ORDERLY = (ExitCode.OK, ExitCode.INTERRUPTED, ExitCode.PAUSED)


@dataclass(frozen=True, slots=True)
class StartedDriver:
    """A driver's process, and the term of the run's lease before the start."""

    process: subprocess.Popen[bytes]
    term: int


@dataclass(frozen=True, slots=True)
class StartedDrivers:
    """The newest driver that this process has started for each run.

    lock: held from the check of a run until its driver is recorded here.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: dict[str, StartedDriver] = field(default_factory=dict)

    def require_idle(self, ledger: Ledger, run: str) -> int:
        """Returns the term of a run's lease if the run has no driver and none is starting.

        Raises `RunNotFound`, `LeaseHeld` if it has a driver, `ConfigurationError` if one is starting.
        """
        line = find_line(ledger, run)
        if line.driver == DRIVEN:
            raise LeaseHeld(of_run(run), line.holder or "", line.lease_expires_in)
        started = self.newest.get(run)
        if started is not None and started.term == line.term and started.process.poll() is None:
            raise ConfigurationError(
                f"run {run}: a driver is already starting, pid {started.process.pid}; see {RESUME_LOG} in the run's folder"
            )
        return line.term


def start_driver(
    drivers: StartedDrivers, ledger: Ledger, home: Home, run: str, by: str, reason: str, accept_drift: bool = False
) -> int:
    """Starts a driver and returns its process id. Raises what `StartedDrivers.require_idle` raises.

    If another driver is started elsewhere at the same time, the lease decides which one runs.
    """
    path = home.run_folder(run) / RESUME_LOG
    with drivers.lock, open_log(home, run, RESUME_LOG) as log:
        term = drivers.require_idle(ledger, run)
        # Recorded after every step that may fail because of this disk: the chain must not contain undone requests.
        ledger.events.append(run, RESUME_REQUESTED, {"by": by, "reason": reason, "accept_drift": accept_drift})
        process = start_driver_process(home, run, log, accept_drift)
        drivers.newest[run] = StartedDriver(process, term)
    watcher = threading.Thread(target=_watch, args=(process, ledger, run, by, path), daemon=True, name=f"resume-{run}")
    watcher.start()
    return process.pid


def _watch(process: subprocess.Popen[bytes], ledger: Ledger, run: str, by: str, path: Path) -> None:
    """Waits for the driver, so that it leaves no zombie process, and records an abnormal end in the audit chain."""
    code = process.wait()
    if code not in ORDERLY:
        ledger.events.append(run, FAILED, {"by": by, "exit_code": code, "said": last_words(path)})


def last_words(path: Path) -> str:
    """Returns the last non-empty line of a log, with credentials redacted."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - LAST_WORDS_BYTES))
        lines = stream.read().decode("utf-8", "replace").split("\n")
    return redact(next((line.strip() for line in reversed(lines) if line.strip()), ""))
