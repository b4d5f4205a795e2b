"""What a cluster's operator does: keeps a Ray node on each compute host and a driver next to Ray's head.

A node or driver that ends is started again. When the driver's host is lost, another host gets the head and the driver,
and all other nodes join the new head. An isolated host is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts.campaign.bed import DISK, Bed
from tests.hosts.host import Host
from tests.hosts.namespaces import Inside
from tests.hosts.ray_nodes import address_of, is_ready, node_command
from yatt_core.errors import ExitCode

PAUSE_SECONDS = 2.0
"""Between two starts of the same process."""
ENDING_SECONDS = 120.0
FOR_SPACE = "free some space"
"""What a driver that pauses because a disk is full asks for."""
JOINING_SECONDS = 60.0
"""How long after the start of a head a driver waits for the other nodes."""


@dataclass
class Service:
    """A process that is kept running on a host.

    started: when it was last started, by the monotonic clock.
    """

    process: Inside | None = None
    log: Path | None = None
    started: float = field(default=-PAUSE_SECONDS)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, host: Host, argv: list[str], environment: dict[str, str], log: Path) -> None:
        """Starts the process, unless it was started a moment ago. Its output goes to a file."""
        if time.monotonic() - self.started < PAUSE_SECONDS:
            return
        self.started = time.monotonic()
        self.log = log
        with log.open("w") as output:
            self.process = host.start(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )


class Operator:
    """Keeps a run going on a bed.

    hosts: those that compute.
    cpus: the cores of each host's node.
    run: its name.
    head: the host of Ray's head and of the driver.
    isolated: hosts that nobody can reach, which are left as they are.
    exits: the exit code and last output of each driver that ended by itself, and the number of its log.
    pauses_for_space: how many drivers paused the run because a disk was full, which is what they are to do.
    """

    def __init__(self, bed: Bed, run: str, hosts: Sequence[Host], cpus: int = 1) -> None:
        self._bed = bed
        self.run = run
        self._cpus = cpus
        self.hosts = list(hosts)
        self.head = self.hosts[0]
        self.isolated: set[str] = set()
        self.exits: list[str] = []
        self.pauses_for_space = 0
        self._nodes = {host.name: Service() for host in hosts}
        self._driver = Service()

    def tend(self) -> None:
        """Starts what has ended."""
        self._tend_node(self.head)
        if not self.is_ready(self.head):
            return
        there = [host for host in self.hosts if host.has_power and host.name not in self.isolated]
        for host in there:
            self._tend_node(host)
        # A driver that starts with fewer nodes would put more ranks on each.
        waited = time.monotonic() - self._nodes[self.head.name].started
        if waited > JOINING_SECONDS or all(map(self.is_ready, there)):
            self._tend_driver()

    def move(self) -> None:
        """Gives head and driver to the next host with power; all nodes on reachable hosts begin anew."""
        self._driver = Service()
        old = self.head
        while True:
            self.head = self.hosts[(self.hosts.index(self.head) + 1) % len(self.hosts)]
            if self.head.has_power and self.head.name not in self.isolated:
                break
            assert self.head is not old, "there is no host to move to"
        for host in self.hosts:
            if host.has_power and host.name not in self.isolated:
                self.clear(host)

    def clear(self, host: Host) -> None:
        """Ends all processes on a host, whose node then begins anew."""
        host.end_processes()
        self._nodes[host.name] = Service()

    def driver_ended(self) -> int | None:
        """Returns the exit status of the driver that was last started; None while it runs or if there is none."""
        return None if self._driver.process is None else self._driver.process.poll()

    @property
    def driver(self) -> Inside | None:
        """The process of the current driver."""
        return self._driver.process

    def stop(self) -> None:
        """Stops the driver in order, then all nodes."""
        if self._driver.runs:
            assert self._driver.process is not None
            self._driver.process.terminate()
            try:
                self._driver.process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._note_exit("did not stop")
        self.end()

    def end(self) -> None:
        """Ends all processes on the compute hosts."""
        for host in self.hosts:
            if host.has_power:
                self.clear(host)

    def _tend_node(self, host: Host) -> None:
        node = self._nodes[host.name]
        if node.runs:
            return
        if host is self.head and node.process is not None:
            # A new head is a new cluster, which the nodes of the old one cannot join.
            for other in self.hosts:
                if other is not host and other.has_power and other.name not in self.isolated:
                    self.clear(other)
        host.call("mkdir", "-p", *(str(DISK / name) for name in ("ray", "tmp", "home")))
        argv = node_command(host, self.head, DISK / "ray", self._cpus)
        node.start(host, argv, self._bed.environment, self._bed.new_log(f"{host.name}.ray"))

    def is_ready(self, host: Host) -> bool:
        node = self._nodes[host.name]
        return node.runs and node.log is not None and is_ready(node.log)

    def _tend_driver(self) -> None:
        if self._driver.runs:
            return
        if (code := self.driver_ended()) is not None and self._driver.log is not None:
            if code == ExitCode.PAUSED and FOR_SPACE in self._driver.log.read_text(errors="replace"):
                self.pauses_for_space += 1
            elif code != ExitCode.LEASE_HELD:
                self._note_exit(str(code))
            self._driver = Service(started=self._driver.started)
        environment = self._bed.environment | {"YATT_RAY_ADDRESS": address_of(self.head)}
        argv = [
            sys.executable,
            "-m",
            "ops.cli.main",
            "--debug",
            "--home",
            str(self._bed.home.folder),
            "resume",
            self.run,
        ]
        self._driver.start(self.head, argv, environment, self._bed.new_log(f"driver.{self.head.name}"))

    def _note_exit(self, said: str) -> None:
        assert self._driver.log is not None
        lines = self._driver.log.read_text(errors="replace").strip().splitlines()
        self.exits.append(f"{said}: {lines[-1] if lines else ''} ({self._driver.log.name})")
