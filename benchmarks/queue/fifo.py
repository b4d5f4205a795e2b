"""The queue to compare with: whole runs in the order of their arrival, and none before the first one that does not fit."""

from __future__ import annotations

from yatt_core.queueing.facts import Decision, QueueFacts, Start
from yatt_core.queueing.limits import Limits
from yatt_core.queueing.pools import PoolsSpec
from yatt_core.queueing.reservations import PoolState


def decide_fifo(pools: PoolsSpec, facts: QueueFacts) -> Decision:
    """Returns what a queue without priorities, pre-emption and backfilling does; interrupted runs are first again."""
    limits = Limits(pools, facts.entries)
    starts: list[Start] = []
    for name, pool in pools.pools.items():
        state = PoolState.of(name, pool.numbers, facts.away.get(name, frozenset()), facts)
        waiting = [entry for entry in facts.entries if entry.pool == name and entry.held is None]
        for entry in sorted(waiting, key=lambda each: each.order):
            if entry.devices > len(state.free) or limits.why_blocked(entry) is not None:
                break
            limits.add(entry)
            starts.append(Start(entry.run, name, state.take(entry.devices), 0))
    return Decision(tuple(starts), (), {})
