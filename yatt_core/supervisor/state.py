"""The supervisor's files in a run folder: what is asked of it, what it has, and the driver's sign of life.

`request.json` and `stop` go in, `state.json` comes out, `driver.json` is touched by the driver; all in
`RUN/supervisor/`. Whoever reads one sees all of it or none, since they are published by rename.
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
    """Where the files of a run's supervisor lie. root: `RUN/supervisor`, absolute."""

    root: Path

    @classmethod
    def of(cls, folder: Path) -> SupervisorFiles:
        """Those of a run folder."""
        return cls(folder.resolve() / "supervisor")

    @property
    def request(self) -> Path:
        """What it is to run."""
        return self.root / "request.json"

    @property
    def state(self) -> Path:
        """What it runs; its modification time is the supervisor's own sign of life."""
        return self.root / "state.json"

    @property
    def stop(self) -> Path:
        """Exists when it is to end."""
        return self.root / "stop"

    @property
    def driver(self) -> Path:
        """Touched by the driver."""
        return self.root / "driver.json"

    @property
    def stacks(self) -> Path:
        """Asks every actor what it is doing."""
        return self.root / "stacks.json"

    @property
    def lock(self) -> Path:
        """Held by the one who starts or ends a supervisor."""
        return self.root / "lock"

    @property
    def log(self) -> Path:
        """What the supervisor says."""
        return self.root / "supervisor.log"

    @property
    def mark(self) -> str:
        """`NAME=value` that the environment of all that this run's supervisors start begins with."""
        return f"{MARK_VARIABLE}={self.root}:"


@dataclass(frozen=True, slots=True)
class SupervisorRequest:
    """The services to run, and the seconds without a driver after which all of it ends; none: it waits for no driver.

    revision: of the driver's code; actors of other code are not attached to, so their cluster is none to attach to either.
    """

    services: tuple[ServiceSpec, ...]
    grace: float | None
    revision: str

    @property
    def digest(self) -> str:
        """Identifies the request."""
        return json_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        services = [
            asdict(service) | {"argv": list(service.argv), "needs": list(service.needs)} for service in self.services
        ]
        grace = None if self.grace is None else float(self.grace)
        return {"services": services, "grace": grace, "revision": self.revision}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SupervisorRequest:
        """Reads what `to_json` wrote."""
        services = tuple(
            ServiceSpec(**(item | {"argv": tuple(item["argv"]), "needs": tuple(item["needs"])}))
            for item in value["services"]
        )
        grace = None if value["grace"] is None else float(value["grace"])
        return cls(services, grace, str(value["revision"]))


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One service as last seen. address: `127.0.0.1:port` of its `{port}`, empty without one. since: Unix time.

    last_death: why it died last, empty where it never did.
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
    """What a supervisor last published. ended: why it ended; empty while it runs.

    ending: why it ends its services, said before it ends the first one; from then on nobody may attach to it.
    """

    identity: ProcessIdentity
    request_digest: str
    services: Mapping[str, ServiceReport]
    ended: str = ""
    ending: str = ""

    def service(self, name: str) -> ServiceReport:
        """The report of one service; raises `InfrastructureError` when there is none of that name."""
        if name not in self.services:
            raise InfrastructureError(f"the supervisor has no service {name!r}; it has {', '.join(self.services)}")
        return self.services[name]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SupervisorState:
        """Reads what `to_json` wrote."""
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
    """The state last published; none when there never was one. Raises `InfrastructureError` for a damaged file."""
    try:
        text = files.state.read_text()
    except FileNotFoundError:
        return None
    try:
        return SupervisorState.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{files.state}: is no supervisor state ({error}); remove it when no process carries {files.mark}"
        ) from None


class DriverWatch:
    """Tells how long the driver's file has not changed, by this process's monotonic clock: the wall clock may jump."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._changed_at = time.monotonic()

    def silence(self) -> float:
        """Seconds since the last touch that was seen (since the start, before the first one)."""
        try:
            status = self._file.stat()
            seen = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._seen:
            self._seen, self._changed_at = seen, time.monotonic()
        return time.monotonic() - self._changed_at


def driver_term(files: SupervisorFiles) -> int:
    """The term in the driver's file; -1 without one (the file is empty between attaching and the first beat)."""
    try:
        text = files.driver.read_text()
    except FileNotFoundError:
        return -1
    return int(json.loads(text)["term"]) if text else -1


def log_tail(path: str | Path) -> str:
    """The last lines of a log, for an error message; empty when there is none."""
    file = Path(path)
    if not file.exists():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 8192))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
