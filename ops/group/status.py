"""The state of the group and its members, for `yatt up` and `yatt status`.

Consumes `HOME/group/` and the members' answers; produces a `GroupStatus`. Changes nothing.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.maintenance.record import MaintenanceResult, read_results
from flows.prefect_io.prefect_server import PASSWORD_VARIABLE
from flows.run.home import Home
from ops.group.keeper_state import UndeliveredRows, read_undelivered
from ops.group.members import HEALTH, ORDER, PREFECT
from ops.group.password import password_file
from ops.group.record import GroupRecord, read_record
from yatt_core.supervisor.client import current_state
from yatt_core.supervisor.runner import is_ready
from yatt_core.supervisor.services import ServiceState
from yatt_core.supervisor.state import ServiceReport, SupervisorFiles, read_state

UP = "up"
STARTING = "starting"
DEGRADED = "degraded"
DOWN = "down"
LOST = "lost"
SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member of the group.

    state: the service's state, or `does not answer`.
    seconds: time since it entered that state.
    """

    name: str
    state: str
    address: str
    pid: int | None
    seconds: float
    restarts: int
    reason: str
    last_death: str
    log_file: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The group of a home.

    state: up (all well), starting, degraded, down, or lost (its supervisor was killed).
    supervisor: its pid.
    held_by: the terminal it runs in.
    maintenance: the newest result of maintenance.
    password_file: the file of Prefect's password; empty if it is set in the environment of `yatt up`.
    """

    home: str
    state: str
    supervisor: int | None
    held_by: str
    members: tuple[MemberStatus, ...]
    undelivered: tuple[UndeliveredRows, ...]
    password_file: str = ""
    maintenance: MaintenanceResult | None = None

    @property
    def summary(self) -> str:
        """The state in one line."""
        match self.state:
            case "down":
                return "no group is up; start one with `yatt up`"
            case "lost":
                return "the group's supervisor was killed; `yatt up` restarts the group, `yatt down` stops what is left"
            case state:
                return f"the group is {state}, {self.held_by} (supervisor: pid {self.supervisor})"

    @property
    def prefect_client(self) -> str:
        """A shell command that points Prefect's client at the group; empty if the group has no Prefect server.

        It contains no secret.
        """
        address = next((member.address for member in self.members if member.name == PREFECT), "")
        password = f' {PASSWORD_VARIABLE}="$(cat {shlex.quote(self.password_file)})"' if self.password_file else ""
        return f"export PREFECT_API_URL={address}/api{password}" if address else ""

    def document(self) -> dict[str, Any]:
        """Returns plain values, for programs."""
        return asdict(self)


def group_status(home: Home) -> GroupStatus:
    """Returns the current state of the group; checks each member that claims to be ready."""
    record = read_record(home.group)
    state = current_state(home.group)
    if state is None or record is None:
        last = read_state(SupervisorFiles.of(home.group))
        lost = last is not None and not last.ended
        return GroupStatus(
            home=str(home.folder), state=LOST if lost else DOWN, supervisor=None, held_by="", members=(), undelivered=()
        )
    services = sorted(state.services.values(), key=lambda service: ORDER.index(service.name))
    members = tuple(_member(service, record) for service in services)
    password = password_file(home)
    return GroupStatus(
        home=str(home.folder),
        state=overall([member.state for member in members]),
        supervisor=state.identity.pid,
        held_by="in a terminal that was closed" if record.is_abandoned else record.held_by,
        members=members,
        undelivered=read_undelivered(home.group),
        password_file=str(password) if password.exists() else "",
        maintenance=next(iter(read_results(home)), None),
    )


def overall(states: list[str]) -> str:
    """Returns the group's state, derived from those of its members."""
    if all(state == ServiceState.READY for state in states):
        return UP
    well = (ServiceState.READY, ServiceState.STARTING, ServiceState.WAITING)
    return STARTING if all(state in well for state in states) else DEGRADED


def _member(service: ServiceReport, record: GroupRecord) -> MemberStatus:
    address = record.ports.address(service.name)
    return MemberStatus(
        name=service.name,
        state=service.state if _answers(service, address) else SILENT,
        address=address,
        pid=None if service.identity is None else service.identity.pid,
        seconds=max(0.0, time.time() - service.since),
        restarts=service.restarts,
        reason=service.reason,
        last_death=service.last_death,
        log_file=service.log_file,
    )


def _answers(service: ServiceReport, address: str) -> bool:
    if service.state is not ServiceState.READY or not address:
        return True
    return is_ready(f"{address}{HEALTH[service.name]}", Path(service.log_file), 0)
