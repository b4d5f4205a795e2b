"""Where the ranks of a trainer meet: a loopback port that is held from the moment it is named until rank 0 serves the meeting.

A port that was only looked up could be anybody's by then, such as another group's connection. Imports no torch, as the driver
comes by here too.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"

_held: dict[int, socket.socket] = {}


def hold_address() -> str:
    """An address for one meeting, which this process has to serve; an earlier one that nobody came to is given up."""
    while _held:
        _held.popitem()[1].close()
    listener = socket.create_server((LOOPBACK, 0))
    port = int(listener.getsockname()[1])
    _held[port] = listener
    return f"tcp://{LOOPBACK}:{port}"


def take_listener(host: str, port: int) -> socket.socket:
    """What listens at an address that this process holds, or listens from now on. Raises `OSError` where it is another's."""
    return _held.pop(port, None) or socket.create_server((host, port))
