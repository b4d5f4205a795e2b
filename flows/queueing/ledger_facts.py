"""Reads the facts of a decision from the ledger: the queue's rows, and the times of the runs in it.

Consumes the ledger; produces `QueueFacts` in seconds, and the `RunProgress` of each run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median

from db.core.queue_rows import AllocationRow, EntryRow, QueueRows
from db.ledger import Ledger
from db.read.overview import DriverSessionRow
from db.write.queueing import PARKED
from flows.queueing import run_progress
from flows.queueing.driver_signs import BROKEN, PREEMPTED
from flows.queueing.ettr import failure_rate
from flows.queueing.facts import NEVER, Allocation, Entry, QueueFacts, QueueIntent
from flows.queueing.fair_share import Use, decayed_use
from flows.queueing.pools import HOUR, PoolsSpec
from flows.queueing.run_progress import RunProgress

HALF_LIVES = 10
"""Use that is older is forgotten."""
ITERATION = "seconds/iteration"
STARTS = 5
"""Newest starts of a run whose median is its restart time."""
DEFAULT_RESTART_SECONDS = 60.0


def cost_of(rows: Iterable[AllocationRow], now: int) -> float | None:
    """Returns what a run's allocations have cost until now (milliseconds).

    None if one has no price, or their currencies differ.
    """
    total = 0.0
    currency = None
    for row in rows:
        if row.price is None or currency not in (None, row.currency):
            return None
        currency = row.currency
        seconds = ((now if row.ended_at is None else row.ended_at) - row.started_at) / 1000
        total += seconds / HOUR * len(row.numbers) * row.price
    return total


@dataclass(frozen=True)
class QueueHistory:
    """What the pools' allocations say about interruptions."""

    pools: PoolsSpec
    rows: Sequence[AllocationRow]
    now: int

    @cached_property
    def device_seconds(self) -> dict[str, float]:
        """Device-seconds that runs have held, by pool."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            found[row.pool] += self._seconds(row) * len(row.numbers)
        return dict(found)

    def device_seconds_of(self, pools: str) -> dict[str, float]:
        """Returns device-seconds that runs which could use these pools have held in each of them."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows:
            if row.pools == pools:
                found[row.pool] += self._seconds(row) * len(row.numbers)
        return dict(found)

    @cached_property
    def _failures(self) -> Counter[str]:
        return Counter(row.pool for row in self.rows if row.outcome == BROKEN)

    @cached_property
    def _stops(self) -> Counter[tuple[str, int]]:
        return Counter((row.pool, row.priority) for row in self.rows if row.outcome == PREEMPTED)

    @cached_property
    def _held(self) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = defaultdict(float)
        for row in self.rows:
            found[row.pool, row.priority] += self._seconds(row)
        return dict(found)

    def failure_rate(self, pool: str) -> float:
        """Returns unforeseen interruptions of a device of a pool in a second."""
        spec = self.pools.pools.get(pool)
        expected = 0.0 if spec is None else spec.failures_per_device_day
        return failure_rate(expected, self._failures[pool], self.device_seconds.get(pool, 0.0))

    def stop_rate(self, pool: str, priority: int) -> float:
        """Returns preemptions of a run of a priority in a second that it holds devices."""
        held = self._held.get((pool, priority), 0.0)
        return self._stops[pool, priority] / held if held else 0.0

    @cached_property
    def wait(self) -> float:
        """Mean seconds between an allocation that was interrupted and the run's next one."""
        gaps = [
            (after.started_at - before.ended_at) / 1000
            for own in _by_run(self.rows).values()
            for before, after in pairwise(own)
            if before.ended_at is not None and before.outcome in (BROKEN, PREEMPTED)
        ]
        return fmean(gaps) if gaps else 0.0

    def uses(self) -> list[Use]:
        """Returns the allocations as use of shares."""
        return [
            Use(
                owner=row.owner,
                project=row.project,
                devices=len(row.numbers),
                started_at=row.started_at / 1000,
                ended_at=(row.ended_at or self.now) / 1000,
            )
            for row in self.rows
        ]

    def _seconds(self, row: AllocationRow) -> float:
        return ((self.now if row.ended_at is None else row.ended_at) - row.started_at) / 1000


def progress_of(
    ledger: Ledger, history: QueueHistory, entry: EntryRow, held: AllocationRow | None, now: int
) -> RunProgress:
    """Returns where a run stands."""
    run = ledger.runs.find(entry.run)
    iterations = [seconds for _, seconds in ledger.metrics.newest(entry.run, ITERATION, run_progress.RECENT)]
    checkpoint, learn = (ledger.phases.history(entry.run, phase) for phase in ("checkpoint", "learn"))
    restarts = _restarts(ledger, [row for row in history.rows if row.run == entry.run])
    times = run_progress.times_of(
        iterations,
        median(checkpoint or [0.0]),
        median(restarts[-STARTS:] or [DEFAULT_RESTART_SECONDS]),
        median(learn or [0.0]),
    )
    pool = entry.pools.split(",")[0] if held is None else held.pool
    since = now if held is None else max(held.started_at, run.committed_at or 0)
    target = run.target_iterations if entry.until is None else min(entry.until, run.target_iterations)
    return RunProgress(
        times=times,
        left=max(0, target - max(run.iteration, 0)),
        every=int(ledger.runs.revision(entry.run).spec["checkpoints"]["every"]),
        devices=entry.devices,
        since_commit=(now - since) / 1000,
        failures=history.failure_rate(pool) * entry.devices,
        stops=history.stop_rate(pool, entry.priority),
        wait=history.wait,
    )


def _by_run(rows: Sequence[AllocationRow]) -> dict[str, list[AllocationRow]]:
    found: dict[str, list[AllocationRow]] = defaultdict(list)
    for row in rows:
        found[row.run].append(row)
    return found


def _restarts(ledger: Ledger, rows: Sequence[AllocationRow]) -> list[float]:
    """Returns, for each of a run's allocations with a session, the seconds from its start to the beginning of the session."""
    if not rows:
        return []
    sessions = ledger.overview.sessions(rows[0].run)
    begun = [next((each for each in sessions if _began_in(each, row)), None) for row in rows]
    pairs = zip(rows, begun, strict=True)
    return [(first.started_at - row.started_at) / 1000 for row, first in pairs if first is not None]


def _began_in(session: DriverSessionRow, row: AllocationRow) -> bool:
    return session.term > row.lease_term and (row.ended_at is None or session.started_at <= row.ended_at)


def facts_of(pools: PoolsSpec, rows: QueueRows, history: QueueHistory, progress: dict[str, RunProgress]) -> QueueFacts:
    """Returns the facts of a decision."""
    held = {row.run: row for row in rows.held}
    away: dict[str, dict[int, float]] = defaultdict(dict)
    for outage in rows.outages:
        away[outage.pool][outage.device] = outage.lost_at / 1000
    now = rows.now / 1000
    used = decayed_use(pools.fair_share, history.uses(), now)
    entries = tuple(
        _entry(pools=pools, row=row, allocation=held.get(row.run), progress=progress[row.run], now=rows.now)
        for row in rows.open
    )
    return QueueFacts(now, entries, dict(away), used)


def _entry(pools: PoolsSpec, row: EntryRow, allocation: AllocationRow | None, progress: RunProgress, now: int) -> Entry:
    return Entry(
        run=row.run,
        pools=tuple(row.pools.split(",")),
        owner=row.owner,
        project=row.project,
        priority=row.priority,
        devices=row.devices,
        order=row.seq,
        waited=row.waited(now),
        run_seconds=progress.run_seconds(),
        not_before=_not_before(row.not_before),
        wanted=QueueIntent(row.wanted),
        held=None if allocation is None else _held(pools, allocation, progress, now),
    )


def _not_before(at: int | None) -> float:
    if at is None:
        return 0.0
    return NEVER if at == PARKED else at / 1000


def _held(pools: PoolsSpec, row: AllocationRow, progress: RunProgress, now: int) -> Allocation:
    found = run_progress.held(
        pool=row.pool,
        devices=row.numbers,
        started_at=row.started_at / 1000,
        level=row.level,
        progress=progress,
        now=now / 1000,
        stopping=row.stop_asked_at is not None,
        backfilled=row.backfilled,
        within=pools.stop_seconds,
    )
    return replace(found, stop_reason=row.stop_reason or "", gpus=row.gpus)
