"""The queue's decision: which waiting runs start on which devices, and which running ones are asked to stop.

Consumes `PoolsSpec` and `QueueFacts`; produces a `Decision`. A pure function, the same for the scheduler and for simulations.

Runs are taken in the order of priority with age, then fair share, then submission.

- A run starts if all its devices are free at once and no limit of its owner or project is reached (gang admission).
- Otherwise runs of lower level give theirs if that is enough (pre-emption); the devices are kept for it until they have ended.
- Otherwise the run gets a reservation for the time when enough devices will be free by predicted ends, the first such run of a
  pool. Runs after it start if they end before, or if devices are left over then (backfilling). Others start on what would lie
  idle, too, but the run with the reservation may stop these as soon as that lets it start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from yatt_core.queueing.facts import NEVER, Decision, Entry, Held, QueueFacts, Start, Stop, Waiting, Wanted
from yatt_core.queueing.fair_share import account_of, order_key
from yatt_core.queueing.limits import Limits
from yatt_core.queueing.pools import HOUR, PoolsSpec
from yatt_core.queueing.reservations import PoolState, reserve
from yatt_core.queueing.victims import cheapest

MINUTE = 60.0
RECLAIMED, HELD_BACK, REMOVED = "its devices are reclaimed", "paused in the queue", "removed from the queue"


def decide(pools: PoolsSpec, facts: QueueFacts) -> Decision:
    """Returns what to do now. Entries of unknown pools wait."""
    return _Round(pools, facts).decide()


class _Round:
    """One decision in the making."""

    def __init__(self, pools: PoolsSpec, facts: QueueFacts) -> None:
        self._pools, self._facts, self._now = pools, facts, facts.now
        self._limits = Limits(pools, facts.entries)
        self._states = {
            name: PoolState.of(name, pool.numbers, facts.away.get(name, frozenset()), facts)
            for name, pool in pools.pools.items()
        }
        self._used = dict(facts.used)
        self._starts: list[Start] = []
        self._stops: dict[str, Stop] = {}
        self._waiting: dict[str, Waiting] = {}
        self._ageing = pools.ageing_hours * HOUR

    def decide(self) -> Decision:
        for stop in self._asked_to_leave():
            self._stop(stop)
        for entry in self._in_order():
            reason = self._why_blocked(entry)
            if reason is not None:
                self._waiting[entry.run] = Waiting(reason)
            elif not self._start(entry) and not self._pre_empt(entry):
                self._reserve(entry)
        return Decision(tuple(self._starts), tuple(self._stops.values()), self._waiting)

    def _asked_to_leave(self) -> Iterator[Stop]:
        """Yields stops of runs that people hold back or remove, or whose devices are away."""
        for entry in self._facts.entries:
            if entry.held is None or entry.held.stopping:
                continue
            if entry.wanted is not Wanted.RUN:
                reason = HELD_BACK if entry.wanted is Wanted.HOLD else REMOVED
                yield Stop(entry.run, reason, self._pools.stop_seconds)
            elif not self._facts.away.get(entry.pool, frozenset()).isdisjoint(entry.held.devices):
                yield Stop(entry.run, RECLAIMED, 0.0)

    def _in_order(self) -> Iterator[Entry]:
        """Yields the waiting runs; an account that just got devices falls back at once."""
        left = [entry for entry in self._facts.entries if entry.held is None and entry.wanted is Wanted.RUN]
        while left:
            entry = min(left, key=lambda each: order_key(self._pools, self._used, each))
            left.remove(entry)
            yield entry

    def _why_blocked(self, entry: Entry) -> str | None:
        if entry.pool not in self._states:
            return f"there is no pool {entry.pool}"
        if entry.not_before > self._now:
            return "waits after a failure"
        return self._limits.why_blocked(entry)

    def _start(self, entry: Entry) -> bool:
        """Starts a run if all its devices are free; returns whether it did, or the run has to wait for a backfill's sake."""
        state = self._states[entry.pool]
        if entry.devices > len(state.free):
            return False
        backfilled = False
        if state.reservation is not None and not state.reservation.admits(entry, self._now):
            if state.reservation.at - self._now < 2 * self._pools.protected_minutes * MINUTE:
                self._waiting[entry.run] = Waiting(f"devices are kept for {state.reservation.run}")
                return True
            backfilled = True
        devices = state.take(entry.devices)
        if state.reservation is not None and not backfilled:
            state.reservation = state.reservation.after(entry, self._now)
        level = entry.level(self._ageing)
        held = Held(devices, self._now, level, ends_at=self._now + entry.run_seconds, backfilled=backfilled)
        state.running.append((replace(entry, held=held), held))
        self._limits.add(entry)
        self._charge(entry)
        self._starts.append(Start(entry.run, entry.pool, devices, level, backfilled))
        return True

    def _charge(self, entry: Entry) -> None:
        account = account_of(self._pools.fair_share, entry.owner, entry.project)
        self._used[account] = self._used.get(account, 0.0) + entry.devices * HOUR

    def _pre_empt(self, entry: Entry) -> bool:
        """Makes room for a run; returns whether the devices that it needs are on their way."""
        state = self._states[entry.pool]
        if state.reservation is not None and not state.reservation.admits(entry, self._now):
            return False
        lacking = entry.devices - len(state.free)
        if lacking > state.coming:
            first = state.reservation is None
            victims = cheapest(list(self._victims(entry, state.running, first)), lacking - state.coming)
            if victims is None or self._ends_sooner(entry, state, victims):
                return False
            for victim in victims:
                self._stop(Stop(victim.run, f"pre-empted by {entry.run}", self._pools.stop_seconds))
        state.claim(entry.devices)
        self._waiting[entry.run] = Waiting("its devices are being freed")
        return True

    def _victims(
        self, entry: Entry, running: Iterable[tuple[Entry, Held]], first: bool
    ) -> Iterator[tuple[Entry, Held]]:
        level, protected = entry.level(self._ageing), self._pools.protected_minutes * MINUTE
        for other, held in running:
            lower = held.level < level or (first and held.backfilled and held.level <= level)
            if lower and other.run not in self._stops and self._now - held.started_at >= protected:
                yield other, held

    def _ends_sooner(self, entry: Entry, state: PoolState, victims: Iterable[Entry]) -> bool:
        """Returns True if enough devices will be free anyway before the victims would have stopped."""
        stopped = max(victim.held.free_at if victim.held else NEVER for victim in victims)
        return reserve(entry, state, self._now).at <= stopped

    def _stop(self, stop: Stop) -> None:
        self._stops[stop.run] = stop
        for state in self._states.values():
            state.leaving(stop.run)

    def _reserve(self, entry: Entry) -> None:
        state = self._states[entry.pool]
        reservation = reserve(entry, state, self._now)
        if state.reservation is None:
            state.reservation = reservation
        self._waiting[entry.run] = Waiting(_lack(entry, state), reservation.at)


def _lack(entry: Entry, state: PoolState) -> str:
    return f"needs {entry.devices} devices, {len(state.free)} of {state.present} are free"
