"""Runs one service: starts its process, looks whether it is ready, notices its death. Thin: `ServiceLife` decides.

Consumes a `ServiceSpec`; `step` is called again and again by the supervisor's loop and never blocks for longer than one
probe (half a second). Each process gets a session of its own, so that its whole offspring can be found and ended.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Collection, Mapping
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.log_files import keep_bounded
from yatt_core.supervisor.process import ProcessIdentity, end_offspring, end_sessions, identity_of, send_signal
from yatt_core.supervisor.services import SUPERVISOR, RestartPolicy, ServiceLife, ServiceSpec, ServiceState, fill
from yatt_core.supervisor.state import ServiceReport

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""Behind those of Ray's workers, in front of those that Linux gives to outgoing connections."""
PROBE_SECONDS = 0.5
LEADER_SECONDS = 10.0
"""How long a process may take to end in order after its offspring."""
LOG_BYTES, LOG_SECONDS = 64 * 1024**2, 10.0
"""Of a log, before it is turned; between two looks at how long it is."""
logger = logging.getLogger("yatt.supervisor")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port(others: Collection[int] = ()) -> int:
    """A loopback TCP port that nothing listens on now, and none of the others.

    None of those that the kernel gives to outgoing connections: one of these could take it while its service is started again.
    """
    first = secrets.randbelow(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        if port not in others and is_free(port):
            return port
    raise InfrastructureError(f"no loopback port from {PORTS.start} to {PORTS.stop - 1} is free")


def is_free(port: int) -> bool:
    """Whether a service can listen on a loopback TCP port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_ready(probe: str, log_file: Path, log_start: int) -> bool:
    """Whether a readiness probe (see `ServiceSpec.ready`) succeeds. log_start: bytes of the log from before."""
    if probe.startswith("log:"):
        with log_file.open("rb") as stream:
            stream.seek(log_start)
            return probe.removeprefix("log:").encode() in stream.read()
    if probe.startswith("http://"):
        try:
            with _direct.open(probe, timeout=PROBE_SECONDS) as reply:
                return bool(reply.status == 200)
        except (HTTPException, OSError):  # also where something listens that does not speak HTTP
            return False
    place = urlsplit(probe)
    try:
        socket.create_connection((place.hostname or LOOPBACK, place.port or 0), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


class ServiceRunner:
    """One service's process. mark: `NAME=value`, put into its environment (with the service's name behind it).

    ports: those that it had under a supervisor that was killed; taken again where they are free.
    """

    def __init__(
        self, spec: ServiceSpec, mark: str, policy: RestartPolicy, ports: Mapping[str, int] | None = None
    ) -> None:
        self.spec = spec
        self.life = ServiceLife()
        self._mark = f"{mark}{spec.name}:"
        self._policy = policy
        self._ports: Mapping[str, int] = ports if ports and all(map(is_free, ports.values())) else {}
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None
        self._started_at = 0.0
        self._log_start = 0
        self._log_seen_at = 0.0
        self._since = time.time()

    def step(self, now: float) -> bool:
        """Starts, probes or buries the process as its state asks; True when the state changed. now: monotonic."""
        before = self.life
        if self.life.is_due(now):
            self._start(now)
        elif self.life.is_running():
            self._watch(now)
        if self.life != before:
            self._since = time.time()
        return self.life != before

    def end(self) -> None:
        """Ends the process and its offspring on purpose: in order within `stop_seconds`, then by SIGKILL.

        Offspring that would survive its death is asked first: a process that ends may kill what it started.
        """
        if self.spec.offspring_survives:
            end_offspring(self._identity, self._mark, self.spec.stop_seconds)
        self._end_process(LEADER_SECONDS if self.spec.offspring_survives else self.spec.stop_seconds)
        self.life = self.life.ended()
        self._since = time.time()

    def report(self) -> ServiceReport:
        """What the state file says of it."""
        return ServiceReport(
            name=self.spec.name,
            state=self.life.state,
            identity=self._identity,
            address=f"{LOOPBACK}:{self._ports['port']}" if "port" in self._ports else "",
            ports=self._ports,
            restarts=max(0, self.life.starts - 1),
            since=self._since,
            reason=self.life.reason,
            log_file=self.spec.log_file,
            last_death=self.life.last_death,
        )

    @property
    def _numbers(self) -> Mapping[str, int]:
        return {**self._ports, SUPERVISOR: os.getpid()}

    def _start(self, now: float) -> None:
        self.life = self.life.started(now)
        self._started_at = now
        if not self._ports:
            ports: dict[str, int] = {}
            for name in self.spec.port_names():
                ports[name] = free_port(ports.values())
            self._ports = ports
        log_file = Path(self.spec.log_file)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log_file.open("ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    [fill(word, self._numbers) for word in self.spec.argv],
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._process = self._identity = None
            self._died(now, f"cannot be started: {self.spec.argv[0]}: {error.strerror}")
            return
        self._identity = identity_of(self._process.pid)

    def _environment(self) -> dict[str, str]:
        """The supervisor's own, the service's, and the mark. Byte code is cached: Ray starts many interpreters."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {key: fill(value, self._numbers) for key, value in self.spec.environment.items()}
        name, _, value = self._mark.partition("=")
        return environment | {name: value}

    def _watch(self, now: float) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._died(now, f"exited with code {code}")
        elif self.life.state is ServiceState.READY:
            self._bound_log(now)
        elif self.life.state is ServiceState.STARTING:
            if is_ready(fill(self.spec.ready, self._numbers), Path(self.spec.log_file), self._log_start):
                self.life = self.life.became_ready()
            elif now - self._started_at > self.spec.start_seconds:
                self._died(now, f"not ready after {self.spec.start_seconds:g} s: {self.spec.ready}")

    def _bound_log(self, now: float) -> None:
        if now - self._log_seen_at < LOG_SECONDS:
            return
        self._log_seen_at = now
        try:
            keep_bounded(Path(self.spec.log_file), LOG_BYTES)
        except OSError as error:
            logger.warning("%s: its log cannot be kept short: %s", self.spec.name, error)

    def _died(self, now: float, reason: str) -> None:
        """Buries the process, with its offspring unless that is to survive.

        Ports are kept, so that its users find it again after a restart. A process that never became ready may have found its
        ports taken: the next start gets others.
        """
        never_ready = self.life.state is ServiceState.STARTING
        if self.spec.offspring_survives:
            self._kill_process()
        else:
            self._end_process(grace=0.0)
        self.life = self.life.died(now, reason, self._policy, self.spec.restart)
        if never_ready:
            self._ports = {}

    def _kill_process(self) -> None:
        if self._identity is not None:
            send_signal(self._identity, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def _end_process(self, grace: float) -> None:
        end_sessions([self._identity] if self._identity else [], self._mark, grace)
        if self._process is not None:
            self._process.wait()
