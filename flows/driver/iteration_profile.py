"""Records where the time of each iteration goes, in the driver and in its actors.

Consumes the driver's own account and those that the actors report at the commit; produces a telemetry file for each
committed iteration (`flows.run.profile_record`). An iteration begins where the one before was closed. What happens
before the actors are ready, or in an attempt that failed, belongs to none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flows.run.profile_merging import merged
from flows.run.profile_record import BETWEEN, DRIVER, PHASES, ProfilePart, ProfileRecord, write_profile
from yatt_core.actors.call_kinds import phase_of_call
from yatt_core.actors.use_meter import ProcessUse
from yatt_core.spent_time import SpentTime, TimeAccount

COMMIT = {"commit_start": "commit"}
"""Phases that are shown under another one's name."""


class IterationProfile:
    """The profile of the iteration in progress.

    clock: returns seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = TimeAccount(clock)
        self._began = clock()
        self._heard: dict[str, tuple[SpentTime, ...]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Counts the time of this thread."""
        with self._times.work(BETWEEN):
            yield

    def hear(self, used: Mapping[str, ProcessUse]) -> None:
        """Takes what the actors have spent, by their names."""
        for name, use in used.items():
            self._heard[name] = (*self._heard.get(name, ()), *use.spent)

    def discard(self) -> None:
        """Begins anew; nothing that was spent until now belongs to an iteration."""
        self._times.take()
        self._heard.clear()
        self._began = self._clock()

    def close(self, run_folder: Path, branch: int, iteration: int) -> None:
        """Writes the record of a committed iteration and begins the next one."""
        now = self._clock()
        processes = {DRIVER: tuple(_driver_part(each) for each in self._times.take())}
        for name, spent in sorted(self._heard.items()):
            processes[name] = tuple(part for each in spent if (part := _actor_part(each, iteration)) is not None)
        record = merged(ProfileRecord(now - self._began, processes))
        self._heard.clear()
        self._began = now
        write_profile(run_folder, branch, iteration, record)


def _driver_part(spent: SpentTime) -> ProfilePart:
    """Returns a part of the driver's work, whose path begins with `BETWEEN` and its phase, if it has one."""
    inner = spent.path[1:]
    name = COMMIT.get(inner[0], inner[0]) if inner else BETWEEN
    if name in PHASES:
        return ProfilePart(phase=name, path=inner[1:], kind=spent.kind, seconds=spent.seconds, calls=spent.calls)
    return ProfilePart(phase=BETWEEN, path=inner, kind=spent.kind, seconds=spent.seconds, calls=spent.calls)


def _actor_part(spent: SpentTime, iteration: int) -> ProfilePart | None:
    """Returns a part of an actor's work; None if it belongs to no iteration, such as loading a model."""
    phase = phase_of_call(spent.path, iteration)
    return (
        None
        if phase is None
        else ProfilePart(phase=phase, path=spent.path, kind=spent.kind, seconds=spent.seconds, calls=spent.calls)
    )
