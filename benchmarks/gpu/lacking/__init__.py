"""Makes up for two small libraries of the product that a bare machine with a GPU lacks; what is installed is used.

Consumes nothing. Produces a path to `xxhash` in this folder, last among those on which Python looks for modules, and the name
of the network device, for which the product asks `psutil` unless the environment has it. Processes that are started from here
inherit both.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

LOOPBACK_DEVICES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""All processes of the benchmark are on one machine."""


def make_up() -> None:
    """Makes the product's modules importable, and its groups able to meet on this machine."""
    if find_spec("xxhash") is None:
        sys.path.append(str(Path(__file__).parent))
    if find_spec("psutil") is None:
        for name, device in LOOPBACK_DEVICES.items():
            os.environ.setdefault(name, device)
