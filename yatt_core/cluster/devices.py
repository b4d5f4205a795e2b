"""The inventory of devices of the connected Ray cluster: GPUs, or cores where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from yatt_core.cluster.gcs import Node, living_nodes


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable slot. index: its number in the run. node: Ray's node id. name: `host:gpu0` or `host:core0`."""

    index: int
    kind: Literal["gpu", "core"]
    node: str
    name: str


def inventory() -> tuple[Device, ...]:
    """The devices of all living nodes of the connected cluster, in a stable order."""
    return devices_of(living_nodes())


def devices_of(nodes: Sequence[Node]) -> tuple[Device, ...]:
    """The devices of nodes: all GPUs if there is one, else all cores."""
    kind, resource = ("gpu", "GPU") if any(node.resources.get("GPU") for node in nodes) else ("core", "CPU")
    places = [(node, slot) for node in nodes for slot in range(int(node.resources.get(resource, 0)))]
    return tuple(
        Device(index, "gpu" if kind == "gpu" else "core", node.id, f"{node.host}:{kind}{slot}")
        for index, (node, slot) in enumerate(places)
    )
