"""What becomes of devices that a run holds, by the signs of its driver: a state machine without any I/O.

Consumes `DriverSigns`; produces a `Verdict`. A dead scheduler's successor reads the same signs and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from db.core.queue_rows import AllocationRow, EntryRow
from db.write.lease import ENDED
from db.write.queueing import HOLD, REMOVE
from flows.queueing.decisions import RECLAIMED

COMPLETED = "completed"
STOPPED = "stopped"
LOST = "driver lost"
NOT_STARTED = "its driver did not start"
HELD_BACK = "held"
REMOVED = "removed"
PREEMPTED = "preempted"
BROKEN = "reclaimed"
START_TRIES = 3
LOST_TRIES = 20
"""Starts in a row that came to nothing, and drivers in a row that were lost, after which a run leaves the queue."""
FIRST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DriverSigns:
    """What the scheduler knows about a run's driver.

    driven: a live driver holds the run's lease.
    starting: the process that the scheduler started is alive.
    session: outcome of the newest session since the devices were given; None if there is none, or it has not ended.
    has_session: whether there is one.
    state, desired: the run's state, and the one that people or the scheduler want.
    lost: consecutive drivers that ended without recording it.
    starts: drivers started since the newest session; none of them lived to open its own.
    gone: whether devices of the allocation have since been lost.
    returned: what a driver that has given its devices back is waiting for; empty if it holds them.
    """

    driven: bool
    starting: bool
    session: str | None
    has_session: bool
    state: str
    reason: str
    desired: str
    lost: int = 0
    starts: int = 0
    gone: bool = False
    returned: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave the devices with the run.

    ask_again: the driver has not got the request to stop that was made before it had the lease.
    """

    ask_again: bool = False


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start a driver, or another one, on the same devices."""


@dataclass(frozen=True, slots=True)
class Release:
    """Take the devices back; see `Scheduling.release`."""

    outcome: str
    ends: bool = False
    failures: int = 0
    pause_seconds: float = 0.0
    parks: bool = False


Verdict = Keep | StartDriver | Release


def judge(entry: EntryRow, held: AllocationRow, signs: DriverSigns) -> Verdict:
    """Returns what becomes of the devices."""
    if signs.driven and signs.returned and held.stop_asked_at is None:
        return Release(f"waits for {signs.returned}", parks=True)
    if signs.driven or signs.starting:
        return Keep(ask_again=signs.driven and held.stop_asked_at is not None and signs.desired == "run")
    if signs.state == COMPLETED and signs.has_session:
        return Release(COMPLETED, ends=True)
    if not signs.has_session:
        return _not_begun(entry, held)
    if signs.session == ENDED:
        return _ended(entry, held, signs)
    if signs.gone:
        return Release(BROKEN)
    if entry.wanted == REMOVE:
        return Release(REMOVED, ends=True)
    if signs.lost >= LOST_TRIES:
        return Release(f"{LOST} {signs.lost} times in a row", ends=True)
    if signs.starts >= START_TRIES:
        return not_started(entry)
    # Its actors may still hold the devices: a driver on the same ones takes them over, and stops in order if it has to.
    return StartDriver()


def _not_begun(entry: EntryRow, held: AllocationRow) -> Verdict:
    if held.stop_asked_at is not None or entry.wanted != "run":
        return _given_back(entry, held)
    if held.pid is None:
        return StartDriver()  # the scheduler died between giving the devices and starting the driver
    return not_started(entry)


def not_started(entry: EntryRow) -> Release:
    """Returns what becomes of the devices of a run whose driver came to nothing: it tries again later, or leaves."""
    failures = entry.failures + 1
    if failures >= START_TRIES:
        return Release(NOT_STARTED, ends=True, failures=failures)
    return Release(NOT_STARTED, failures=failures, pause_seconds=FIRST_PAUSE_SECONDS * 2**entry.failures)


def _ended(entry: EntryRow, held: AllocationRow, signs: DriverSigns) -> Verdict:
    if signs.state in ("paused", "failed"):
        return Release(f"{signs.state}: {signs.reason}" if signs.reason else signs.state, ends=True)
    if held.stop_asked_at is not None or entry.wanted != "run":
        return _given_back(entry, held)
    return Release(STOPPED, ends=True)  # by people, with `yatt stop`, or after the iteration that it was submitted for


def _given_back(entry: EntryRow, held: AllocationRow) -> Release:
    if entry.wanted == REMOVE:
        return Release(REMOVED, ends=True)
    if entry.wanted == HOLD:
        return Release(HELD_BACK)
    return Release(BROKEN if held.stop_reason == RECLAIMED else PREEMPTED)
