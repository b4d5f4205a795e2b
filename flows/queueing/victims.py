"""Which runs give their devices to a run of higher level: those whose stop wastes least.

Consumes the runs that may be stopped and the number of devices needed; produces a set of runs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from flows.queueing.facts import Allocation, Entry

LEVEL_FACTOR = 4.0
"""How much more a wasted second counts for each level of the run that wastes it."""


def stop_price(entry: Entry, held: Allocation, lowest: int) -> float:
    """Returns the device-seconds that a stop wastes, weighted by the run's level over the lowest one."""
    return len(held.devices) * (held.lost_seconds + 1.0) * LEVEL_FACTOR ** min(held.level - lowest, 20)


def cheapest(candidates: Sequence[tuple[Entry, Allocation]], needed: int) -> tuple[Entry, ...] | None:
    """Returns the runs that together hold at least `needed` devices at the least price; None if all hold fewer.

    A knapsack over the number of devices: exact, and small, because a pool has few running runs.
    """
    if sum(len(held.devices) for _, held in candidates) < needed:
        return None
    lowest = min((held.level for _, held in candidates), default=0)
    best: list[tuple[float, tuple[Entry, ...]] | None] = [(0.0, ()), *([None] * needed)]
    for entry, held in candidates:
        price = stop_price(entry, held, lowest)
        freed = len(held.devices)
        for have in range(needed - 1, -1, -1):
            known = best[have]
            if known is None:
                continue
            reached = min(needed, have + freed)
            there = best[reached]
            if there is None or known[0] + price < there[0]:
                best[reached] = (known[0] + price, (*known[1], entry))
    found = best[needed]
    return None if found is None else found[1]
