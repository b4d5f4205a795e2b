"""Which controllers a run has, and where: a pure function of the spec and the living nodes.

With a number per node, controllers that live keep their names and nodes, whoever else comes and goes: what a node takes away
or brings costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count

from yatt_core.spec.run import ControllerSpec

CONTROLLER = "controller"


def lay_out_controllers(spec: ControllerSpec, nodes: Collection[str], living: Mapping[str, str]) -> dict[str, str]:
    """Name -> id of its node of each controller that there should be, in order of their numbers.

    nodes: ids of those that may be used. living: name -> node of the controllers there are. A node is empty where Ray may
    choose it.
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
