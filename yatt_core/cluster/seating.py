"""Which devices of which nodes a run's ranks and rollout engines get: a pure function of the nodes and the layouts.

Ranks of a tensor-parallel group exchange activations in every layer, so they are on one node. Groups, pipeline
stages and replicas follow in the order of the ranks, on as few nodes as possible; of several choices, the one that
leaves the fewest devices of these nodes without a rank. Rank 0 and its group are on the first node. Rollout engines take
the same devices in the same order: each as many of one node as it needs, or, if no nodes have as many, its pipeline
stages in equal parts, each on one node. Imports neither Ray nor torch, because plans use this module too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from yatt_core.errors import ConfigurationError
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer, VllmRollout
from yatt_core.spec.sections.trainer import TorchTrainer, TrainerEngineSpec, VirtualTrainer

if TYPE_CHECKING:
    # Not at run time: it would import Ray.
    from yatt_core.cluster.devices import Device

LABEL_DIGITS = 8
LISTED_NODES = 8
"""Nodes of equal size that a message names; more are counted."""
POLICY = "rollout.engine"
WHO = "the rollout engines need"
TENSOR = "trainer.engine.tensor_model_parallel_size"
PIPELINE = "trainer.engine.pipeline_model_parallel_size"


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What a trainer's ranks or the rollout engines need.

    ranks: number of devices.
    together: consecutive ranks that must be on one node.
    stages: groups of such ranks that hold one copy of the model.
    shares: whether ranks may share a device if there are not enough.
    parts: into how many parts `together` may be divided, each on one node, if the nodes are too small: an engine's
        pipeline stages.
    least: the fewest devices of a part; a part is a multiple of it.
    key: the setting that determines the number of ranks.
    size_key: the setting that determines how many must be together.
    stages_key: the setting that determines the number of stages.
    who: whom a message says to need the devices.
    """

    ranks: int
    together: int = 1
    stages: int = 1
    shares: bool = False
    parts: int = 1
    least: int = 1
    key: str = "trainer.engine.ranks"
    size_key: str = TENSOR
    stages_key: str = PIPELINE
    who: str = "the trainer needs"

    @property
    def groups(self) -> int:
        """Number of groups that must each be on one node."""
        return self.ranks // self.together


def layout_of(trainer: TrainerEngineSpec) -> RankLayout:
    """Returns a trainer's layout; it has no ranks if the cluster determines their number."""
    if isinstance(trainer, MegatronTrainer):
        tensors = trainer.tensor_model_parallel_size
        stages = trainer.pipeline_model_parallel_size
        return RankLayout(trainer.ranks, tensors, stages, key="trainer.engine.data_parallel_size")
    return RankLayout(trainer.ranks, shares=isinstance(trainer, TorchTrainer | VirtualTrainer))


def pool_layout(spec: RunSpec) -> RankLayout:
    """Returns the layout of the rollout engines; it has no ranks if the cluster determines their number.

    An instance has as many devices as the largest of its engines, the policy's or a judge's. Engines of one device share
    devices if there are not enough.
    """
    if not spec.has.sync:
        return RankLayout(0, shares=True)
    policy = spec.rollout.engine
    judges = [
        (f"rewards.parts.{number}.engine", part.engine)
        for number, part in enumerate(spec.rewards.parts)
        if isinstance(part, GenerativePart) and isinstance(part.engine, VllmRollout)
    ]
    if isinstance(policy, VllmRollout):
        layout = engine_layout(policy, POLICY, policy.instances)
    else:
        layout = RankLayout(policy.instances, shares=True, key=f"{POLICY}.instances", who=WHO)
    key, largest = max(judges, default=("", None), key=lambda judge: judge[1].devices)
    if largest is None:
        return layout
    if largest.devices > layout.together:
        # Only the policy's engine may be on several nodes.
        return replace(engine_layout(largest, key, policy.instances), parts=1, key=f"{POLICY}.instances")
    return replace(layout, least=max(layout.least, largest.devices))


def engine_layout(engine: VllmRollout, key: str, instances: int) -> RankLayout:
    """Returns the layout of instances with an engine.

    key: the engine's key in the spec.
    """
    return RankLayout(
        instances * engine.devices,
        engine.devices,
        shares=engine.devices == 1,
        parts=engine.pipeline_parallel_size,
        least=engine.tensor_parallel_size,
        key=f"{key}.instances",
        size_key=f"{key}.tensor_parallel_size",
        stages_key=f"{key}.pipeline_parallel_size",
        who=WHO,
    )


def divided(devices: Mapping[str, int], layout: RankLayout) -> RankLayout:
    """Returns a layout whose instances are in as few parts as the nodes require; in the most if nothing suffices.

    devices: number of devices by node.
    """
    found = layout
    for parts in range(1, layout.parts + 1):
        size = layout.together // parts
        if layout.parts % parts or size < layout.least:
            continue
        found = replace(layout, together=size, stages=parts * layout.stages, parts=1)
        if max(1, layout.ranks) <= _held(devices, found):
            break
    return found


def together(first: RankLayout, second: RankLayout) -> RankLayout:
    """Returns the layout of devices on which both find places, in turn."""
    size = math.lcm(first.together, second.together)
    return RankLayout(-(-max(first.ranks, second.ranks) // size) * size, size, shares=first.shares and second.shares)


def instance_seats(nodes: Sequence[str], layout: RankLayout) -> list[tuple[tuple[int, ...], ...]]:
    """Returns the seats of each rollout instance by their numbers, in parts that are on one node each.

    nodes: the node of each seat.

    Instances of one device share seats if there are not enough; of larger ones there may be fewer than wanted.
    """
    wanted = layout.ranks // layout.together
    if layout.together == 1:
        return [((number % len(nodes),),) for number in range(wanted)]
    dealt = divided(Counter(nodes), layout)
    parts = list[tuple[int, ...]]()
    size = dealt.together
    count = dealt.stages
    for node in dict.fromkeys(nodes):
        own = [number for number, each in enumerate(nodes) if each == node]
        parts += [tuple(own[start : start + size]) for start in range(0, len(own) // size * size, size)]
    return [tuple(parts[start : start + count]) for start in range(0, len(parts) // count * count, count)][:wanted]


def most_ranks(devices: Mapping[str, int], layout: RankLayout) -> int:
    """Returns the ranks of as many copies of the model as the nodes hold.

    devices: number of devices by the node's name.
    """
    return _held(devices, divided(devices, layout))


def _held(devices: Mapping[str, int], layout: RankLayout) -> int:
    groups = sum(count // layout.together for count in devices.values())
    return groups // layout.stages * layout.stages * layout.together


def check_seats(devices: Mapping[str, int], layout: RankLayout) -> None:
    """Raises `ConfigurationError` if the nodes cannot hold the ranks.

    devices: number of devices by the node's name.
    """
    if layout.shares:
        return
    layout = divided(devices, layout)
    most = _held(devices, layout)
    if layout.ranks <= most and most > 0:
        return
    size = layout.together
    held = f"the nodes have {_listed(devices)}"
    largest = max(devices.values(), default=0)
    if size > largest:
        raise ConfigurationError(
            f"{layout.size_key}: {size} devices of one node are needed, but {held}; expected at most {largest}"
        )
    groups = sum(count // size for count in devices.values())
    within = f", in groups of {size} on one node" if size > 1 else ""
    if layout.stages > groups:
        raise ConfigurationError(
            f"{layout.stages_key}: a copy of the model needs {layout.stages * size} devices{within}, but {held}; expected at "
            f"most {groups}"
        )
    copies = most // (size * layout.stages)
    raise ConfigurationError(
        f"{layout.key}: {layout.who} {layout.ranks} devices{within}, but {held}; expected at most {copies}, or 0 for "
        "as many as fit in a plan"
    )


def seat_order(devices: Mapping[str, int], layout: RankLayout) -> list[tuple[str, int]]:
    """Returns all devices as pairs of node and number: first those of the ranks, in order, then the others.

    devices: number of devices by node.

    Raises `ConfigurationError` as `check_seats` does. If ranks share devices, rank r gets the one at r modulo their
    number.
    """
    check_seats(devices, layout)
    groups = min(layout.groups, sum(count // layout.together for count in devices.values()))
    left = groups
    ranks = []
    others = []
    chosen = fewest_nodes(devices, groups, layout.together)
    for node in (*chosen, *(node for node in by_size(devices) if node not in chosen)):
        taken = min(left, devices[node] // layout.together)
        left -= taken
        seats = [(node, number) for number in range(devices[node])]
        ranks += seats[: taken * layout.together]
        others += seats[taken * layout.together :]
    return ranks + others


def fewest_nodes(devices: Mapping[str, int], groups: int, size: int) -> tuple[str, ...]:
    """Returns the fewest nodes that hold `groups` groups of `size` devices, and of those the ones with least to spare.

    Returns no node if even all of them do not suffice. The largest node comes first.
    """
    nodes = [node for node in by_size(devices) if devices[node] >= size]
    fewest = 0
    held = 0
    while held < groups and fewest < len(nodes):
        held += devices[nodes[fewest]] // size
        fewest += 1
    if held < groups or not groups:
        return ()
    # The fewest devices, and their nodes, by how many nodes are used and how many groups these hold.
    best: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {(0, 0): (0, ())}
    for node in nodes:
        for (used, has), (count, chosen) in list(best.items()):
            if used == fewest:
                continue
            state = used + 1, min(groups, has + devices[node] // size)
            option = count + devices[node], (*chosen, node)
            best[state] = min(option, best.get(state, option))
    return best[fewest, groups][1]


def by_size(devices: Mapping[str, int]) -> list[str]:
    """Returns the nodes, the largest first."""
    return sorted(devices, key=lambda node: (-devices[node], node))


def labels_of(devices: Sequence[Device]) -> dict[str, str]:
    """Returns a name for each node by its id: its host's name, with a part of the id if several nodes share it."""
    hosts = {device.node: device.name.rpartition(":")[0] for device in devices}
    several = {host for host, count in Counter(hosts.values()).items() if count > 1}
    return {node: f"{host} ({node[:LABEL_DIGITS]})" if host in several else host for node, host in hosts.items()}


def _listed(devices: Mapping[str, int]) -> str:
    """Returns the nodes in words, grouped by their number of devices."""
    parts = []
    for count in sorted(set(devices.values()), reverse=True):
        names = sorted(node for node in devices if devices[node] == count)
        what = ", ".join(names) if len(names) <= LISTED_NODES else f"{len(names)} nodes"
        parts.append(f"{count} device{'s' * (count != 1)}{' each' * (len(names) > 1)} ({what})")
    return "; ".join(parts) or "no devices"
