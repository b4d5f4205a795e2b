"""Which of this machine's addresses and network devices ranks and engines use. Nothing here sends anything."""

from __future__ import annotations

import os
import socket

from yatt_core.errors import InfrastructureError

DEVICES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""The variables that name the network device of each library; NCCL takes a name without `=` as a prefix."""

_bound: dict[str, str] = {}
"""The variables that this process has set itself."""


def own_address(host: str, port: int) -> str:
    """Returns this machine's address on the network through which it reaches another one.

    Raises `OSError` if there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def network_device(address: str) -> str:
    """Returns the name of the network device that has an address. Raises `InfrastructureError` if there is none."""
    import psutil  # not at the top: where the environment names the device, nobody asks

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise InfrastructureError(f"no network device of this node has the address {address}, at which it meets others")


def bind_libraries(address: str) -> None:
    """Has gloo and NCCL use the network device with this address, unless the environment names another."""
    unnamed = [name for name in DEVICES if os.environ.get(name) == _bound.get(name)]
    if unnamed:
        device = network_device(address)
        for name in unnamed:
            os.environ[name] = _bound[name] = DEVICES[name].format(device)
