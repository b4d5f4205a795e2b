"""The inventory of devices of the connected Ray cluster: GPUs, or cores where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ray


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable slot. index: its number in the run. node: Ray's node id. name: `host:gpu0` or `host:core0`."""

    index: int
    kind: Literal["gpu", "core"]
    node: str
    name: str


def inventory() -> tuple[Device, ...]:
    """The devices of all living nodes of the connected cluster, in a stable order."""
    return devices_of(ray.nodes())


def devices_of(nodes: Iterable[Mapping[str, Any]]) -> tuple[Device, ...]:
    """The devices of nodes as `ray.nodes()` describes them: all GPUs if there is one, else all cores."""
    living = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))
    kind, resource = ("gpu", "GPU") if any(node["Resources"].get("GPU") for node in living) else ("core", "CPU")
    places = [(node, slot) for node in living for slot in range(int(node["Resources"].get(resource, 0)))]
    return tuple(
        Device(index, "gpu" if kind == "gpu" else "core", node["NodeID"], f"{node['NodeManagerHostname']}:{kind}{slot}")
        for index, (node, slot) in enumerate(places)
    )
