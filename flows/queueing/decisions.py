"""The queue's decision: which waiting runs start on which devices, and which running ones are asked to stop.

Consumes `PoolsSpec` and `QueueFacts`; produces a `Decision`. A pure function, the same for the scheduler and for simulations.

Runs are taken in the order of priority with age, then fair share, then submission.

- A run starts if all its devices are free at once and no limit of its owner or project is reached (gang admission).
- Otherwise runs of lower level give theirs if that is enough (preemption); the devices are kept for it until they have ended.
- Otherwise the run gets a reservation for the time when enough devices will be free by predicted ends, the first such run of a
  pool. Runs after it start if they end before, or if devices are left over then (backfilling). Others start on what would lie
  idle, too, but the run with the reservation may stop these as soon as that lets it start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from flows.queueing.facts import (
    NEVER,
    Allocation,
    Decision,
    Entry,
    QueueFacts,
    QueueIntent,
    RunStart,
    RunStop,
    Waiting,
)
from flows.queueing.fair_share import account_of, order_key
from flows.queueing.limits import LimitTracker
from flows.queueing.pools import HOUR, PoolsSpec
from flows.queueing.reservations import PoolState, reserve
from flows.queueing.victims import cheapest

MINUTE = 60.0
RECLAIMED = "its devices are reclaimed"
HELD_BACK = "paused in the queue"
REMOVED = "removed from the queue"


def decide(pools: PoolsSpec, facts: QueueFacts) -> Decision:
    """Returns what to do now. Entries of unknown pools wait."""
    return _Round(pools, facts).decide()


class _Round:
    """One decision in the making."""

    def __init__(self, pools: PoolsSpec, facts: QueueFacts) -> None:
        self._pools = pools
        self._facts = facts
        self._now = facts.now
        self._limits = LimitTracker(pools, facts.entries)
        self._states = {
            name: PoolState.of(name, pool, frozenset(facts.away.get(name, ())), facts)
            for name, pool in pools.pools.items()
        }
        self._used = dict(facts.used)
        self._starts: list[RunStart] = []
        self._stops: dict[str, RunStop] = {}
        self._waiting: dict[str, Waiting] = {}
        self._ageing = pools.ageing_hours * HOUR

    def decide(self) -> Decision:
        for stop in self._asked_to_leave():
            self._stop(stop)
        for entry in self._in_order():
            self._place(entry)
        return Decision(tuple(self._starts), tuple(self._stops.values()), self._waiting)

    def _asked_to_leave(self) -> Iterator[RunStop]:
        """Yields stops of runs that people hold back or remove, or whose devices are away."""
        for entry in self._facts.entries:
            held = entry.held
            if held is None:
                continue
            lost_at = self._facts.lost_at(held)
            if entry.wanted is not QueueIntent.RUN and not held.stopping:
                reason = HELD_BACK if entry.wanted is QueueIntent.HOLD else REMOVED
                yield RunStop(entry.run, reason, self._pools.stop_seconds)
            elif lost_at is not None and held.stop_reason != RECLAIMED:
                yield RunStop(entry.run, RECLAIMED, max(0.0, lost_at - self._now))

    def _in_order(self) -> Iterator[Entry]:
        """Yields the waiting runs; an account that just got devices falls back at once."""
        left = [entry for entry in self._facts.entries if entry.held is None and entry.wanted is QueueIntent.RUN]
        while left:
            entry = min(left, key=lambda each: order_key(self._pools, self._used, each))
            left.remove(entry)
            yield entry

    def _place(self, entry: Entry) -> None:
        """Starts a run, makes room for it, or says why it waits."""
        if entry.not_before == NEVER:  # its driver waits, without devices, for what is away
            return
        if entry.not_before > self._now:
            self._waiting[entry.run] = Waiting("waits after a failure", entry.not_before)
            return
        blocked = {name: self._why_blocked(entry, name) for name in entry.pools}
        usable = [name for name, reason in blocked.items() if reason is None]
        if not usable:
            self._waiting[entry.run] = Waiting("; ".join(reason for reason in blocked.values() if reason))
            return
        if not (
            any(self._start(entry, name, backfill=False) for name in usable)
            # First where enough devices are on their way already, so that it preempts in one pool only.
            or any(
                self._preempt(entry, name) for name in sorted(usable, key=lambda name: self._lacking(entry, name) > 0)
            )
            or any(self._start(entry, name, backfill=True) for name in usable)
        ):
            self._reserve(entry, usable[0])

    def _why_blocked(self, entry: Entry, pool: str) -> str | None:
        if pool not in self._states:
            return f"there is no pool {pool}"
        return self._limits.why_blocked(entry, pool)

    def _start(self, entry: Entry, pool: str, backfill: bool) -> bool:
        """Starts a run if all its devices are free; returns whether it did.

        backfill: start it even if that may delay the run with the reservation, which may stop it then.
        """
        state = self._states[pool]
        kept = state.reservation is not None and not state.reservation.admits(entry, self._now)
        if entry.devices > len(state.free) or (kept and not (backfill and self._is_worth_it(state))):
            return False
        if state.reservation is not None and not kept:
            state.reservation = state.reservation.after(entry, self._now)
        devices = state.take(entry.devices)
        level = entry.level(self._ageing)
        held = Allocation(pool, devices, self._now, level, ends_at=self._now + entry.run_seconds, backfilled=kept)
        state.running.append((replace(entry, held=held), held))
        self._limits.add(entry, pool)
        account = account_of(self._pools.fair_share, entry.owner, entry.project)
        self._used[account] = self._used.get(account, 0.0) + entry.devices * HOUR
        self._starts.append(RunStart(run=entry.run, pool=pool, devices=devices, level=level, backfilled=kept))
        return True

    def _is_worth_it(self, state: PoolState) -> bool:
        """Returns True if the devices would lie idle long enough for a run that may be stopped again."""
        protected = self._pools.protected_minutes * MINUTE
        return state.reservation is not None and state.reservation.at - self._now >= 2 * protected

    def _preempt(self, entry: Entry, pool: str) -> bool:
        """Makes room for a run; returns whether the devices that it needs are on their way."""
        state = self._states[pool]
        if state.reservation is not None and not state.reservation.admits(entry, self._now):
            return False
        lacking = self._lacking(entry, pool)
        if lacking > 0:
            victims = cheapest(list(self._victims(entry, state)), lacking)
            if victims is None or self._ends_sooner(entry, state, victims):
                return False
            for victim in victims:
                self._stop(RunStop(victim.run, f"preempted by {entry.run}", self._pools.stop_seconds))
        state.claim(entry.devices)
        self._limits.add(entry, pool)
        self._waiting[entry.run] = Waiting("its devices are being freed")
        return True

    def _lacking(self, entry: Entry, pool: str) -> int:
        """Returns how many devices a run lacks in a pool beyond those that are free or on their way."""
        state = self._states[pool]
        return entry.devices - len(state.free) - state.coming

    def _victims(self, entry: Entry, state: PoolState) -> Iterator[tuple[Entry, Allocation]]:
        level = entry.level(self._ageing)
        protected = self._pools.protected_minutes * MINUTE
        for other, held in state.running:
            given_way = state.reservation is None and held.backfilled and held.level <= level
            if (held.level < level or given_way) and self._now - held.started_at >= protected:
                yield other, held

    def _ends_sooner(self, entry: Entry, state: PoolState, victims: Iterable[Entry]) -> bool:
        """Returns True if enough devices will be free anyway before the victims would have stopped."""
        stopped = max(victim.held.free_at if victim.held else NEVER for victim in victims)
        return reserve(entry, state, self._now).at <= stopped

    def _stop(self, stop: RunStop) -> None:
        self._stops[stop.run] = stop
        for state in self._states.values():
            state.leaving(stop.run)

    def _reserve(self, entry: Entry, pool: str) -> None:
        state = self._states[pool]
        reservation = reserve(entry, state, self._now)
        if state.reservation is None:
            state.reservation = reservation
        reason = f"needs {entry.devices} devices, {len(state.free)} of {state.present} are free"
        if entry.devices <= len(state.free):
            reason = f"devices of {pool} are kept for {state.reservation.run}"
        self._waiting[entry.run] = Waiting(reason, reservation.at)
