"""The Prefect server that commands and runs use: one that the environment names, otherwise the service group's.

Consumes the environment and `HOME/group/`; produces an address and, if it is the group's server, its password.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flows.driver.services import FindServer
from flows.prefect_io.prefect_server import SharedServer, named_server
from flows.run.home import Home
from ops.group.members import HEALTH, PREFECT
from ops.group.password import own_password
from ops.group.record import GroupRecord, read_record
from yatt_core.supervisor.client import current_state
from yatt_core.supervisor.process import is_alive
from yatt_core.supervisor.runner import is_ready
from yatt_core.supervisor.services import ServiceState
from yatt_core.supervisor.state import SupervisorState

NOWHERE = "http://127.0.0.1:9"
"""A placeholder for Prefect's client, which needs an address even if it is not supposed to contact a server."""
START_SECONDS = 180.0
"""How long a run waits for the server of a group that is starting."""
LOOK_SECONDS = 0.2


def shared_server(home: Home) -> SharedServer | None:
    """Returns the server that the environment names, else the group's; None if no group is up.

    Raises `ConfigurationError` for a malformed address.
    """
    named = named_server()
    if named is not None:
        return SharedServer(named.address, named.text, _password(home, named.address))
    record = read_record(home.group)
    return None if record is None or current_state(home.group) is None else _of_group(home, record)


def server_of_runs(home: Home) -> FindServer:
    """Returns a function that finds the server of a run: as `shared_server`, once it answers.

    A group whose server has failed for good, or does not answer in time, counts as none: the run then starts its own.
    """
    return partial(_answering, home)


def _answering(home: Home, say: Callable[[str], None]) -> SharedServer | None:
    if named_server() is not None:
        return shared_server(home)
    give_up = time.monotonic() + START_SECONDS
    told = False
    while (record := read_record(home.group)) is not None and not record.ending:
        state = current_state(home.group)
        if state is None and not _is_held(record):
            return None  # stopped, or killed together with the terminal that would start it again
        if state is not None and state.ending:
            return None
        if state is not None and _answers(state, record):
            return _of_group(home, record)
        failed = state is not None and state.service(PREFECT).state is ServiceState.FAILED
        if failed or time.monotonic() > give_up:
            why = "has failed" if failed else "does not answer"
            say(f"the Prefect server of the service group {why} (see `yatt status`): the run starts its own")
            return None
        if not told:
            told = True
            say("waiting for the Prefect server of the service group")
        time.sleep(LOOK_SECONDS)
    return None


def _is_held(record: GroupRecord) -> bool:
    """Returns True if a terminal holds the group; it restarts a supervisor that was killed."""
    return record.holder is not None and is_alive(record.holder)


def _answers(state: SupervisorState, record: GroupRecord) -> bool:
    service = state.service(PREFECT)
    if service.state is not ServiceState.READY:
        return False
    return is_ready(record.ports.address(PREFECT) + HEALTH[PREFECT], Path(service.log_file), 0)


def _of_group(home: Home, record: GroupRecord) -> SharedServer:
    address = record.ports.address(PREFECT)
    return SharedServer(address, f"the Prefect server of the service group, {address}", own_password(home) or None)


def _password(home: Home, address: str) -> str | None:
    """Returns the group's own password if the address is that of the group's server; else None."""
    record = read_record(home.group)
    if record is None or record.ports.address(PREFECT) != address.replace("localhost", "127.0.0.1"):
        return None
    return own_password(home) or None
