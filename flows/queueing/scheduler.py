"""The scheduler: reads the queue, watches the drivers of its runs, decides, and acts, round after round.

Consumes the ledger, the pools file, and something that starts drivers. Produces allocations of devices in the ledger, drivers,
and requests to stop. It may be killed at any line: drivers are processes of their own, and every fact is in the ledger, where
the next scheduler finds it. Its writes carry the term of its lease.
"""

from __future__ import annotations

import logging
from typing import Protocol

from db.core.engine import Fence
from db.core.errors import LeaseHeld
from db.core.holder import is_gone, this_process
from db.core.queue_rows import AllocationRow, EntryRow, QueueRows
from db.core.subjects import QUEUE, subject_of
from db.ledger import Ledger
from db.write.queueing import AUTO, PARKED, REMOVE, REMOVED
from db.write.scheduling import Grant
from flows.branching.branches import revise
from flows.queueing.decisions import RECLAIMED, decide
from flows.queueing.driver_signs import COMPLETED, STOPPED, DriverSigns, Keep, Release, StartDriver, judge, not_started
from flows.queueing.ettr import best_interval
from flows.queueing.facts import RunStart, RunStop
from flows.queueing.ledger_facts import HALF_LIVES, QueueHistory, cost_of, facts_of, progress_of
from flows.queueing.pools import HOUR, PoolsSpec
from flows.queueing.pools_file import read_pools
from flows.queueing.predictions import predicted
from flows.queueing.run_progress import RunProgress
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.lease import DRIVER
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.logs import redact

log = logging.getLogger("yatt.queue")
SCHEDULER = "yatt scheduler"
LIFE_SECONDS = 15.0
LONGEST_INTERVAL = 100


class Drivers(Protocol):
    """Starts drivers as processes of their own, and sees whether they are alive."""

    def start(self, run: str, gpus: tuple[int, ...] | None, until: int | None) -> tuple[int, int]:
        """Starts a driver of a run; returns its pid, and a number that tells it from later processes with this pid.

        gpus: those that it may use; None if the pool's devices are not GPUs.
        until: the iteration after which it stops; None: the run's target.

        Raises `InfrastructureError` if the system refuses.
        """
        ...

    def is_alive(self, pid: int, process_start: int) -> bool:
        """Returns True if the process still runs."""
        ...


class Scheduler:
    """One holder of the scheduler's lease.

    undeclared: the pools of a home without a pools file; if there are none, its absence is an error.
    """

    def __init__(self, home: Home, ledger: Ledger, drivers: Drivers, undeclared: PoolsSpec | None = None) -> None:
        self._home = home
        self._ledger = ledger
        self._drivers = drivers
        self._undeclared = undeclared
        self._fence: Fence | None = None

    def lead(self) -> None:
        """Takes the scheduler's lease. Raises `LeaseHeld`."""
        self._fence = self._ledger.leases.take(subject_of(QUEUE), this_process(SCHEDULER), LIFE_SECONDS)

    def resign(self) -> None:
        """Releases the lease. Raises `Fenced`."""
        if self._fence is not None:
            self._ledger.leases.release(self._fence)

    def round(self) -> None:
        """Watches, decides and acts once.

        Raises `Fenced` if another scheduler has taken over, `ConfigurationError` for a bad pools file, `LedgerError`.
        """
        assert self._fence is not None, "lead first"
        self._ledger.leases.renew(self._fence, LIFE_SECONDS)
        pools = read_pools(self._home, self._undeclared)
        _Round(home=self._home, ledger=self._ledger, drivers=self._drivers, fence=self._fence, pools=pools).run()


class _Round:
    """One round."""

    def __init__(self, home: Home, ledger: Ledger, drivers: Drivers, fence: Fence, pools: PoolsSpec) -> None:
        self._home = home
        self._ledger = ledger
        self._drivers = drivers
        self._fence = fence
        self._pools = pools
        self._scheduling = ledger.scheduling

    def run(self) -> None:
        rows = self._ledger.queue.rows()
        entries = {entry.run: entry for entry in rows.open}
        for held in rows.held:
            self._watch(entries[held.run], held, rows)
        for entry in rows.open:
            if entry.not_before == PARKED:
                self._watch_parked(entry)
            elif entry.wanted == REMOVE and entry.state == "waiting":
                self._scheduling.end(self._fence, entry.run, REMOVED)
        self._decide()

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self, entry: EntryRow, held: AllocationRow, rows: QueueRows) -> None:
        verdict = judge(entry, held, self._signs(held, rows))
        match verdict:
            case Keep(ask_again=True):
                self._scheduling.ask_again(self._fence, held, self._time_to_stop(held, rows))
            case StartDriver():
                self._start_driver(entry, held)
            case Release():
                self._release(held, verdict)

    def _watch_parked(self, entry: EntryRow) -> None:
        """Decides about a run whose driver waited without devices: once it has ended, it may be started again."""
        run = self._ledger.runs.find(entry.run)
        if self._is_driven(entry.run):
            if entry.wanted == REMOVE and run.desired_state == "run":
                self._ledger.runs.ask_to_stop(entry.run, REMOVED)
        elif entry.wanted == REMOVE:
            self._scheduling.end(self._fence, entry.run, REMOVED)
        elif run.state in ("paused", "failed"):
            self._scheduling.end(self._fence, entry.run, f"{run.state}: {run.state_reason}")
        elif run.desired_state == "stop":
            self._scheduling.end(self._fence, entry.run, STOPPED)
        else:
            self._scheduling.unpark(self._fence, entry.run)

    def _is_driven(self, run: str) -> bool:
        holder = self._ledger.leases.holders().get(run)
        if holder is None or not holder.text.startswith(DRIVER) or is_gone(holder):
            return False
        return self._ledger.overview.line(run).lease_expires_in > 0

    def _time_to_stop(self, held: AllocationRow, rows: QueueRows) -> float | None:
        """Returns the seconds in which a run that was asked to stop must end; None: at its next commit."""
        away = [row.lost_at for row in rows.outages if row.pool == held.pool and row.device in held.numbers]
        if held.stop_reason == RECLAIMED and away:
            return max(0.0, (min(away) - rows.now) / 1000)
        return self._pools.stop_seconds

    def _release(self, held: AllocationRow, verdict: Release) -> None:
        rows = self._ledger.queue.allocations(runs=[held.run])
        self._scheduling.release(
            self._fence,
            held,
            verdict.outcome,
            ends=verdict.ends,
            failures=verdict.failures,
            pause_seconds=verdict.pause_seconds,
            parks=verdict.parks,
            cost=(lambda now: cost_of(rows, now)) if verdict.outcome == COMPLETED else None,
        )
        log.info("%s: gives back devices %s of %s: %s", held.run, held.devices, held.pool, verdict.outcome)

    def _signs(self, held: AllocationRow, rows: QueueRows) -> DriverSigns:
        run = self._ledger.runs.find(held.run)
        wait = self._ledger.waits.of([held.run]).get(held.run)
        newest = [row for row in self._ledger.overview.sessions(held.run, 1) if row.term > held.lease_term]
        fresh = bool(newest) and newest[0].term > held.start_term
        lost = {(each.pool, each.device) for each in rows.outages if each.lost_at <= rows.now}
        started = held.pid is not None and held.process_start is not None
        return DriverSigns(
            driven=self._is_driven(held.run),
            starting=started and self._drivers.is_alive(held.pid or 0, held.process_start or 0),
            session=newest[0].outcome if newest else None,
            has_session=bool(newest),
            state=run.state,
            reason=run.state_reason,
            desired=run.desired_state,
            lost=self._ledger.leases.lost_in_a_row(held.run, DRIVER, held.started_at),
            starts=0 if fresh else held.starts,
            gone=any((held.pool, number) in lost for number in held.numbers),
            returned="" if wait is None or wait.returned_at is None else wait.dependency,
        )

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        rows = self._ledger.queue.rows()
        since = rows.now - round(HALF_LIVES * self._pools.fair_share.half_life_hours * HOUR * 1000)
        history = QueueHistory(self._pools, self._ledger.queue.allocations(since), rows.now)
        held = {row.run: row for row in rows.held}
        progress = {
            entry.run: progress_of(
                ledger=self._ledger, history=history, entry=entry, held=held.get(entry.run), now=rows.now
            )
            for entry in rows.open
        }
        entries = {entry.run: entry for entry in rows.open}
        for run, allocation in held.items():
            self._predict(entries[run], allocation, progress[run], history)
        decision = decide(self._pools, facts_of(self._pools, rows, history, progress))
        for stop in decision.stops:
            self._stop(held[stop.run], stop)
        for start in decision.starts:
            self._start(entries[start.run], start, progress[start.run])
        reasons = {run: waiting.reason for run, waiting in decision.waiting.items()}
        changed = {run: reason for run, reason in reasons.items() if entries[run].reason != reason}
        if changed:
            self._scheduling.note_reasons(self._fence, changed)

    def _predict(self, entry: EntryRow, held: AllocationRow, progress: RunProgress, history: QueueHistory) -> None:
        row = predicted(
            ledger=self._ledger, pools=self._pools, entry=entry, held=held, progress=progress, history=history
        )
        if row is not None:
            self._scheduling.note_forecast(self._fence, row)

    def _stop(self, held: AllocationRow, stop: RunStop) -> None:
        self._scheduling.note_stop(self._fence, held, stop.reason, stop.within)
        log.info("%s: asked to stop: %s", held.run, stop.reason)

    def _start(self, entry: EntryRow, start: RunStart, progress: RunProgress) -> None:
        if entry.checkpoints == AUTO:
            self._choose_interval(entry.run, progress)
        pool = self._pools.pools[start.pool]
        price = pool.price
        grant = Grant(
            run=start.run,
            pool=start.pool,
            devices=start.devices,
            level=start.level,
            backfilled=start.backfilled,
            gpus=pool.gpus is not None,
            price=None if price is None else price.per_device_hour,
            currency=None if price is None else price.currency,
        )
        term = self._ledger.overview.line(start.run).term
        held = self._scheduling.allocate(self._fence, grant, term)
        log.info("%s: gets devices %s of %s", held.run, held.devices, held.pool)
        self._start_driver(entry, held)

    def _start_driver(self, entry: EntryRow, held: AllocationRow) -> None:
        """Starts a driver; if the system refuses, that keeps no other run from being served."""
        newest = self._ledger.overview.sessions(held.run, 1)
        try:
            pid, process_start = self._drivers.start(held.run, held.numbers if held.gpus else None, entry.until)
        except InfrastructureError as error:
            log.warning("%s: %s", held.run, redact(str(error)))
            self._release(held, not_started(entry))
            return
        self._scheduling.note_driver(
            fence=self._fence,
            held=held,
            pid=pid,
            process_start=process_start,
            session_term=newest[0].term if newest else 0,
        )

    def _choose_interval(self, run: str, progress: RunProgress) -> None:
        """Makes the interval of checkpoints that the model finds best a revision of the run's spec."""
        if progress.times is None:
            return
        best = best_interval(progress.times, progress.failures, LONGEST_INTERVAL)
        try:
            if best == current_spec(self._ledger, run).checkpoints.every:
                return
            revise(self._home, run, [f"checkpoints.every={best}"])
        except (YattError, LeaseHeld) as error:
            log.warning("%s: keeps its checkpoint interval: %s", run, redact(str(error)))
