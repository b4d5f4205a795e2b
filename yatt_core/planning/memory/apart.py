"""A trainer with devices of its own (`placement.trainer: apart`): which those are, what is left, and the fuller of both kinds.

Consumes roles, a cluster, and the use of memory on each kind of device. Produces numbers of devices, and one use by stage.
Raises `ConfigurationError` if nothing is left for engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from yatt_core.cluster.seating import layout_of
from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import StageTotal
from yatt_core.planning.cluster import DescribedCluster
from yatt_core.planning.roles import Roles
from yatt_core.spec.sections.placement import APART


def devices_apart(roles: Roles, cluster: DescribedCluster, ranks: int) -> int:
    """Returns the number of devices that only the trainer uses (`placement.trainer: apart`); 0 if it has to share them after all.

    Raises `ConfigurationError` if a trainer that cannot share devices leaves none for engines.
    """
    if roles.spec.placement.trainer != APART:
        return 0
    if ranks < cluster.devices:
        return ranks
    layout = layout_of(roles.trainer)
    if layout.shares:
        return 0
    raise ConfigurationError(
        f"placement.trainer: apart, but the trainer's {ranks} ranks leave none of {cluster.devices} devices for engines; "
        f"expected shared, or a {layout.key} that leaves some"
    )


def without_first(by_node: Mapping[str, int], count: int) -> dict[str, int]:
    """Returns the devices of each node without the first `count` ones; nodes without any are left out."""
    left = {}
    for node, devices in by_node.items():
        taken = min(count, devices)
        count -= taken
        if devices > taken:
            left[node] = devices - taken
    return left


def fullest(totals: Sequence[Sequence[StageTotal]]) -> list[StageTotal]:
    """Returns, stage by stage, the use of the fullest of different devices; hosts hold what all of them keep there."""
    found = []
    for stages in zip(*totals, strict=True):
        most = max(stages, key=lambda total: total.tensors + total.runtime)
        found.append(replace(most, host=sum(total.host for total in stages)))
    return found
