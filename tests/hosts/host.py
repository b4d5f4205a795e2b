"""A host: namespaces for its network, mounts, processes, name and shared memory, and disks of its own.

Processes of a host do not see those of others. Its disks are kept in the bridge's mount namespace, so that they outlive
the host's power. What is not on a disk, and not in /dev/shm, is the machine's.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from tests.hosts.link import Link
from tests.hosts.namespaces import Inside, NoHostsError, Room, inner
from yatt_core.engines.network import DEVICES

NETWORK = "10.77.0."
DISKS = "/run/disks"
BALLAST = ".ballast"
KINDS = ("net", "mount", "uts", "ipc", "pid")
# Orphans are left to the first process, which lets the kernel bury them, as it ignores SIGCHLD.
BOOT = """
set -e
hostname {name}
mount -t proc proc /proc
mount -t tmpfs -o size={shared_bytes},mode=1777 shm /dev/shm
echo {boot} > /dev/shm/boot_id
mount --bind /dev/shm/boot_id /proc/sys/kernel/random/boot_id
rm /dev/shm/boot_id
{mounts}
umount -R -l /run
echo ready
exec env --ignore-signal=CHLD cat >&2
"""
ENDING_SECONDS = 10.0


class Host:
    """A host with an address, which its device `eth0` has.

    bridge: the namespaces that hold the bridge and the disks.
    link: its connection to the others; without faults after each `power_on`.
    """

    def __init__(self, name: str, bridge: Room, disks: tuple[Path, ...], disk_bytes: int) -> None:
        self.name = name
        self.address = f"{NETWORK}{name.removeprefix('h')}"
        self.link = Link(f"port-{name}", bridge)
        self._bridge = bridge
        self._disks = disks
        self._disk_bytes = disk_bytes
        self._init: Inside | None = None
        self._room: Room | None = None

    @property
    def has_power(self) -> bool:
        """Whether the host is on."""
        return self._init is not None

    def start(self, argv: Sequence[str], **options: Any) -> Inside:
        """Starts a process on the host, in the current folder; network devices of this machine are not among its names."""
        assert self._room is not None, f"{self.name} has no power"
        given = options.pop("env", os.environ)
        own = {name: value for name, value in given.items() if name not in DEVICES}
        return self._room.start(argv, env=own, **options)

    def power_on(self) -> None:
        """Boots the host, with the disks that it had, or empty ones."""
        for number in range(len(self._disks)):
            self._bridge.call("sh", "-c", self._attach(number))
        mounts = [f"mount --bind {self._held(number)} {quote(str(path))}" for number, path in enumerate(self._disks)]
        script = BOOT.format(name=self.name, shared_bytes=self._disk_bytes, boot=uuid.uuid4(), mounts="\n".join(mounts))
        new = [f"--{kind}" for kind in KINDS]
        self._init = self._bridge.start(
            ["unshare", *new, "--fork", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n" or (first := inner(self._init)) is None:
            said = self._init.communicate()[1]
            self._init = None
            raise NoHostsError(f"{self.name} does not boot: {' '.join(said.split())}")
        self._room = Room(first.pid, KINDS, self._bridge.in_user_namespace)
        self.link.plug(first.pid, self._room, f"{self.address}/24")

    def power_off(self, keep_disk: bool = True) -> None:
        """Takes the host's power: the others see it vanish without a word, then all its processes are gone.

        keep_disk: whether the disks, with all that was written, are there at the next `power_on`; else empty ones are.
        """
        assert self._init is not None, f"{self.name} has no power"
        self.link.unplug()
        self._init.kill()
        self._init.communicate(timeout=ENDING_SECONDS)
        self._init = self._room = None
        if not keep_disk:
            for number in range(len(self._disks)):
                self._bridge.call("umount", self._held(number))

    def call(self, *argv: str) -> str:
        """Runs a command on the host and returns its output; raises `NoHostsError` if it fails."""
        assert self._room is not None, f"{self.name} has no power"
        return self._room.call(*argv)

    def end_processes(self) -> None:
        """Kills all processes of the host, which stays on."""
        self.start(["sh", "-c", "kill -9 -1 2>/dev/null"]).wait(ENDING_SECONDS)

    def fill_disk(self, disk: Path) -> None:
        """Fills one of the host's disks to the last byte; `free_disk` makes room again."""
        full = f"dd if=/dev/zero of={quote(str(self._ballast(disk)))} bs=1M 2>/dev/null || true"
        self.call("sh", "-c", full)

    def free_disk(self, disk: Path) -> None:
        """Frees what `fill_disk` has taken."""
        self.call("rm", "-f", str(self._ballast(disk)))

    def _ballast(self, disk: Path) -> Path:
        assert disk in self._disks, f"{disk} is no disk of {self.name}"
        return disk / BALLAST

    def _held(self, number: int) -> str:
        return f"{DISKS}/{self.name}-{number}"

    def _attach(self, number: int) -> str:
        held = self._held(number)
        empty = f"mkdir -p {held} && mount -t tmpfs -o size={self._disk_bytes},mode=1777 disk {held}"
        return f"mountpoint -q {held} || {{ {empty}; }}"
