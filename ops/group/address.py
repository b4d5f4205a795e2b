"""Where the Prefect server is that commands talk to, and what it asks for: the one that the environment names, else that of the
service group.
"""

from __future__ import annotations

from flows.prefect_io.prefect_server import named_server
from flows.run.home import Home
from ops.group.members import PREFECT
from ops.group.password import own_password
from ops.group.record import read_record
from yatt_core.supervisor.client import current_state

NOWHERE = "http://127.0.0.1:9"
"""Prefect's client wants an address even where it is not to ask anybody."""


def prefect_address(home: Home) -> str | None:
    """Without `/api`; None where none is named and no group is up. Raises `ConfigurationError` for what is no address."""
    named = named_server()
    if named is not None:
        return named
    record = read_record(home.group)
    return None if record is None or current_state(home.group) is None else record.ports.address(PREFECT)


def prefect_password(home: Home, address: str) -> str | None:
    """The group's own password where the server is the group's; None where there is none, or the server is another."""
    record = read_record(home.group)
    if record is None or record.ports.address(PREFECT) != address.replace("localhost", "127.0.0.1"):
        return None
    return own_password(home) or None
