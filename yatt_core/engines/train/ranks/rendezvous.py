"""Where the ranks of a trainer meet: a port that is held from when it is chosen until rank 0 serves the meeting.

A port that was merely looked up could be taken by then, for example by another group's connection. Ranks on one
node meet on loopback. Ranks on several nodes meet at the address that the cluster uses for rank 0's node, and each
binds only the address of its own node on that network. Imports no torch, because the driver uses this module too.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from yatt_core.errors import ConfigurationError, InfrastructureError

LOOPBACK = "127.0.0.1"

_held: dict[tuple[str, int], socket.socket] = {}


def meeting_host(nodes: Sequence[str]) -> str:
    """Returns the address at which ranks meet.

    nodes: the address of each rank's node. Several nodes on one machine may share an address.
    """
    return LOOPBACK if len(set(nodes)) == 1 else nodes[0]


def hold_address(host: str = LOOPBACK) -> str:
    """Reserves a port of one of this machine's addresses for a meeting, which this process must serve.

    Releases an earlier unused one. Raises `InfrastructureError` if the address is not one of this machine's.
    """
    while _held:
        _held.popitem()[1].close()
    try:
        listener = socket.create_server((host, 0))
    except OSError as error:
        raise InfrastructureError(f"rank 0 cannot listen at its node's address {host}: {error}") from error
    port = int(listener.getsockname()[1])
    _held[host, port] = listener
    return f"tcp://{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of a meeting. Raises `ConfigurationError` unless it has the form `tcp://host:port`."""
    parts = urlsplit(address)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        raise ConfigurationError(f"rendezvous {address!r}: expected tcp://host:port")
    return parts.hostname, parts.port


def take_listener(host: str, port: int) -> socket.socket:
    """Returns the listener at an address that this process holds, or starts one.

    Raises `OSError` if the address is already in use.
    """
    return _held.pop((host, port), None) or socket.create_server((host, port))
