"""The nodes of the connected Ray cluster by names that outlive it, so that a bad node can be remembered and avoided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from yatt_core.cluster.gcs import living_nodes
from yatt_core.errors import IS_AWAY, AwayError

A_NODE = "a node of the run"
"""Stands for missing nodes in an `AwayError`."""


def node_names() -> dict[str, str]:
    """Maps Ray's id of each live node to its name. Raises `InfrastructureError` if the cluster does not answer."""
    return {node.id: node.name for node in living_nodes()}


def own_node_name() -> str:
    """Returns the name of the node to which this process is connected."""
    return node_names()[str(ray.get_runtime_context().get_node_id())]


def avoided_nodes(names: Mapping[str, str], avoid: frozenset[str]) -> frozenset[str]:
    """Returns the ids of the nodes that get no actors; a cluster's only node is always used.

    names: the names of the live nodes by id.

    Raises `AwayError` if there are several nodes and none may be used.
    """
    avoided = frozenset(node for node, name in names.items() if name in avoid)
    if len(names) < 2 or not avoided:
        return frozenset()
    if len(avoided) == len(names):
        raise AwayError(f"{A_NODE}{IS_AWAY}all of {', '.join(sorted(set(names.values())))} are quarantined")
    return avoided


def elsewhere(living: Iterable[str], avoided: frozenset[str], turn: int) -> Any:
    """Returns Ray's scheduling strategy for an actor on any node except those to avoid, given by their ids.

    turn: the actor's number, which spreads actors over the remaining nodes.

    Node labels would leave the choice to Ray, but Ray ignores them for actors that request no resources.
    """
    if not avoided:
        return "DEFAULT"
    allowed = sorted(set(living) - avoided)
    return on_node(allowed[turn % len(allowed)])


def on_node(node: str) -> Any:
    """Returns Ray's scheduling strategy for an actor on exactly this node, given by its id."""
    return NodeAffinitySchedulingStrategy(node, soft=False)
