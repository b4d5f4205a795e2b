"""The trainers' rendezvous: unreachable from outside the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from yatt_core.engines.train.ranks.rendezvous import hold_address

SECOND_RANK = """
import sys
from yatt_core.engines.train.ranks.collective import Collective
Collective().connect(1, 2, sys.argv[1])
"""


def test_the_rendezvous_listens_on_loopback_only() -> None:
    from yatt_core.engines.train.ranks.collective import Collective

    address = hold_address()
    with subprocess.Popen([sys.executable, "-c", SECOND_RANK, address]) as second:
        group = Collective()
        group.connect(0, 2, address)
        assert second.wait(timeout=60) == 0
    listeners = [c for c in psutil.Process(os.getpid()).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert f":{address.rpartition(':')[2]}" in {f":{listener.laddr.port}" for listener in listeners}
    assert {listener.laddr.ip for listener in listeners} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
