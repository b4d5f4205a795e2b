"""The devices that a run has reserved in Ray: a placement group on each node that it uses, with one bundle per device.

Consumes a connected cluster, the layout of the ranks and the number of devices wanted. The groups outlive the driver; the next
driver finds them in Ray's key-value store. If there is no next driver, the actors on these devices release the groups. A
group disappears with its node and never grows: free devices on other nodes replace lost ones, and if there are
none, more actors share the remaining ones.
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

from yatt_core.cluster.devices import NODE_SECONDS, Device, inventory
from yatt_core.cluster.gcs import recall, remember
from yatt_core.cluster.nodes import A_NODE
from yatt_core.cluster.seating import (
    RankLayout,
    by_size,
    check_seats,
    divided,
    fewest_nodes,
    labels_of,
    seat_order,
    together,
)
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, InfrastructureError

log = logging.getLogger(__name__)
KEY = "devices"
A_PLACE = "a free place on the cluster"
"""Stands for devices that others use in an `AwayError`."""
FREE_SECONDS = 30.0
"""How long devices may take to become free, for example those of a run that is ending."""
NODE_LABEL = "ray.io/node-id"
NO_POOL = RankLayout(0, shares=True)
GPU_SHARE = 0.01
"""The share of a GPU that each actor on it requests, so that Ray exposes the GPU to several of the run's actors."""


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """The reserved devices of a node.

    id: the id of the placement group, in hexadecimal.
    """

    id: str
    count: int

    @property
    def handle(self) -> PlacementGroup:
        """The group as Ray's handle."""
        return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(self.id)))


@dataclass(frozen=True, slots=True)
class Seat:
    """A reserved device.

    bundle: its number in its node's group.
    """

    kind: str
    node: str
    group: NodeReservation
    bundle: int

    @property
    def options(self) -> dict[str, Any]:
        """The options with which Ray places an actor on the device."""
        strategy = PlacementGroupSchedulingStrategy(self.group.handle, self.bundle)
        return {"scheduling_strategy": strategy, "num_gpus": GPU_SHARE if self.kind == "gpu" else 0}


def reserve(
    wanted: int, avoided: Collection[str], layout: RankLayout, pool: RankLayout = NO_POOL, had_room: bool = False
) -> tuple[Seat, ...]:
    """Reserves devices outside the nodes to avoid and returns their seats, as `seat_order` orders them.

    These are as many as wanted, or all available ones.

    avoided: Ray's ids of nodes.
    layout: the trainer's.
    pool: the rollout engines'.
    had_room: the cluster could hold the run before, so that it is for lack of nodes if it cannot now.

    Raises `ConfigurationError` if the nodes cannot hold the ranks or the engines, `AwayError` if this is because
    nodes are lost or avoided, or if devices do not become free, and `InfrastructureError` if Ray does not answer.
    """
    devices = inventory()
    groups = _groups()
    _require_room(devices=devices, groups=groups, avoided=avoided, layouts=(layout, pool), had_room=had_room)
    kind = devices[0].kind
    living = {device.node for device in devices}
    pool = divided(_usable(devices, groups, avoided), pool)
    if lost := groups.keys() - living:
        for node in lost:
            remove_placement_group(groups.pop(node).handle)
        _tell(groups)
    added = lacking(devices=devices, groups=groups, avoided=avoided, wanted=wanted, layout=together(layout, pool))
    try:
        for node, count in added.items():
            groups[node] = _group_on(node, count, kind, f"{KEY}.{node}")
            _tell(groups)
    except AwayError:
        # Two runs that each kept what they have got so far could wait for each other.
        for node in added.keys() & groups.keys():
            remove_placement_group(groups.pop(node).handle)
        _tell(groups)
        raise
    counts = {node: group.count for node, group in groups.items() if node not in avoided}
    return tuple(Seat(kind, node, groups[node], bundle) for node, bundle in seat_order(counts, layout))


def check_room(avoided: Collection[str], layout: RankLayout, pool: RankLayout, had_room: bool) -> None:
    """Raises `reserve`'s errors about nodes that cannot hold ranks or engines; reserves nothing."""
    _require_room(devices=inventory(), groups=_groups(), avoided=avoided, layouts=(layout, pool), had_room=had_room)


def _require_room(
    devices: Sequence[Device],
    groups: Mapping[str, NodeReservation],
    avoided: Collection[str],
    layouts: Sequence[RankLayout],
    had_room: bool,
) -> None:
    for part in layouts:
        try:
            check_seats(_by_label(devices, groups, avoided), part)
        except ConfigurationError as error:
            if not groups and not avoided and not had_room:
                raise
            raise AwayError(f"{A_NODE}{IS_AWAY}it is lost or quarantined. {error}") from error


def _by_label(
    devices: Sequence[Device], groups: Mapping[str, NodeReservation], avoided: Collection[str]
) -> dict[str, int]:
    """Returns how many devices the run has or may reserve on each node, by the node's name for people."""
    names = labels_of(devices)
    return {names[node]: count for node, count in _usable(devices, groups, avoided).items()}


def gpus_of(seats: Sequence[Seat]) -> tuple[str, ...]:
    """Returns the numbers that the seats' GPUs have on their node; empty for cores.

    Raises `InfrastructureError` if a node does not answer.
    """
    if any(seat.kind != "gpu" for seat in seats):
        return ()
    task: Any = ray.remote(_assigned)
    asking = [task.options(num_cpus=0, **seat.options).remote() for seat in seats]
    try:
        answers = ray.get(asking, timeout=NODE_SECONDS)
    except ray.exceptions.RayError as error:
        raise InfrastructureError(f"nodes with GPUs do not report the numbers of these: {error}") from error
    return tuple(gpu for assigned in answers for gpu in assigned)


def _assigned() -> tuple[str, ...]:
    return tuple(ray.get_runtime_context().get_accelerator_ids()["GPU"])


def release() -> None:
    """Releases all devices and ends the actors that remain on them."""
    for group in _groups().values():
        remove_placement_group(group.handle)
    _tell({})


def leave_devices() -> None:
    """Releases the devices of the calling actor's node.

    Called when the run has no driver any more and all its actors are ending.
    """
    if ray.is_initialized() and (group := get_current_placement_group()) is not None:
        with suppress(ray.exceptions.RayError):
            remove_placement_group(group)


def lacking(
    devices: Sequence[Device],
    groups: Mapping[str, NodeReservation],
    avoided: Collection[str],
    wanted: int,
    layout: RankLayout,
) -> dict[str, int]:
    """Returns how many more devices to reserve on which nodes, using as few additional nodes as possible.

    groups: the run's existing groups, by node.
    """
    size = layout.together
    held = [group.count for node, group in groups.items() if node not in avoided]
    free = Counter(device.node for device in devices if device.node not in groups and device.node not in avoided)
    missing = max(0, wanted - sum(held))
    for_ranks = max(0, layout.groups - sum(count // size for count in held))
    together = min(max(for_ranks, -(-missing // size)), sum(count // size for count in free.values()))
    added: Counter[str] = Counter()
    nodes = fewest_nodes(free, together, size)
    for node in nodes:
        own = min(for_ranks, free[node] // size)
        added[node] = own * size
        for_ranks = for_ranks - own
    for node in (*nodes, *(node for node in by_size(free) if node not in nodes)):
        added[node] += min(free[node] - added[node], max(0, missing - added.total()))
    return {node: count for node, count in added.items() if count}


def _usable(
    devices: Sequence[Device], groups: Mapping[str, NodeReservation], avoided: Collection[str]
) -> dict[str, int]:
    """Returns how many devices of each living node that is not avoided the run has or may reserve."""
    counts = Counter({node: group.count for node, group in groups.items()})
    counts.update(device.node for device in devices if device.node not in groups)
    living = {device.node for device in devices}
    return {node: count for node, count in counts.items() if node in living and node not in avoided}


def _groups() -> dict[str, NodeReservation]:
    """Returns the run's groups by node, as stored in the namespace of its actors."""
    told = recall(ray.get_runtime_context().namespace, KEY)
    return {node: NodeReservation(*entry) for node, entry in json.loads(told or "{}").items()}


def _tell(groups: Mapping[str, NodeReservation]) -> None:
    told = {node: [group.id, group.count] for node, group in groups.items()}
    remember(ray.get_runtime_context().namespace, KEY, json.dumps(told))


def _group_on(node: str, count: int, kind: str, name: str) -> NodeReservation:
    """Creates a placement group on a node; replaces one whose driver died before it stored the group."""
    bundles = [{"GPU" if kind == "gpu" else "CPU": 1.0}] * count
    selectors = [{NODE_LABEL: node}] * count
    try:
        made = placement_group(bundles, "PACK", name, lifetime="detached", bundle_label_selector=selectors)
    except ray.exceptions.RaySystemError:  # the name is taken
        remove_placement_group(get_placement_group(name))
        made = placement_group(bundles, "PACK", name, lifetime="detached", bundle_label_selector=selectors)
    if not made.wait(FREE_SECONDS):
        remove_placement_group(made)
        raise AwayError(
            f"{A_PLACE}{IS_AWAY}{count} {kind}s of Ray's node {node} are not free: others have reserved them; end these, or "
            "configure fewer instances and ranks for the run"
        )
    log.info("reserved %d %ss of node %s", count, kind, node)
    return NodeReservation(made.id.hex(), count)
