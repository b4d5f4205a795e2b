"""The drivers of the queue's runs as processes: `yatt resume` in sessions of their own, which outlive the scheduler.

Consumes a run and the GPUs that it holds; produces the process, and `queue.log` in the run's folder with its output.
"""

from __future__ import annotations

import subprocess
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from flows.run.home import Home
from ops.driver_process import open_log, start_driver_process
from yatt_core.durable import refusals
from yatt_core.supervisor.process import identity_of

if TYPE_CHECKING:
    from flows.run.shared_cluster import SharedCluster
    from ops.terminal.clusters import Clusters

LOG = "queue.log"


@dataclass(frozen=True, slots=True)
class CommandRuns:
    """Runs whose drivers use what the command that wants them provides.

    runs: their ids.
    clusters: what they are driven on.
    identity: variables with which their drivers act as the command's caller.
    gpus: all GPUs of this machine. A run that holds them all needs no names of them, and may use a head that sees them all.
    """

    runs: Container[str]
    clusters: Clusters
    identity: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Child:
    """A driver that this process has started.

    place: tells clusters of drivers that are alive at the same time apart; None with a cluster of its own.
    """

    process: subprocess.Popen[bytes]
    place: int | None = None
    cluster: SharedCluster | None = None


class DriverProcesses:
    """Starts drivers on this machine.

    own: the runs of the command that schedules; None of a scheduler that serves all alike.
    """

    def __init__(self, home: Home, own: CommandRuns | None = None) -> None:
        self._home = home
        self._own = own
        self._children: dict[int, _Child] = {}

    def start(self, run: str, gpus: tuple[int, ...] | None, until: int | None) -> tuple[int, int]:
        """Starts a driver; returns its pid, and the milliseconds from the machine's boot to its start.

        Raises `InfrastructureError` if the system refuses.
        """
        own = self._own if self._own is not None and run in self._own.runs else None
        has_all = own is not None and gpus == own.gpus
        devices = None if gpus is None or has_all else ",".join(map(str, gpus))
        place = None
        cluster = None
        if own is not None:
            place = self._free_place()
            cluster = own.clusters.at(place, devices)
        with refusals(f"run {run}: its driver cannot be started"), open_log(self._home, run, LOG) as log:
            process = start_driver_process(
                home=self._home,
                run=run,
                log=log,
                accept_drift=False,
                until=until,
                devices=devices,
                identity={} if own is None else own.identity,
                cluster=cluster,
            )
        self._children[process.pid] = _Child(process, place, cluster)
        return process.pid, _start_of(process.pid) or 0

    def is_alive(self, pid: int, process_start: int) -> bool:
        """Returns True if the process still runs; a child that has ended is reaped."""
        child = self._children.get(pid)
        if child is not None and child.process.poll() is not None:
            del self._children[pid]
            if child.process.returncode and child.cluster is not None:
                child.cluster.ended_badly()
        return _start_of(pid) == process_start

    def ended(self) -> frozenset[int]:
        """Returns the pids of drivers of this process that have ended since they were last asked for by `is_alive`."""
        return frozenset(pid for pid, child in self._children.items() if child.process.poll() is not None)

    def _free_place(self) -> int:
        taken = {child.place for child in self._children.values() if child.process.poll() is None}
        return next(number for number in count() if number not in taken)


def _start_of(pid: int) -> int | None:
    identity = identity_of(pid)
    return None if identity is None else round(identity.start_time * 1000)
