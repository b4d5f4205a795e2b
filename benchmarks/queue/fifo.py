"""The queue to compare with: whole runs in the order of their arrival, and none before the first one that does not fit."""

from __future__ import annotations

from flows.queueing.facts import Decision, QueueFacts, RunStart
from flows.queueing.limits import LimitTracker
from flows.queueing.pools import PoolsSpec
from flows.queueing.reservations import PoolState


def decide_fifo(pools: PoolsSpec, facts: QueueFacts) -> Decision:
    """Returns what a queue without priorities, preemption and backfilling does; interrupted runs are first again."""
    limits = LimitTracker(pools, facts.entries)
    states = {
        name: PoolState.of(name, pool, frozenset(facts.away.get(name, ())), facts) for name, pool in pools.pools.items()
    }
    starts: list[RunStart] = []
    closed: set[str] = set()
    for entry in sorted(facts.entries, key=lambda each: each.order):
        if entry.held is not None or closed.issuperset(entry.pools):
            continue
        for name in entry.pools:
            fits = entry.devices <= len(states[name].free) and limits.why_blocked(entry, name) is None
            if fits and name not in closed:
                limits.add(entry, name)
                starts.append(RunStart(entry.run, name, states[name].take(entry.devices), 0))
                break
        else:
            closed.update(entry.pools)
    return Decision(tuple(starts), (), {})
