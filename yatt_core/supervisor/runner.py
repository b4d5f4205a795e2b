"""Runs one service: starts its process, checks its readiness, detects its death. `ServiceLife` makes the decisions.

Consumes a `ServiceSpec`; the supervisor's loop calls `step` repeatedly, and `step` never blocks for longer than
one probe (half a second). Each process gets its own session, so that all its descendants can be found and
ended.
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
"""Above the ports of Ray's workers and below those that Linux assigns to outgoing connections."""
PROBE_SECONDS = 0.5
LEADER_SECONDS = 10.0
"""How long a process may take to shut down cleanly after its descendants."""
LOG_BYTES = 64 * 1024**2
LOG_SECONDS = 10.0
"""The size at which a log is rotated, and the time between two checks of its size."""
logger = logging.getLogger("yatt.supervisor")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port(others: Collection[int] = ()) -> int:
    """Returns a free loopback TCP port that is not in `others`.

    Ports that the kernel assigns to outgoing connections are excluded: such a connection could take the port
    while its service is being restarted.
    """
    first = secrets.randbelow(len(PORTS))
    for port in chain(PORTS[first:], PORTS[:first]):
        if port not in others and is_free(port):
            return port
    raise InfrastructureError(f"no loopback port from {PORTS.start} to {PORTS.stop - 1} is free")


def is_free(port: int) -> bool:
    """Returns True if a service could now listen on this loopback TCP port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_ready(probe: str, log_file: Path, log_start: int) -> bool:
    """Returns True if a readiness probe (see `ServiceSpec.ready`) succeeds.

    log_start: the length of the log, in bytes, before the service was started.
    """
    if probe.startswith("log:"):
        with log_file.open("rb") as stream:
            stream.seek(log_start)
            return probe.removeprefix("log:").encode() in stream.read()
    if probe.startswith("http://"):
        try:
            with _direct.open(probe, timeout=PROBE_SECONDS) as reply:
                return bool(reply.status == 200)
        except (HTTPException, OSError):  # also if something listens that does not speak HTTP
            return False
    place = urlsplit(probe)
    try:
        socket.create_connection((place.hostname or LOOPBACK, place.port or 0), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


class ServiceRunner:
    """One service's process.

    mark: `NAME=value`, put into the process's environment with the service's name appended.
    ports: the ports that the service had under a supervisor that was killed; reused if they are free.
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
        """Starts, probes or cleans up after the process as its state requires; returns True if the state changed.

        now: monotonic time.
        """
        before = self.life
        if self.life.is_due(now):
            self._start(now)
        elif self.life.is_running():
            self._watch(now)
        if self.life != before:
            self._since = time.time()
        return self.life != before

    def end(self) -> None:
        """Ends the process and its descendants on purpose: cleanly within `stop_seconds`, otherwise by SIGKILL.

        Descendants that would survive the death of the process are asked to end first, because a process may
        kill its children when it ends.
        """
        if self.spec.offspring_survives:
            end_offspring(self._identity, self._mark, self.spec.stop_seconds)
        self._end_process(LEADER_SECONDS if self.spec.offspring_survives else self.spec.stop_seconds)
        self.life = self.life.ended()
        self._since = time.time()

    def report(self) -> ServiceReport:
        """Returns the service's entry in the state file."""
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
        """Returns the supervisor's environment with the service's own variables and the mark.

        Byte code is cached because Ray starts many interpreters.
        """
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
            ready = fill(self.spec.ready, self._numbers)
            if is_ready(ready, Path(self.spec.log_file), self._log_start):
                self.life = self.life.became_ready()
            elif now - self._started_at > self.spec.start_seconds:
                scheme, _, text = ready.partition(":")
                lacking = f"its log lacks {text!r}" if scheme == "log" else f"{ready} does not answer"
                self._died(now, f"not ready after {self.spec.start_seconds:g} s: {lacking}")

    def _bound_log(self, now: float) -> None:
        if now - self._log_seen_at < LOG_SECONDS:
            return
        self._log_seen_at = now
        try:
            keep_bounded(Path(self.spec.log_file), LOG_BYTES)
        except OSError as error:
            logger.warning("%s: cannot rotate its log: %s", self.spec.name, error)

    def _died(self, now: float, reason: str) -> None:
        """Cleans up after the process and, unless they are to survive it, its descendants.

        Ports are kept so that clients can reach the service again after a restart. If a process never became
        ready, its ports may have been taken; the next start gets different ones.
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
