"""What the scheduler decides about: runs in the queue, the devices that they hold, and devices that are away.

Pure values. Times are seconds since an arbitrary origin, the same in the ledger and in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

NEVER = float("inf")


class QueueIntent(StrEnum):
    """What people want of a run in the queue."""

    RUN = "run"
    HOLD = "hold"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that a run holds.

    devices: their numbers in the pool.
    level: the run's priority with its age at the start, which decides who may preempt it.
    stopping: True once the run was asked to stop.
    stop_reason: why it was asked; empty if it was not.
    gpus: True if the devices are GPUs, whose numbers mean the same in all pools.
    ends_at: predicted end of the run; `NEVER` if unknown.
    free_at: predicted end of the allocation if the run was asked to stop now.
    lost_seconds: work that a stop now would waste, with the next start.
    backfilled: True if it started although another run has a reservation, which may stop it.
    """

    pool: str
    devices: tuple[int, ...]
    started_at: float
    level: int
    stopping: bool = False
    ends_at: float = NEVER
    free_at: float = 0.0
    lost_seconds: float = 0.0
    backfilled: bool = False
    stop_reason: str = ""
    gpus: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the queue.

    pools: those from which it takes its devices, the preferred one first; all of its devices are of one pool.
    devices: how many it needs, all at once.
    waited: seconds that it has waited for devices so far, in all.
    order: position by submission; unique.
    run_seconds: predicted time from a start to the run's end; `NEVER` if unknown.
    not_before: time before which it is not started, after a failure; `NEVER` while its driver waits without devices.
    """

    run: str
    pools: tuple[str, ...]
    owner: str
    project: str
    priority: int
    devices: int
    order: int
    waited: float = 0.0
    run_seconds: float = NEVER
    not_before: float = 0.0
    wanted: QueueIntent = QueueIntent.RUN
    held: Allocation | None = None

    def level(self, ageing_seconds: float) -> int:
        """Returns the priority with the run's age: one more for each `ageing_seconds` of waiting."""
        return self.priority + int(self.waited // ageing_seconds)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The queue at a moment.

    entries: runs that have not ended.
    away: devices that are reclaimed or broken, by pool and number, with the time at which they are or were lost.
    used: device-seconds that each account has used, decayed to now.
    """

    now: float
    entries: tuple[Entry, ...]
    away: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)

    def lost_at(self, held: Allocation) -> float | None:
        """Returns when the first of a run's devices is lost; None if none is away."""
        away = self.away.get(held.pool, {})
        return min((away[number] for number in held.devices if number in away), default=None)


@dataclass(frozen=True, slots=True)
class RunStart:
    """Start a run on devices, which are all free.

    backfilled: True if it may delay a run that has a reservation, which may stop it.
    """

    run: str
    pool: str
    devices: tuple[int, ...]
    level: int
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class RunStop:
    """Ask a run to stop.

    reason: for people.
    within: seconds in which it must end; None: at its next commit.
    """

    run: str
    reason: str
    within: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a run waits, and until when at the latest by what is known; `NEVER` if nothing is."""

    reason: str
    until: float = NEVER


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and why each of the other runs waits."""

    starts: tuple[RunStart, ...]
    stops: tuple[RunStop, ...]
    waiting: Mapping[str, Waiting]
