"""The devices that a run has reserved in Ray: a placement group on each node that it uses, a bundle a device.

Consumes a connected cluster and how many devices are wanted. The groups outlive the driver and are told to the next one by
Ray's key-value store; where none comes any more, the actors there give them back. A group goes with its node, and never grows:
free devices of other nodes take the place of lost ones, and if there are none, more actors share those that are left.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from yatt_core.cluster.devices import Device, inventory
from yatt_core.cluster.gcs import recall, remember
from yatt_core.errors import InfrastructureError

log = logging.getLogger(__name__)
KEY = "devices"
FREE_SECONDS = 30.0
"""How long devices may take to become free, such as those of a run that ends."""
NODE_LABEL = "ray.io/node-id"
GPU_SHARE = 0.01
"""Of a GPU, for each actor on it: Ray shows it the device then, and keeps nobody else of the run off it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of a node. id: of the placement group, in hexadecimal."""

    id: str
    count: int

    @property
    def handle(self) -> PlacementGroup:
        """As Ray takes it."""
        return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(self.id)))


@dataclass(frozen=True, slots=True)
class Seat:
    """A reserved device. bundle: its number in the group of its node."""

    kind: str
    node: str
    group: Group
    bundle: int

    @property
    def options(self) -> dict[str, Any]:
        """With these, Ray puts an actor there."""
        strategy = PlacementGroupSchedulingStrategy(self.group.handle, self.bundle)
        return {"scheduling_strategy": strategy, "num_gpus": GPU_SHARE if self.kind == "gpu" else 0}


def reserve(wanted: int, avoided: Collection[str]) -> tuple[Seat, ...]:
    """Seats of the run on all but some nodes, by Ray's ids: as many as are wanted, or as there are.

    Raises `InfrastructureError` where devices do not become free, or Ray does not answer.
    """
    devices = inventory()
    kind, living = devices[0].kind, {device.node for device in devices}
    groups = _groups()
    if lost := groups.keys() - living:
        for node in lost:
            remove_placement_group(groups.pop(node).handle)
        _tell(groups)
    for node, count in lacking(devices, groups, avoided, wanted).items():
        groups[node] = _group_on(node, count, kind, f"{KEY}.{node}")
        _tell(groups)
    return tuple(
        Seat(kind, node, groups[node], bundle)
        for node in sorted(groups.keys() - set(avoided))
        for bundle in range(groups[node].count)
    )


def release() -> None:
    """Gives all devices back, and ends what is still there."""
    for group in _groups().values():
        remove_placement_group(group.handle)
    _tell({})


def leave_devices() -> None:
    """Gives back, from within an actor, the devices of its node: nobody drives the run any more, and all of its actors end."""
    if ray.is_initialized() and (group := get_current_placement_group()) is not None:
        with suppress(ray.exceptions.RayError):
            remove_placement_group(group)


def lacking(
    devices: Sequence[Device], groups: Mapping[str, Group], avoided: Collection[str], wanted: int
) -> dict[str, int]:
    """Node -> devices to reserve there, on as few more nodes as possible. groups: by node, those that the run has."""
    missing = wanted - sum(group.count for node, group in groups.items() if node not in avoided)
    free = Counter(device.node for device in devices if device.node not in groups and device.node not in avoided)
    added: dict[str, int] = {}
    for node, count in sorted(free.items(), key=lambda entry: (-entry[1], entry[0])):
        if missing > 0:
            added[node] = min(count, missing)
            missing -= added[node]
    return added


def _groups() -> dict[str, Group]:
    """Those that the run has, by node; told under the namespace in which its actors are found too."""
    told = recall(ray.get_runtime_context().namespace, KEY)
    return {node: Group(*entry) for node, entry in json.loads(told or "{}").items()}


def _tell(groups: Mapping[str, Group]) -> None:
    told = {node: [group.id, group.count] for node, group in groups.items()}
    remember(ray.get_runtime_context().namespace, KEY, json.dumps(told))


def _group_on(node: str, count: int, kind: str, name: str) -> Group:
    """A placement group on a node; one that a driver made, and died before it could tell, is made anew."""
    bundles = [{"GPU" if kind == "gpu" else "CPU": 1.0}] * count
    selectors = [{NODE_LABEL: node}] * count
    try:
        made = placement_group(bundles, "PACK", name, lifetime="detached", bundle_label_selector=selectors)
    except ray.exceptions.RaySystemError:  # the name is taken
        remove_placement_group(get_placement_group(name))
        made = placement_group(bundles, "PACK", name, lifetime="detached", bundle_label_selector=selectors)
    if not made.wait(FREE_SECONDS):
        remove_placement_group(made)
        raise InfrastructureError(
            f"{count} {kind}s of Ray's node {node} are not free: others have reserved them; wait for their end, or give the run "
            "fewer instances and ranks"
        )
    log.info("%d %ss of node %s are reserved", count, kind, node)
    return Group(made.id.hex(), count)
