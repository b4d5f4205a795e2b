"""Hosts on one machine: network namespaces with an address each, joined by a bridge in a namespace of its own.

Needs iproute2 and util-linux, and root or user namespaces. The machine's own network is never touched. All hosts
share the machine's files, shared memory and process ids. Everything is gone once the hosts' processes have ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOOLS = ("ip", "unshare", "nsenter", "env")
NETWORK = "10.77.0."
BRIDGE = """
set -e
mount -t tmpfs hosts /run && mkdir /run/netns
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
echo ready
exec cat >&2
"""
ENDING_SECONDS = 10.0


class NoHostsError(Exception):
    """This machine cannot make hosts; the message says why."""


class Hosts:
    """Hosts named h1, h2, ...; a context manager that ends all their processes.

    names: of the hosts that have not been ended.
    """

    def __init__(self, count: int) -> None:
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise NoHostsError(f"needs {', '.join(missing)}")
        as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        # Ends with this process, since its standard input then ends.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", *as_root, "sh", "-c", BRIDGE],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self._holder.kill()
            raise NoHostsError(f"namespaces cannot be made here: {' '.join(self._holder.communicate()[1].split())}")
        user = ["--user", "--preserve-credentials"] if as_root else []
        self._inside = ["nsenter", f"--target={self._holder.pid}", "--net", "--mount", *user]
        self.names = [f"h{number}" for number in range(1, count + 1)]
        try:
            for name in self.names:
                self._make(name)
        except NoHostsError:
            self._holder.kill()
            self._holder.communicate()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.names):
            self.end(name)
        self._holder.communicate(timeout=ENDING_SECONDS)

    def address(self, name: str) -> str:
        """Returns a host's address, which its device `eth0` has."""
        return f"{NETWORK}{name.removeprefix('h')}"

    def start(self, name: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a process on a host, in the current folder; its pid is the same as seen from here."""
        command = [*self._inside, "ip", "netns", "exec", name, "env", f"--chdir={Path.cwd()}", *argv]
        return subprocess.Popen(command, text=True, **options)

    def set_link(self, name: str, up: bool) -> None:
        """Connects a host to the others, or cuts it off from them without a sign to anyone."""
        self._ip("link", "set", f"port-{name}", "up" if up else "down")

    def end(self, name: str) -> None:
        """Ends a host: kills its processes and removes its link."""
        deadline = time.monotonic() + ENDING_SECONDS
        while pids := self._ip("netns", "pids", name).split():
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes of {name} do not end: {pids}"
            time.sleep(0.02)
        self._ip("link", "delete", f"port-{name}")
        self._ip("netns", "delete", name)
        self.names.remove(name)

    def _make(self, name: str) -> None:
        self._ip("netns", "add", name)
        self._ip("link", "add", f"port-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        self._ip("link", "set", f"port-{name}", "master", "bridge", "up")
        self._ip("-n", name, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", device, "up")

    def _ip(self, *arguments: str) -> str:
        done = subprocess.run([*self._inside, "ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoHostsError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
