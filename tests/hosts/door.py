"""A door from a host to this machine: what connects to a port on the host's loopback reaches the port of this machine.

The listening socket is made on the host and handed to this process, which keeps the connections apart from the network.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.hosts.host import Host

LISTEN = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
socket.send_fds(channel, [b"x"], [listener.fileno()])
"""
CHUNK_BYTES = 1 << 16


@contextmanager
def door(host: Host, port: int) -> Iterator[None]:
    """Opens a door to a port of this machine's loopback."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-S", "-c", LISTEN, str(theirs.fileno()), str(port)]
        host.start(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL).wait()
        _, (number,), _, _ = socket.recv_fds(ours, 1, 1)
    listener = socket.socket(fileno=number)
    threading.Thread(target=_serve, args=(listener, port), daemon=True).start()
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _serve(listener: socket.socket, port: int) -> None:
    with suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until one side ends, then tells the other."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
