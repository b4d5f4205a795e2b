"""The address and password of the Prefect server that commands use.

The environment may name a server; otherwise it is the service group's.
"""

from __future__ import annotations

from flows.prefect_io.prefect_server import named_server
from flows.run.home import Home
from ops.group.members import PREFECT
from ops.group.password import own_password
from ops.group.record import read_record
from yatt_core.supervisor.client import current_state

NOWHERE = "http://127.0.0.1:9"
"""A placeholder for Prefect's client, which needs an address even if it is not supposed to contact a server."""


def prefect_address(home: Home) -> str | None:
    """Returns the server's address without `/api`; None if the environment names no server and no group is up.

    Raises `ConfigurationError` for a malformed address.
    """
    named = named_server()
    if named is not None:
        return named
    record = read_record(home.group)
    return None if record is None or current_state(home.group) is None else record.ports.address(PREFECT)


def prefect_password(home: Home, address: str) -> str | None:
    """Returns the group's own password if the address is that of the group's server; else None."""
    record = read_record(home.group)
    if record is None or record.ports.address(PREFECT) != address.replace("localhost", "127.0.0.1"):
        return None
    return own_password(home) or None
