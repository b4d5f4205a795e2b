"""Which actors make up a rollout instance, and which seats each of them has: a pure function of the seats' nodes.

Consumes the nodes of the run's seats and the layout of the rollout engines. An instance over several nodes has an actor on
each: `rollout-N` with the engine on the first, followers with its other workers on the rest. They start and end together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yatt_core.cluster.seating import RankLayout, instance_seats

ROLLOUT = "rollout"
FOLLOWER = "follower"


class InstanceSeats:
    """The instances of a run.

    nodes: the node of each seat.
    layout: the rollout engines'.
    first: the seat from which on they take seats; those before are the trainer's alone.
    """

    def __init__(self, nodes: Sequence[str], layout: RankLayout, first: int = 0) -> None:
        self._nodes = tuple(nodes)
        self._divisible = layout.parts > 1
        self._instances: list[dict[str, tuple[int, ...]]] = []
        followers = 0
        for number, found in enumerate(instance_seats(nodes[first:], layout) if nodes else ()):
            parts = [tuple(first + seat for seat in part) for part in found]
            names = [f"{ROLLOUT}-{number}", *(f"{FOLLOWER}-{followers + each}" for each in range(len(parts) - 1))]
            followers += len(parts) - 1
            self._instances.append(dict(zip(names, parts, strict=True)))

    @property
    def followers(self) -> list[str]:
        """The names of all followers."""
        return [name for members in self._instances for name in members if name.startswith(FOLLOWER)]

    def members_of(self, name: str) -> list[str]:
        """Returns the names of the actors of the instance that an actor belongs to, in the order of their nodes."""
        return next((list(members) for members in self._instances if name in members), [name])

    def of(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of an actor's seats."""
        return next(members[name] for members in self._instances if name in members)

    def broken(self, nodes: Mapping[str, str]) -> list[str]:
        """Returns the actors that have to end: those of an instance that lacks one, or of which one is elsewhere.

        If instances are no longer divided as they were, all of them end. None end that are always on one node.

        nodes: the node of each living actor, by name.
        """
        if not self._divisible:
            return []
        found = strangers = [name for name in nodes if name.startswith(FOLLOWER) and name not in self.followers]
        for members in self._instances:
            places = {name: self._nodes[seats[0]] for name, seats in members.items()}
            if strangers or any(nodes.get(name) != node for name, node in places.items()):
                found = [*found, *(name for name in members if name in nodes)]
        return found
