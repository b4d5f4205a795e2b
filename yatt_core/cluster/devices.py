"""The inventory of devices of the connected Ray cluster: its GPUs, or its cores if there are no GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from yatt_core.cluster.gcs import Node, living_nodes

MODEL = "accelerator_type:"
"""Prefix of the Ray resource that names the GPU model of a node."""


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable slot.

    index: its number in the run.
    node: Ray's node id.
    name: such as `host:gpu0` or `host:core0`.
    model: the GPU's type as Ray names it; empty if unknown.
    memory: in bytes. For a core, its share of the memory that Ray may allocate on the node; 0 for a GPU, whose
        memory follows from its model.
    """

    index: int
    kind: Literal["gpu", "core"]
    node: str
    name: str
    model: str = ""
    memory: int = 0


def inventory() -> tuple[Device, ...]:
    """Returns the devices of all live nodes of the connected cluster, in a stable order."""
    return devices_of(living_nodes())


def devices_of(nodes: Sequence[Node]) -> tuple[Device, ...]:
    """Returns the devices of nodes: all GPUs if there is at least one, else all cores."""
    kind, resource = ("gpu", "GPU") if any(node.resources.get("GPU") for node in nodes) else ("core", "CPU")
    places = [(node, slot) for node in nodes for slot in range(int(node.resources.get(resource, 0)))]
    return tuple(_device(index, kind, node, slot) for index, (node, slot) in enumerate(places))


def _device(index: int, kind: str, node: Node, slot: int) -> Device:
    name = f"{node.host}:{kind}{slot}"
    if kind == "gpu":
        model = next((key.removeprefix(MODEL) for key in node.resources if key.startswith(MODEL)), "")
        return Device(index, "gpu", node.id, name, model=model)
    share = int(node.resources.get("memory", 0) / node.resources["CPU"])
    return Device(index, "core", node.id, name, memory=share)
