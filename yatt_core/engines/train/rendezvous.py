"""Where the ranks of a trainer meet: a loopback port that is held from the moment it is named until rank 0 serves the meeting.

A port that was only looked up could be anybody's by then, such as another group's connection.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from torch import distributed

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(seconds=60)
"""Longest wait of a rank for the others."""
# torch's type stubs do not name it.
TCP_STORE: Any = vars(distributed)["TCPStore"]

_held: dict[int, socket.socket] = {}


def hold_address() -> str:
    """An address for one meeting, which this process has to serve."""
    listener = socket.create_server((LOOPBACK, 0))
    port = int(listener.getsockname()[1])
    _held[port] = listener
    return f"tcp://{LOOPBACK}:{port}"


def serve_store(host: str, port: int, ranks: int) -> Any:
    """The store of a meeting, listening on the given address alone; left to itself it would listen on all of the machine's.

    Raises `OSError` where the port is another's.
    """
    with _held.pop(port, None) or socket.create_server((host, port)) as listener:
        return TCP_STORE(host, port, ranks, True, TIMEOUT, master_listen_fd=os.dup(listener.fileno()))
