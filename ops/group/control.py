"""Starts, holds and stops the service group, whose members are owned by a supervisor (`yatt_core/supervisor`).

Consumes a home and ports; produces `HOME/group/` with the supervisor's state, `group.json` and the members'
logs. Progress is reported through `say`; nothing here prints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flows.run.home import Home
from flows.run.shared_cluster import clear_abandoned
from ops.group.drivers import going_on
from ops.group.members import Ports, members, secrets
from ops.group.password import settle_password
from ops.group.ports import settled
from ops.group.preflight import check_before_start
from ops.group.record import GroupRecord, read_record, write_record
from ops.preflight.home_folder import check_folder
from yatt_core.durable import make_folder
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.file_lock import file_lock
from yatt_core.supervisor.client import current_state, ensure_alive, ensure_supervisor, stop_supervisor
from yatt_core.supervisor.process import ProcessIdentity
from yatt_core.supervisor.services import RestartPolicy, ServiceState
from yatt_core.supervisor.state import ServiceReport, SupervisorFiles, SupervisorState, log_tail, read_state

POLL_SECONDS = 0.2
HOLD_SECONDS = 1.0
KILLED = "killed because it took too long to stop"
STOP_SECONDS = 150.0
"""Time for the members to stop one after the other.

Drivers come first and may take a minute to reach a safe point.
"""

Say = Callable[[str], None]
Surroundings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServiceGroup:
    """A running group.

    adopted: True if it was started in a terminal that has since closed.
    """

    home: Home
    record: GroupRecord
    adopted: bool


def start(home: Home, asked: Ports, detach: bool, surroundings: Surroundings) -> ServiceGroup:
    """Starts the group without waiting for its members, and cleans up after a previous group that was killed.

    asked: the requested ports; 0 stands for any free port.

    A group whose terminal was closed is taken over unchanged. Raises `ConfigurationError` if a group is already
    up, and what `check_before_start` raises, for example if a port is in use.
    """
    check_folder(home.folder)
    make_folder(home.group)
    with _alone(home.group):
        record = read_record(home.group)
        state = current_state(home.group)
        if state is not None and record is not None:
            return _take_over(home, record, state, detach)
        stop_supervisor(home.group)  # the remains of a killed group would occupy the ports
        ports = settled(asked, None if record is None else record.ports)
        check_before_start(home, ports)
        settle_password(home)
        record = GroupRecord(None if detach else ProcessIdentity.current(), ports, time.time())
        write_record(home.group, record)
        ensure_supervisor(home.group, members(home, ports, surroundings), None, secrets(home))
        return ServiceGroup(home, record, adopted=False)


def _revived(home: Home) -> bool:
    """Restarts a supervisor that was killed, with its members; returns True if it did."""
    if current_state(home.group) is not None:
        return False
    settle_password(home)
    return ensure_alive(home.group, secrets(home))


def _take_over(home: Home, record: GroupRecord, state: SupervisorState, detach: bool) -> ServiceGroup:
    if record.ending or state.ending:
        raise ConfigurationError(f"{home.folder}: the group is being stopped; try again in a moment")
    if not record.is_abandoned:
        raise ConfigurationError(
            f"{home.folder}: the group is already up, {record.held_by} (supervisor: pid {state.identity.pid}, "
            f"Prefect at {record.ports.address('prefect')}); check it with `yatt status`, stop it with `yatt down`"
        )
    holder = None if detach else ProcessIdentity.current()
    record = replace(record, holder=holder)
    write_record(home.group, record)
    return ServiceGroup(home, record, adopted=True)


def await_ready(group: ServiceGroup, ended: threading.Event, say: Say) -> None:
    """Waits until every member is ready or `ended` is set, and reports each member's progress.

    Raises `InfrastructureError` if the group was stopped, or if a member failed for good; in the latter case,
    the message includes the end of the member's log.
    """
    heard: Mapping[str, ServiceReport] = {}
    while True:
        state = _serving(group.home)
        heard = _tell(heard, state.services, say)
        failed = [service for service in heard.values() if service.state is ServiceState.FAILED]
        if failed:
            first = failed[0]
            raise InfrastructureError(
                f"{first.name}: {first.reason}; the last lines of {first.log_file}:\n{log_tail(first.log_file)}"
            )
        if all(service.state is ServiceState.READY for service in heard.values()) or ended.wait(POLL_SECONDS):
            return


def hold(group: ServiceGroup, ended: threading.Event, say: Say) -> str:
    """Watches the group until `ended` is set or another process stops it.

    Returns who stopped it; empty if `ended` was set. Replaces a supervisor that was killed, and reports members
    that die, with the reason.
    """
    folder = group.home.group
    first = read_state(SupervisorFiles.of(folder))
    heard: Mapping[str, ServiceReport] = first.services if first is not None else {}
    while not ended.wait(HOLD_SECONDS):
        state = read_state(SupervisorFiles.of(folder))
        record = read_record(folder)
        if state is None or record is None:
            return "its files are gone"
        if state.ended:
            return state.ended
        if record.ending and current_state(folder) is None:
            last = read_state(SupervisorFiles.of(folder))  # it may have ended normally since `state` was read
            return last.ended if last is not None and last.ended else KILLED
        if not record.ending and _revived(group.home):
            say("the supervisor was killed; a new one is restarting the members")
            continue
        heard = _tell(heard, state.services, say)
    return ""


def stop(home: Home, say: Say, timeout: float = STOP_SECONDS) -> bool:
    """Stops the group, dependents before the services they use, and whatever a killed group left behind.

    After `timeout` seconds, or on a `KeyboardInterrupt`, everything that still runs is killed. Drivers that do
    not belong to the group keep running and are always reported. Returns False if there was nothing to stop.
    """
    folder = home.group
    files = SupervisorFiles.of(home.group)
    state = read_state(files)
    if state is None or (state.ended and current_state(folder) is None):
        return False
    try:
        record = read_record(folder)
        if record is not None:
            write_record(folder, replace(record, ending=True))
        files.stop.touch()
        heard = state.services
        deadline = time.monotonic() + timeout
        while True:
            goes_on = current_state(folder) is not None  # checked before reading, so that its last state is reported
            heard = _tell(heard, (read_state(files) or state).services, say)
            if not goes_on or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
    finally:
        stop_supervisor(folder, 0.0, killed=KILLED)
        clear_abandoned(home)  # what a killed member has left
        for line in going_on(home):
            say(line)
    return True


def _tell(
    before: Mapping[str, ServiceReport], after: Mapping[str, ServiceReport], say: Say
) -> Mapping[str, ServiceReport]:
    for line in changes(before, after):
        say(line)
    return after


def changes(before: Mapping[str, ServiceReport], after: Mapping[str, ServiceReport]) -> Iterator[str]:
    """Yields messages about what happened to the members between two states."""
    for name, now in after.items():
        then = before.get(name)
        if then is not None and (then.state, then.restarts) == (now.state, now.restarts):
            continue
        again = then is not None and now.restarts > then.restarts and then.state is not ServiceState.WAITING
        if again and now.state is not ServiceState.FAILED:
            # It died and has already been restarted.
            yield f"{name}: {now.last_death}; restarting it ({now.restarts} of {RestartPolicy().max_deaths})"
        match now.state:
            case ServiceState.WAITING if now.reason:
                yield f"{name}: {now.reason}; restarting it ({now.restarts + 1} of {RestartPolicy().max_deaths})"
            case ServiceState.WAITING:
                continue  # waits for the services it needs
            case ServiceState.FAILED:
                yield f"{name}: failed: {now.reason}; see its log {now.log_file}"
            case state:
                yield f"{name}: {state}"


def _serving(home: Home) -> SupervisorState:
    state = current_state(home.group)
    if state is not None:
        return state
    last = read_state(SupervisorFiles.of(home.group))
    why = last.ended if last is not None and last.ended else "its supervisor was killed"
    raise InfrastructureError(f"{home.group}: the group has ended: {why}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Prevents two processes from starting the same group at once."""
    with file_lock(folder / "starting") as alone:
        if not alone:
            raise ConfigurationError(
                f"{folder.parent}: another `yatt up` is starting this group; check it with `yatt status`"
            )
        yield
