"""Which controllers a run has, and on which nodes: a pure function of the spec and the live nodes.

With a fixed number per node, live controllers keep their names and nodes when others come or go: a node that
joins or leaves does not affect the controllers on other nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count

from yatt_core.spec.sections.controllers import ControllerSpec

CONTROLLER = "controller"


def lay_out_controllers(spec: ControllerSpec, nodes: Collection[str], living: Mapping[str, str]) -> dict[str, str]:
    """Returns the node id of each controller that should exist, by name and in order of their numbers.

    nodes: ids of the usable nodes.
    living: the node of each existing controller, by name.

    An empty node id means that Ray may choose the node.
    """
    if spec.per == "run":
        return {f"{CONTROLLER}-{index}": "" for index in range(spec.count)}
    places: dict[int, str] = {}
    for name in sorted(living, key=_number):
        node = living[name]
        if node in nodes and sum(place == node for place in places.values()) < spec.count:
            places[_number(name)] = node
    free = (index for index in count() if index not in places)
    lacking = {node: spec.count - sum(place == node for place in places.values()) for node in sorted(nodes)}
    added = [(next(free), node) for node, number in lacking.items() for _ in range(number)]
    return {f"{CONTROLLER}-{index}": node for index, node in sorted([*places.items(), *added])}


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
