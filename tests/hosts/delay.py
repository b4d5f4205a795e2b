"""Delays what a host sends: `python -m tests.hosts.delay PORT SECONDS` in the bridge's namespace, until its input ends.

Takes frames from the bridge's end of the host's link, where the kernel drops them, and hands them to the bridge later.
Each frame has the header of virtio, so that checksums and lengths that are left to the device stay so.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

ALL_PROTOCOLS = 0x0003
SOL_PACKET = 263
PACKET_VNET_HDR = 15
OUTGOING = 4
PROTOCOL = slice(22, 24)
IPV4 = b"\x08\x00"
"""Where a frame has its protocol, and the one whose packets the kernel drops."""
NONE = 0
"""The protocol of a socket that takes nothing."""
FRAME_BYTES = 1 << 17
BUFFER_BYTES = 16 << 20


def main() -> None:
    port = sys.argv[1]
    seconds = float(sys.argv[2])
    taking = _open(port, ALL_PROTOCOLS)
    giving = _open("bridge", NONE)
    held: deque[tuple[float, bytes]] = deque()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([taking, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        if taking in ready:
            frame, place = taking.recvfrom(FRAME_BYTES)
            if place[2] != OUTGOING and frame[PROTOCOL] == IPV4:
                held.append((time.monotonic() + seconds, frame))
        while held and held[0][0] <= time.monotonic():
            giving.send(held.popleft()[1])


def _open(device: str, protocol: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    made.bind((device, protocol))
    return made


if __name__ == "__main__":
    main()
