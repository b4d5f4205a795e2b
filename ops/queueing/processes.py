"""The drivers of the queue's runs as processes: `yatt resume` in sessions of their own, which outlive the scheduler.

Consumes a run and the GPUs that it holds; produces the process, and `queue.log` in the run's folder with its output.
"""

from __future__ import annotations

import subprocess

from flows.run.home import Home
from ops.driver_process import open_log, start_driver_process
from yatt_core.durable import refusals
from yatt_core.supervisor.process import identity_of

LOG = "queue.log"


class DriverProcesses:
    """Starts drivers on this machine."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, run: str, gpus: tuple[int, ...] | None) -> tuple[int, int]:
        """Starts a driver; returns its pid, and the milliseconds from the machine's boot to its start.

        Raises `InfrastructureError` if the system refuses.
        """
        devices = None if gpus is None else ",".join(map(str, gpus))
        with refusals(f"run {run}: its driver cannot be started"), open_log(self._home, run, LOG) as log:
            process = start_driver_process(self._home, run, log, accept_drift=False, devices=devices)
        self._children[process.pid] = process
        return process.pid, _start_of(process.pid) or 0

    def is_alive(self, pid: int, process_start: int) -> bool:
        """Returns True if the process still runs; a child that has ended is reaped."""
        child = self._children.get(pid)
        if child is not None and child.poll() is not None:
            del self._children[pid]
        return _start_of(pid) == process_start


def _start_of(pid: int) -> int | None:
    identity = identity_of(pid)
    return None if identity is None else round(identity.start_time * 1000)
