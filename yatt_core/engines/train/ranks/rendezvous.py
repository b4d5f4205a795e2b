"""Where the ranks of a trainer meet: a loopback port, held from when it is chosen until rank 0 serves the meeting.

A port that was merely looked up could be taken by then, for example by another group's connection. Imports no
torch, because the driver uses this module too.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"

_held: dict[int, socket.socket] = {}


def hold_address() -> str:
    """Reserves an address for one meeting, which this process must serve; releases an earlier unused one."""
    while _held:
        _held.popitem()[1].close()
    listener = socket.create_server((LOOPBACK, 0))
    port = int(listener.getsockname()[1])
    _held[port] = listener
    return f"tcp://{LOOPBACK}:{port}"


def take_listener(host: str, port: int) -> socket.socket:
    """Returns the listener at an address that this process holds, or starts one.

    Raises `OSError` if the address is already in use.
    """
    return _held.pop(port, None) or socket.create_server((host, port))
