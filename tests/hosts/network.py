"""Hosts on one machine: namespaces joined by a bridge in a namespace of its own. The machine's own network stays as is.

Consumes the number of hosts and the folders that are to be disks of each host's own. Needs iproute2, util-linux, and
root or user namespaces; raises `NoHostsError` where hosts cannot be made. Everything is gone once this process ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hosts.host import DISKS, Host
from tests.hosts.namespaces import NoHostsError, Room

__all__ = ["Host", "Hosts", "NoHostsError"]

TOOLS = ("ip", "tc", "unshare", "nsenter", "hostname")
DISK_BYTES = 256 << 20
BRIDGE = f"""
set -e
mount -t tmpfs hosts /run
mkdir {DISKS}
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
echo ready
exec cat >&2
"""
ENDING_SECONDS = 10.0


class Hosts:
    """Hosts named h1, h2, ..., all with power; a context manager that ends all their processes.

    disks: folders that are a disk of its own on each host, empty at first; they are created on this machine if missing.
        All other files are shared with this machine.
    disk_bytes: the size of each disk; what is written occupies memory.
    """

    def __init__(self, count: int, disks: Sequence[Path] = (), disk_bytes: int = DISK_BYTES) -> None:
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise NoHostsError(f"needs {', '.join(missing)}")
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        # Ends with this process, since its standard input then ends; not at Ctrl-C, so that hosts end in order.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", *as_root, "sh", "-c", BRIDGE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self._holder.kill()
            raise NoHostsError(f"namespaces cannot be made here: {' '.join(self._holder.communicate()[1].split())}")
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
        room = Room(self._holder.pid, ("net", "mount"), in_user_namespace=bool(as_root))
        self._hosts = [Host(f"h{number}", room, tuple(disks), disk_bytes) for number in range(1, count + 1)]
        try:
            for host in self._hosts:
                host.power_on()
        except NoHostsError:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self._hosts if host.name == name)

    def close(self) -> None:
        """Takes all hosts' power, and with the bridge their disks."""
        for host in self._hosts:
            if host.has_power:
                host.power_off()
        self._holder.communicate(timeout=ENDING_SECONDS)
