"""On which ports the nodes of a run must reach each other for weights. Consumes a spec, and this machine's settings."""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import InfrastructureError
from yatt_core.spec import RunSpec

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux takes from it the ports at which ranks and engines listen: their meeting's, and those of gloo and NCCL."""


def weight_ports(spec: RunSpec) -> tuple[int, int] | None:
    """Returns the first and the last TCP port; None for a run that sends no weights.

    Raises `InfrastructureError` if the setting cannot be read.
    """
    if spec.virtual or not spec.has.sync:
        return None
    try:
        first, last = RANGE.read_text().split()
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{RANGE}: cannot be read: {error}") from None
    return int(first), int(last)


def ports_line(ports: tuple[int, int]) -> str:
    """Returns the line for people."""
    first, last = ports
    return (
        f"weights go from the trainer to the engines over TCP ports {first} to {last} (net.ipv4.ip_local_port_range here; each "
        "node has its own): if the run has several nodes, they must reach each other on these"
    )
