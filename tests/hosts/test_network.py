"""The hosts of the tests: they reach each other, can be cut off, and end with their processes."""

from __future__ import annotations

import subprocess
import sys

from tests.hosts.network import Hosts

LISTEN = """
import socket
listener = socket.create_server(("10.77.0.1", 9000))
print("listening", flush=True)
while True:
    listener.accept()
"""
REACH = """
import socket
try:
    socket.create_connection(("10.77.0.1", 9000), timeout=1.0)
    print("reached")
except OSError:
    print("unreached")
"""


def test_hosts_reach_each_other_until_one_is_cut_off_or_ends(two_hosts: Hosts) -> None:
    listening = two_hosts.start("h1", [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert listening.stdout is not None
    assert listening.stdout.readline() == "listening\n"

    def reach(name: str) -> str:
        asking = two_hosts.start(name, [sys.executable, "-c", REACH], stdout=subprocess.PIPE)
        return asking.communicate(timeout=30)[0].strip()

    assert [reach("h1"), reach("h2")] == ["reached", "reached"]
    two_hosts.set_link("h1", False)
    assert [reach("h1"), reach("h2")] == ["reached", "unreached"]
    two_hosts.set_link("h1", True)
    assert reach("h2") == "reached"
    two_hosts.end("h1")
    assert listening.wait(10) < 0
    assert reach("h2") == "unreached"
    assert two_hosts.names == ["h2"]
