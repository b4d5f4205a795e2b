"""The supervisor's files in a run folder: the request, the state, and the driver's heartbeat.

All are in `RUN/supervisor/`: the supervisor reads `request.json` and `stop` and writes `state.json`; the driver
touches `driver.json`. Files are published by rename, so a reader sees either a complete file or none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yatt_core.digests import json_digest
from yatt_core.durable import write_json
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.process import ProcessIdentity
from yatt_core.supervisor.services import ServiceSpec, ServiceState

MARK_VARIABLE = "YATT_SUPERVISED_BY"
TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class SupervisorFiles:
    """The paths of the files of a run's supervisor.

    root: `RUN/supervisor`, absolute.
    """

    root: Path

    @classmethod
    def of(cls, folder: Path) -> SupervisorFiles:
        """Returns the paths in a run folder."""
        return cls(folder.resolve() / "supervisor")

    @property
    def request(self) -> Path:
        """The services that the supervisor is to run."""
        return self.root / "request.json"

    @property
    def state(self) -> Path:
        """The services that it runs; the file's modification time is the supervisor's own heartbeat."""
        return self.root / "state.json"

    @property
    def stop(self) -> Path:
        """Exists if the supervisor is to end."""
        return self.root / "stop"

    @property
    def driver(self) -> Path:
        """Touched by the driver."""
        return self.root / "driver.json"

    @property
    def lock(self) -> Path:
        """Held by the process that starts or stops a supervisor."""
        return self.root / "lock"

    @property
    def log(self) -> Path:
        """The supervisor's log."""
        return self.root / "supervisor.log"

    @property
    def mark(self) -> str:
        """The start of the `NAME=value` that marks the environment of all processes of this run's supervisors."""
        return f"{MARK_VARIABLE}={self.root}:"


@dataclass(frozen=True, slots=True)
class SupervisorRequest:
    """The services to run.

    grace: the seconds without a driver after which everything ends; if None, the supervisor does not depend on
        a driver.
    revision: the revision of the driver's code. A driver does not attach to actors that run different code, and
        therefore not to their cluster either.
    """

    services: tuple[ServiceSpec, ...]
    grace: float | None
    revision: str

    @property
    def digest(self) -> str:
        """The digest that identifies the request."""
        return json_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain values."""
        services = [
            asdict(service) | {"argv": list(service.argv), "needs": list(service.needs)} for service in self.services
        ]
        grace = None if self.grace is None else float(self.grace)
        return {"services": services, "grace": grace, "revision": self.revision}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SupervisorRequest:
        """Reads a request that `to_json` wrote."""
        services = tuple(
            ServiceSpec(**(item | {"argv": tuple(item["argv"]), "needs": tuple(item["needs"])}))
            for item in value["services"]
        )
        grace = None if value["grace"] is None else float(value["grace"])
        return cls(services, grace, str(value["revision"]))


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """The last observed state of one service.

    address: `127.0.0.1:port` of its `{port}`; empty if it has none.
    since: Unix time.
    last_death: the reason for its most recent death; empty if it never died.
    """

    name: str
    state: ServiceState
    identity: ProcessIdentity | None
    address: str
    ports: Mapping[str, int]
    restarts: int
    since: float
    reason: str
    log_file: str
    last_death: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """The state that a supervisor last published.

    ended: why the supervisor ended; empty while it is running.
    ending: why it is ending its services, published before it ends the first one; from then on, no driver may
        attach.
    """

    identity: ProcessIdentity
    request_digest: str
    services: Mapping[str, ServiceReport]
    ended: str = ""
    ending: str = ""

    def service(self, name: str) -> ServiceReport:
        """Returns the report of one service. Raises `InfrastructureError` if there is no service of that name."""
        if name not in self.services:
            raise InfrastructureError(f"the supervisor has no service {name!r}; it has {', '.join(self.services)}")
        return self.services[name]

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SupervisorState:
        """Reads a state that `to_json` wrote."""
        return cls(
            identity=ProcessIdentity(**value["identity"]),
            request_digest=value["request_digest"],
            services={name: _report(item) for name, item in value["services"].items()},
            ended=value["ended"],
            ending=value.get("ending", ""),
        )


def _report(value: Mapping[str, Any]) -> ServiceReport:
    identity = value["identity"]
    return ServiceReport(
        **{
            **value,
            "state": ServiceState(value["state"]),
            "identity": ProcessIdentity(**identity) if identity else None,
        }
    )


def write_state(files: SupervisorFiles, state: SupervisorState) -> None:
    """Publishes the state."""
    write_json(files.state, state.to_json())


def read_state(files: SupervisorFiles) -> SupervisorState | None:
    """Returns the last published state; None if there is none. Raises `InfrastructureError` if the file is damaged."""
    try:
        text = files.state.read_text()
    except FileNotFoundError:
        return None
    try:
        return SupervisorState.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{files.state}: not a supervisor state ({error}); delete it once no process's environment has {files.mark}"
        ) from None


class DriverWatch:
    """Measures how long the driver's file has been unchanged, on a monotonic clock, since the wall clock may jump."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._changed_at = time.monotonic()

    def silence(self) -> float:
        """Returns the seconds since the last observed touch (before the first one: since the start)."""
        try:
            status = self._file.stat()
            seen = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._seen:
            self._seen = seen
            self._changed_at = time.monotonic()
        return time.monotonic() - self._changed_at


def driver_term(files: SupervisorFiles) -> int:
    """Returns the term in the driver's file; -1 if there is none (the file is empty until the first heartbeat)."""
    try:
        text = files.driver.read_text()
    except FileNotFoundError:
        return -1
    return int(json.loads(text)["term"]) if text else -1


def log_tail(path: str | Path) -> str:
    """Returns the last lines of a log for an error message; empty if there are none."""
    file = Path(path)
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 8192))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
