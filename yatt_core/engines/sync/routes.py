"""By which way the weights of each rank reach each engine: a pure function of the GPUs on which they are.

An engine on the rank's own GPU reads the rank's memory. The others are in a group with the rank: on NCCL if every rank's
group has a GPU for each of its members. If a single one has not, all groups have all engines, and are on gloo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.engines.train.ranks.collective import NO_GPU, backend_of

GLOO = "gloo"
NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class Route:
    """The ways of one rank's weights. Engines are named by their places among all members, ranks first.

    sharing: the engines that read the rank's memory.
    grouped: the engines in a group with the rank, which is its first member; without any there is no group.
    backend: of the group.
    """

    sharing: tuple[int, ...]
    grouped: tuple[int, ...]
    backend: str


def plan_routes(gpus: Sequence[str], ranks: int) -> tuple[Route, ...]:
    """Returns the ways of each rank's weights.

    gpus: each member's GPU, as `gpu_name` returns it, ranks first.
    """
    engines = range(ranks, len(gpus))
    found = []
    for gpu in gpus[:ranks]:
        sharing = tuple(place for place in engines if gpus[place] == gpu != NO_GPU)
        grouped = tuple(place for place in engines if place not in sharing)
        found.append(Route(sharing, grouped, backend_of([gpu, *(gpus[place] for place in grouped)])))
    if all(route.backend == NCCL for route in found):
        return tuple(found)
    return tuple(Route((), tuple(engines), GLOO) for _ in found)
