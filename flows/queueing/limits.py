"""The limits of persons and projects, counted during a decision, and checked afterwards on what was held.

Consumes entries, or allocations of devices from the ledger; produces the reason why a run may not start, and violations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flows.queueing.facts import Entry
from flows.queueing.pools import PoolsSpec


class LimitTracker:
    """Devices held by each person, and by each project in each pool."""

    def __init__(self, pools: PoolsSpec, entries: Iterable[Entry]) -> None:
        self._pools = pools
        self._owners: Counter[str] = Counter()
        self._projects: Counter[tuple[str, str]] = Counter()
        for entry in entries:
            if entry.held is not None:
                self.add(entry, entry.held.pool)

    def add(self, entry: Entry, pool: str) -> None:
        """Counts a run that starts in a pool."""
        self._owners[entry.owner] += entry.devices
        self._projects[pool, entry.project] += entry.devices

    def why_blocked(self, entry: Entry, pool: str) -> str | None:
        """Returns which limit keeps a run from starting in a pool; None if none does."""
        limit = self._pools.limit_of(entry.owner)
        if limit is not None and self._owners[entry.owner] + entry.devices > limit:
            held = self._owners[entry.owner]
            return f"{entry.owner} may hold {limit} devices (owners, devices_per_owner in pools.yaml), and holds {held}"
        quota = self._pools.pools[pool].quotas.get(entry.project)
        held = self._projects[pool, entry.project]
        if quota is not None and held + entry.devices > quota:
            return f"project {entry.project} may hold {quota} devices of {pool} (its quotas), and holds {held}"
        return None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Devices that a run held from one moment to another; `ended_at` is None while it holds them."""

    run: str
    pool: str
    owner: str
    project: str
    devices: tuple[int, ...]
    started_at: float
    ended_at: float | None


def violations(pools: PoolsSpec, stretches: Iterable[Stretch]) -> Iterator[str]:
    """Yields each moment at which a device was held twice or a limit was exceeded.

    A period that ends at the moment at which another begins does not overlap it, and one without length overlaps none.
    """
    known = [each for each in stretches if each.ended_at is None or each.ended_at > each.started_at]
    changes = [(stretch.started_at, 1, index) for index, stretch in enumerate(known)]
    changes += [(each.ended_at, 0, index) for index, each in enumerate(known) if each.ended_at is not None]
    holders: dict[tuple[str, int], str] = {}
    owners: Counter[str] = Counter()
    projects: Counter[tuple[str, str]] = Counter()
    for at, begins, index in sorted(changes):
        stretch = known[index]
        sign = 1 if begins else -1
        owners[stretch.owner] += sign * len(stretch.devices)
        projects[stretch.pool, stretch.project] += sign * len(stretch.devices)
        for number in stretch.devices:
            if not begins:
                holders.pop((stretch.pool, number), None)
            elif (other := holders.setdefault((stretch.pool, number), stretch.run)) != stretch.run:
                yield f"at {at}: device {number} of {stretch.pool} is held by {other} and by {stretch.run}"
        yield from _exceeded(pools=pools, stretch=stretch, owners=owners, projects=projects, at=at)


def _exceeded(
    pools: PoolsSpec, stretch: Stretch, owners: Counter[str], projects: Counter[tuple[str, str]], at: float
) -> Iterator[str]:
    limit = pools.limit_of(stretch.owner)
    if limit is not None and owners[stretch.owner] > limit:
        yield f"at {at}: {stretch.owner} holds {owners[stretch.owner]} devices, the limit is {limit}"
    pool = pools.pools.get(stretch.pool)
    quota = None if pool is None else pool.quotas.get(stretch.project)
    held = projects[stretch.pool, stretch.project]
    if quota is not None and held > quota:
        yield f"at {at}: project {stretch.project} holds {held} devices of {stretch.pool}, its quota is {quota}"
