"""Makes up for a library of the product that a bare machine with a GPU lacks; what is installed is used.

Consumes nothing. Produces the name of the network device, for which the product asks `psutil` unless the environment has it.
Processes that are started from here inherit it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

LOOPBACK_DEVICES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""All processes of the benchmark are on one machine."""


def make_up() -> None:
    """Makes the product's groups able to meet on this machine."""
    if find_spec("psutil") is None:
        for name, device in LOOPBACK_DEVICES.items():
            os.environ.setdefault(name, device)
