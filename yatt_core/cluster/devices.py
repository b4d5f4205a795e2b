"""The inventory of devices of the connected Ray cluster: its GPUs, or its cores if there are no GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import ray

from yatt_core.cluster.gcs import Node, living_nodes
from yatt_core.cluster.gpus import local_gpus
from yatt_core.cluster.nodes import on_node
from yatt_core.errors import ConfigurationError, InfrastructureError

MODEL = "accelerator_type:"
"""Prefix of the Ray resource that names the GPU model of a node."""
NODE_SECONDS = 120.0
"""How long a node may take to answer about its GPUs: Ray starts a process there for it, which lasts on a busy host."""


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable slot.

    index: its number in the run.
    node: Ray's node id.
    name: such as `host:gpu0` or `host:core0`.
    model: the GPU's type as Ray names it; empty if unknown.
    memory: in bytes. For a core, its share of the memory that Ray may allocate on the node; 0 for a GPU whose
        driver was not asked, since its memory usually follows from its model.
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


def measured_gpus(devices: Sequence[Device], nodes: Collection[str]) -> tuple[Device, ...]:
    """Returns the devices; the GPUs of some nodes have the memory of the smallest GPU there, as its driver reports it.

    nodes: Ray's ids of the nodes to ask.

    Raises `ConfigurationError` for a node whose driver reports none, `InfrastructureError` if a node does not answer.
    """
    ask = ray.remote(num_cpus=0, max_retries=0)(local_gpus)
    asked = {node: ask.options(scheduling_strategy=on_node(node)).remote() for node in nodes}
    try:
        answers = dict(zip(asked, ray.get(list(asked.values()), timeout=NODE_SECONDS), strict=True))
    except ray.exceptions.RayError as error:
        raise InfrastructureError(f"nodes with GPUs do not report the memory of these: {error}") from error
    for device in devices:
        if device.node in answers and not answers[device.node]:
            raise ConfigurationError(
                f"{device.name}: YATT knows no model card of {device.model or 'this GPU'}, and nvidia-smi on its node "
                "does not report its memory, so that nothing shows whether the run fits; make nvidia-smi work there"
            )
    least = {node: min(found, key=lambda gpu: gpu[1]) for node, found in answers.items() if found}
    return tuple(
        replace(device, model=least[device.node][0], memory=least[device.node][1]) if device.node in least else device
        for device in devices
    )
