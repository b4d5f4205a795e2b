"""Chooses the kills of a proof and draws their moments. Starts no process and reads no ledger."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

COLLECT = "collect"
LEARN = "learn"
WARM_ITERATIONS = 2
"""No kill falls into the first iterations, since the duration of a phase is not known yet."""
ITERATIONS_PER_KILL = 10
"""Room for a second draw in case a phase ends before its moment comes."""


class Scope(StrEnum):
    """What a kill ends."""

    DRIVER = "the driver alone"
    EVERYTHING = "every process of the run"


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned kill in a phase of an iteration in the range first..last."""

    phase: str
    scope: Scope
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of a kill. fraction: how far into the phase, relative to its usual duration."""

    iteration: int
    fraction: float


@dataclass(frozen=True, slots=True)
class Killed:
    """A completed kill.

    phase, iteration: where the driver was drawn to die.
    attempt: the number of the attempt at that phase.
    hit: the ledger shows that attempt as dispatched and not ended, although the driver is dead.
    fraction, usual_seconds: the drawn moment, and the median duration of the phase before it.
    seconds_in: from the dispatch of the attempt to the kill.
    processes: the number of killed processes.
    """

    phase: str
    scope: Scope
    iteration: int
    attempt: int
    hit: bool
    fraction: float
    usual_seconds: float
    seconds_in: float
    processes: int

    def __str__(self) -> str:
        place = f"{self.phase} of iteration {self.iteration}"
        return f"{place}, {1000 * self.seconds_in:.0f} ms in ({self.scope})"


def fewest_iterations(kills: int) -> int:
    """Returns the number of iterations that a run needs for this many kills."""
    return WARM_ITERATIONS + ITERATIONS_PER_KILL * kills


def plan_kills(kills: int, iterations: int) -> list[Kill]:
    """Plans the kills in order: phases alternate, and four kills cover every phase with every scope.

    Each kill has a separate range of iterations, and the last tenth of the run is left for repeated draws.
    """
    usable = iterations - iterations // 10 - WARM_ITERATIONS
    plan = []
    for number in range(kills):
        first = WARM_ITERATIONS + 1 + usable * number // kills
        last = WARM_ITERATIONS + usable * (number + 1) // kills
        scope = Scope.EVERYTHING if (number + number // 2) % 2 else Scope.DRIVER
        plan.append(Kill(LEARN if number % 2 else COLLECT, scope, first, last))
    return plan


def draw_moment(source: random.Random, kill: Kill, committed: int, iterations: int) -> Moment | None:
    """Draws an iteration and a moment in its phase.

    committed: the run's last iteration; the next one may have begun already.

    Once the kill's own range is over, draws from all iterations up to the run's last one. Returns None if none is left.
    """
    first = max(kill.first, committed + 2)
    last = kill.last if first <= kill.last else iterations
    if first > last:
        return None
    return Moment(source.randint(first, last), source.random())
