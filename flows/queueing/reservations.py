"""The devices of a pool in one decision, and the reservation that backfilling must respect (EASY backfilling).

Consumes the facts; produces device numbers to start on, and the time at which enough devices will be free.
Source: Mu'alem and Feitelson, Utilization, Predictability, Workloads, and User Runtime Estimates (IEEE TPDS 2001).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flows.queueing.facts import NEVER, Allocation, Entry, QueueFacts
from flows.queueing.pools import PoolSpec

OVERDUE_SECONDS = 60.0
"""A run whose predicted end has passed is taken to end this soon."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that a waiting run will get.

    at: when enough devices will be free, by predicted ends; `NEVER` if these are not known.
    spare: devices that will be free then beyond those that it needs.
    """

    run: str
    at: float
    spare: int

    def admits(self, entry: Entry, now: float) -> bool:
        """Returns True if a run may start without delaying this one."""
        return now + entry.run_seconds <= self.at < NEVER or entry.devices <= self.spare

    def after(self, entry: Entry, now: float) -> Reservation:
        """Returns the reservation after an admitted run has started."""
        if now + entry.run_seconds <= self.at < NEVER:
            return self
        return replace(self, spare=self.spare - entry.devices)


@dataclass(slots=True)
class PoolState:
    """The devices of a pool during a decision.

    free: numbers of devices that nobody holds, and that are kept for nobody.
    running: runs that hold devices and were not asked to stop.
    stopping: runs that hold devices and were asked to stop.
    coming: devices of stopping runs that are kept for nobody yet.
    present: devices that are not away.
    """

    free: list[int]
    running: list[tuple[Entry, Allocation]]
    stopping: list[tuple[Entry, Allocation]]
    present: int
    away: frozenset[int]
    coming: int = 0
    reservation: Reservation | None = field(default=None)

    @classmethod
    def of(cls, name: str, pool: PoolSpec, away: frozenset[int], facts: QueueFacts) -> PoolState:
        """Returns the state of a pool before the decision.

        A GPU that a run got from another pool, as the pools file was then, is taken.
        """
        numbers = pool.numbers
        gpus = pool.gpus is not None
        holding = [(entry, entry.held) for entry in facts.entries if entry.held is not None and entry.held.pool == name]
        strangers = [each.held for each in facts.entries if each.held is not None and each.held.gpus and gpus]
        taken = {number for held in (*strangers, *(held for _, held in holding)) for number in held.devices}
        free = [number for number in numbers if number not in taken and number not in away]
        state = cls(
            free=free,
            running=[],
            stopping=[],
            present=len([number for number in numbers if number not in away]),
            away=away,
        )
        for entry, held in holding:
            if held.stopping:
                state.stopping.append((entry, held))
                state.coming += state.returned(held)
            else:
                state.running.append((entry, held))
        return state

    def returned(self, held: Allocation) -> int:
        """Returns how many devices a run's end gives back."""
        return sum(number not in self.away for number in held.devices)

    def take(self, count: int) -> tuple[int, ...]:
        """Takes free devices, those with the lowest numbers."""
        taken = tuple(self.free[:count])
        del self.free[:count]
        return taken

    def claim(self, count: int) -> None:
        """Keeps devices for a run: free ones, and for the rest those of stopping runs."""
        free = min(count, len(self.free))
        # From the end, so that runs that start at once get the same numbers with or without the claim.
        del self.free[len(self.free) - free :]
        self.coming -= count - free

    def leaving(self, run: str) -> None:
        """Notes that a run is asked to stop."""
        for entry, held in self.running:
            if entry.run == run:
                self.running.remove((entry, held))
                self.stopping.append((entry, held))
                self.coming += self.returned(held)
                return


def reserve(entry: Entry, state: PoolState, now: float) -> Reservation:
    """Returns when a run can start if no other one is started before it."""
    ends = [(max(held.ends_at, now + OVERDUE_SECONDS), state.returned(held)) for _, held in state.running]
    ends += [(max(min(held.free_at, held.ends_at), now), state.returned(held)) for _, held in state.stopping]
    free = len(state.free) + min(0, state.coming)
    at = now
    for end, devices in sorted(ends):
        if free >= entry.devices and end > at:
            break
        free = free + devices
        at = end
    return Reservation(entry.run, at if free >= entry.devices else NEVER, max(0, free - entry.devices))
