"""The nodes of the connected Ray cluster by names that outlive it, so that a bad one can be remembered and avoided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from yatt_core.cluster.gcs import living_nodes
from yatt_core.errors import InfrastructureError


def node_names() -> dict[str, str]:
    """Ray's id of each living node -> its name. Raises `InfrastructureError` where the cluster does not answer."""
    return {node.id: node.name for node in living_nodes()}


def avoided_nodes(names: Mapping[str, str], avoid: frozenset[str]) -> frozenset[str]:
    """Ids of the nodes that get no actors. names: of the living nodes, by id; a cluster's only node is always used.

    Raises `InfrastructureError` when all of several nodes are to be avoided.
    """
    avoided = frozenset(node for node, name in names.items() if name in avoid)
    if len(names) < 2 or not avoided:
        return frozenset()
    if len(avoided) == len(names):
        raise InfrastructureError(
            f"no node is left for the run's actors: all of {', '.join(sorted(set(names.values())))} are quarantined"
        )
    return avoided


def elsewhere(living: Iterable[str], avoided: frozenset[str], turn: int) -> Any:
    """Ray's scheduling strategy for an actor on any but some nodes, by their ids; turn: spreads actors over the others.

    Ray's labels would leave the choice to Ray, but it does not obey them for actors that ask for no resources.
    """
    if not avoided:
        return "DEFAULT"
    allowed = sorted(set(living) - avoided)
    return on_node(allowed[turn % len(allowed)])


def on_node(node: str) -> Any:
    """Ray's scheduling strategy for an actor on one node alone, by its id."""
    return NodeAffinitySchedulingStrategy(node, soft=False)
