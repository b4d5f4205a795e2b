"""Simulates the queue event by event: arrivals, commits, ends, reclaims. The decisions are those of the real scheduler.

Consumes jobs, outages and a policy; produces an `Outcome`. Nothing depends on the machine or the clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from benchmarks.queue.simulated_run import Segment, SimulatedRun
from benchmarks.queue.workload import DAYS, Job, Outage
from flows.queueing.ettr import failure_rate
from flows.queueing.facts import NEVER, Allocation, Decision, Entry, QueueFacts, RunStart, RunStop
from flows.queueing.fair_share import Use, decayed_use
from flows.queueing.forecasts import expected_price, forecast
from flows.queueing.limits import Stretch
from flows.queueing.pools import DAY, HOUR, PoolsSpec
from flows.queueing.run_progress import RunProgress, held

Policy = Callable[[PoolsSpec, QueueFacts], Decision]
TICK_SECONDS = 60.0
FORECAST_AT = 0.1
LIMIT = 60 * DAY


@dataclass(slots=True)
class Outcome:
    """What happened.

    stretches: every stretch of devices that a run held.
    away: device-seconds of outages within the days, by pool.
    """

    runs: Mapping[str, SimulatedRun]
    stretches: list[Stretch] = field(default_factory=list)
    away_seconds: float = 0.0
    decisions: int = 0


class Simulator:
    """One simulation."""

    def __init__(self, pools: PoolsSpec, jobs: Sequence[Job], outages: Sequence[Outage], policy: Policy) -> None:
        self._pools = pools
        self._policy = policy
        self._jobs = jobs
        self._runs: dict[str, SimulatedRun] = {}
        self._order = {job.run: number for number, job in enumerate(jobs)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._away: dict[str, dict[int, float]] = {name: {} for name in pools.pools}
        self._lost: dict[str, dict[int, float]] = {name: {} for name in pools.pools}
        self._failures = dict.fromkeys(pools.pools, 0)
        self._stops: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._held = dict.fromkeys(pools.pools, 0.0)
        self._held_by: defaultdict[tuple[str, ...], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._used: dict[str, float] = {}
        self._used_at = 0.0
        self._now = 0.0
        self._changed = False
        self._next_tick = 0.0
        self.outcome = Outcome(self._runs)
        for job in jobs:
            self._at(job.at, partial(self._arrive, job))
        for outage in outages:
            self._plan_outage(outage)

    def run(self) -> Outcome:
        """Simulates until every run has ended."""
        while self._events and self._now < LIMIT:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
            if self._events and self._events[0][0] <= self._now:
                continue
            if self._changed or self._now >= self._next_tick:
                self._decide()
        return self.outcome

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._serial), happen))

    def _arrive(self, job: Job) -> None:
        self._runs[job.run] = SimulatedRun(job, waiting_since=self._now)
        self._changed = True

    # Devices that go away and come back

    def _plan_outage(self, outage: Outage) -> None:
        if outage.notice:
            self._at(outage.at, lambda: self._announce(outage))
        self._at(outage.at + outage.notice, lambda: self._lose(outage))
        self._at(outage.until, lambda: self._give_back(outage))
        end = DAYS * DAY
        away = max(0.0, min(outage.until, end) - min(outage.at + outage.notice, end))
        self.outcome.away_seconds += away * len(outage.devices)

    def _announce(self, outage: Outage) -> None:
        self._mark(outage)

    def _lose(self, outage: Outage) -> None:
        self._mark(outage)
        for run in self._on(outage):
            run.interrupted += 1
            self._failures[outage.pool] += 1
            self._release(run)

    def _give_back(self, outage: Outage) -> None:
        away = self._away[outage.pool]
        for number in outage.devices:
            if away.get(number, 0.0) <= outage.until:
                away.pop(number, None)
                self._lost[outage.pool].pop(number, None)
        self._changed = True

    def _mark(self, outage: Outage) -> None:
        away = self._away[outage.pool]
        for number in outage.devices:
            away[number] = max(away.get(number, 0.0), outage.until)
            lost = self._lost[outage.pool]
            lost[number] = min(lost.get(number, NEVER), outage.at + outage.notice)
        self._changed = True

    def _on(self, outage: Outage) -> list[SimulatedRun]:
        gone = set(outage.devices)
        return [
            run
            for run in self._runs.values()
            if run.segment is not None and run.segment.pool == outage.pool and gone.intersection(run.segment.devices)
        ]

    # Runs

    def _begin(self, start: RunStart) -> None:
        run = self._runs[start.run]
        run.choose_interval(self._rate(start.pool) * run.job.devices)
        commit_at = run.begin(self._now, start.pool, start.devices, level=start.level, backfilled=start.backfilled)
        self._expect(run, commit_at)

    def _expect(self, run: SimulatedRun, commit_at: float) -> None:
        segment = run.segment
        assert segment is not None
        segment.wakes_at = commit_at
        number = segment.number
        self._at(commit_at, lambda: self._commit(run, number))

    def _commit(self, run: SimulatedRun, number: int) -> None:
        if run.segment is None or run.segment.number != number:
            return
        following = run.commit(self._now)
        if run.predicted_cost is None and run.committed >= FORECAST_AT * len(run.job.iterations):
            self._predict(run)
        if following is None:
            self._at(self._now + run.job.times.checkpoint, lambda: self._end(run, number))
        else:
            self._expect(run, following)

    def _end(self, run: SimulatedRun, number: int) -> None:
        if run.segment is not None and run.segment.number == number:
            self._release(run)

    def _stop(self, run: SimulatedRun, within: float | None) -> None:
        """Asks a run to stop at its next commit, or within a bound in the middle of an iteration."""
        segment = run.segment
        assert segment is not None
        segment.stopping = True
        pause = run.job.times.checkpoint
        if within is not None and segment.wakes_at + pause > self._now + within >= self._now + pause:
            number = segment.number
            self._at(self._now + within, lambda: self._cut(run, number))

    def _cut(self, run: SimulatedRun, number: int) -> None:
        if run.segment is not None and run.segment.number == number:
            run.kept = run.committed  # the last checkpoint, of the newest commit
            self._release(run)

    def _release(self, run: SimulatedRun) -> None:
        job = run.job
        segment = run.release(self._now)
        devices = segment.devices
        self.outcome.stretches.append(
            Stretch(
                run=job.run,
                pool=segment.pool,
                owner=job.owner,
                project=job.project,
                devices=devices,
                started_at=segment.started_at,
                ended_at=self._now,
            )
        )
        self._count_use(
            Use(
                owner=job.owner,
                project=job.project,
                devices=len(devices),
                started_at=segment.started_at,
                ended_at=self._now,
            )
        )
        length = self._now - segment.started_at
        self._seconds[segment.pool, job.priority] += length
        self._held[segment.pool] += length * len(devices)
        self._held_by[job.pools][segment.pool] += length * len(devices)
        run.cost += length / HOUR * len(devices) * self._price(segment.pool)
        self._changed = True

    def _predict(self, run: SimulatedRun) -> None:
        outlook = self._progress(run).outlook()
        segment = run.segment
        if outlook is None or segment is None:
            return
        prices = {pool: self._price(pool) for pool in run.job.pools}
        interruptions = (outlook.failures + outlook.stops) * forecast(outlook, None).held_seconds
        cost = forecast(outlook, expected_price(prices, segment.pool, self._held_by[run.job.pools], interruptions)).cost
        assert cost is not None
        so_far = (self._now - segment.started_at) / HOUR * run.job.devices * prices[segment.pool]
        run.predicted_cost = run.cost + so_far + cost

    def _price(self, pool: str) -> float:
        price = self._pools.pools[pool].price
        return 0.0 if price is None else price.per_device_hour

    # Decisions

    def _rate(self, pool: str) -> float:
        expected = self._pools.pools[pool].failures_per_device_day
        return failure_rate(expected, self._failures[pool], self._held[pool])

    def _progress(self, run: SimulatedRun) -> RunProgress:
        pool = run.job.pools[0] if run.segment is None else run.segment.pool
        key = pool, run.job.priority
        stops = self._stops[key] / self._seconds[key] if self._seconds[key] else 0.0
        since = self._now - run.committed_at
        return RunProgress(
            times=run.times,
            left=run.left,
            every=run.every,
            devices=run.job.devices,
            since_commit=since,
            failures=self._rate(pool) * run.job.devices,
            stops=stops,
        )

    def _entry(self, run: SimulatedRun) -> Entry:
        job = run.job
        segment = run.segment
        progress = self._progress(run)
        waited = run.waited + (0.0 if run.waiting_since is None else self._now - run.waiting_since)
        return Entry(
            run=job.run,
            pools=job.pools,
            owner=job.owner,
            project=job.project,
            priority=job.priority,
            devices=job.devices,
            order=self._order[job.run],
            waited=waited,
            run_seconds=progress.run_seconds(),
            held=None if segment is None else self._held_by_segment(segment, progress),
        )

    def _held_by_segment(self, segment: Segment, progress: RunProgress) -> Allocation:
        found = held(
            pool=segment.pool,
            devices=segment.devices,
            started_at=segment.started_at,
            level=segment.level,
            progress=progress,
            now=self._now,
            stopping=segment.stopping,
            backfilled=segment.backfilled,
            within=self._pools.stop_seconds,
        )
        return replace(found, stop_reason=segment.stop_reason)

    def _decide(self) -> None:
        self._changed = False
        self._next_tick = self._now + TICK_SECONDS
        current = [run for run in self._runs.values() if run.ended_at is None]
        used = self._use_until_now(_use(run, self._now) for run in current if run.segment is not None)
        facts = QueueFacts(self._now, tuple(self._entry(run) for run in current), self._lost, used)
        decision = self._policy(self._pools, facts)
        self.outcome.decisions += 1
        for stop in decision.stops:
            self._carry_out(stop)
        for start in decision.starts:
            self._begin(start)

    def _count_use(self, use: Use) -> None:
        self._used = self._use_until_now([use])
        self._used_at = self._now

    def _use_until_now(self, more: Iterable[Use]) -> dict[str, float]:
        """Returns the decayed use of each account; that of ended stretches is kept as a sum, since sums decay alike."""
        fair = self._pools.fair_share
        factor = 2.0 ** -((self._now - self._used_at) / (fair.half_life_hours * HOUR))
        used = {account: seconds * factor for account, seconds in self._used.items()}
        for account, seconds in decayed_use(fair, more, self._now).items():
            used[account] = used.get(account, 0.0) + seconds
        return used

    def _carry_out(self, stop: RunStop) -> None:
        run = self._runs[stop.run]
        assert run.segment is not None
        if not run.segment.stopping:
            run.preempted += 1
            self._stops[run.segment.pool, run.job.priority] += 1
        run.segment.stop_reason = stop.reason
        self._stop(run, stop.within)


def _use(run: SimulatedRun, now: float) -> Use:
    segment = run.segment
    assert segment is not None
    return Use(
        owner=run.job.owner,
        project=run.job.project,
        devices=len(segment.devices),
        started_at=segment.started_at,
        ended_at=now,
    )
