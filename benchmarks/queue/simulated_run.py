"""A run of the simulation: iterations, checkpoints, interruptions and replays, as the driver's own rules have them.

Consumes a `Job`; produces the times of its next commits, and a digest over the iterations that it has learned from.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.queue.workload import Job
from flows.queueing.ettr import RunTimes, best_interval
from flows.queueing.run_progress import RECENT, times_of
from yatt_core.digests import json_digest

FIRST_INTERVAL = 10
LONGEST_INTERVAL = 50
"""Iterations between checkpoints before the run's times are known, and at most."""


@dataclass(slots=True)
class Segment:
    """A stretch for which the run holds devices.

    number: distinguishes its events from those of earlier stretches.
    """

    number: int
    pool: str
    devices: tuple[int, ...]
    started_at: float
    level: int
    backfilled: bool
    stopping: bool = False
    stop_reason: str = ""
    lost_at: float | None = None
    wakes_at: float = 0.0


@dataclass(slots=True)
class SimulatedRun:
    """A run, as far as it has come.

    committed: iterations.
    kept: newest iteration with a checkpoint.
    digest: chained over the commits, so that one that is lost, repeated or out of order changes it.
    held_seconds, cost: of ended stretches.
    predicted_cost: made at a tenth of the run.
    """

    job: Job
    committed: int = 0
    kept: int = 0
    every: int = FIRST_INTERVAL
    digest: str = ""
    waited: float = 0.0
    waiting_since: float | None = None
    segment: Segment | None = None
    segments: int = 0
    committed_at: float = 0.0
    held_seconds: float = 0.0
    ended_at: float | None = None
    preempted: int = 0
    interrupted: int = 0
    first_start: float | None = None
    cost: float = 0.0
    predicted_cost: float | None = None

    @property
    def left(self) -> int:
        """Iterations that are left."""
        return len(self.job.iterations) - self.committed

    @property
    def times(self) -> RunTimes | None:
        """The run's times, from the iterations that it has committed."""
        own = self.job.times
        newest = self.job.iterations[max(0, self.committed - RECENT) : self.committed]
        return times_of(newest, own.checkpoint, own.restart, own.replay)

    def begin(self, now: float, pool: str, devices: tuple[int, ...], level: int, backfilled: bool) -> float:
        """Gives the run devices; returns the time of its next commit."""
        assert self.segment is None, self.job.run
        if self.waiting_since is not None:
            self.waited += now - self.waiting_since
        self.waiting_since = None
        self.first_start = now if self.first_start is None else self.first_start
        self.segments += 1
        self.segment = Segment(
            number=self.segments, pool=pool, devices=devices, started_at=now, level=level, backfilled=backfilled
        )
        self.committed_at = now
        own = self.job.times
        replay = (self.committed - self.kept) * own.replay
        return now + own.restart + replay + self.job.iterations[self.committed]

    def commit(self, now: float) -> float | None:
        """Commits an iteration; returns the time of the next commit, or of the end if there is none, as a checkpoint ends."""
        self.digest = json_digest([self.digest, self.job.run, self.committed, self.job.iterations[self.committed]])
        self.committed += 1
        self.committed_at = now
        segment = self.segment
        assert segment is not None
        ends = self.left == 0 or segment.stopping
        if not ends and self.committed - self.kept < self.every:
            return now + self.job.iterations[self.committed]
        self.kept = self.committed
        pause = self.job.times.checkpoint
        return None if ends else now + pause + self.job.iterations[self.committed]

    def choose_interval(self, rate: float) -> None:
        """Chooses the checkpoint interval once the run's times are known."""
        times = self.times
        if times is not None:
            self.every = best_interval(times, rate, LONGEST_INTERVAL)

    def release(self, now: float) -> Segment:
        """Takes the devices back."""
        segment = self.segment
        assert segment is not None
        self.held_seconds += now - segment.started_at
        self.segment = None
        if self.left:
            self.waiting_since = now
        else:
            self.ended_at = now
        return segment


def undisturbed_digest(job: Job) -> str:
    """Returns the digest of the run without a queue: every iteration once, in order."""
    digest = ""
    for number, seconds in enumerate(job.iterations):
        digest = json_digest([digest, job.run, number, seconds])
    return digest
