"""What the owner of warm clusters knows of one of them, and what it does next. Pure; times are of one monotonic clock.

A place is free, lent to a driver, or kept for the next driver of a run whose driver was killed: its actors wait there. A place
that may have actors left, or has served many runs, is spent: another cluster takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from flows.run.lending import Ended

RUNS = 50
"""After so many runs a cluster is spent: what Ray remembers of each, and its logs, would add up."""


class Use(StrEnum):
    """What a place is for at present."""

    FREE = "free"
    LENT = "lent"
    KEPT = "kept"
    SPENT = "spent"


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster of the owner.

    run: whom it is lent to or kept for.
    grace: seconds for which it is kept after that run's driver was killed.
    until: when it is no longer kept.
    runs: how often it was lent and used.
    """

    use: Use = Use.FREE
    run: str = ""
    grace: float = 0.0
    until: float = 0.0
    runs: int = 0

    @property
    def is_of_a_run(self) -> bool:
        """True if actors of a run may be in it."""
        return self.use in (Use.LENT, Use.KEPT)

    def lent(self, run: str, grace: float) -> Place:
        """Returns the place once a driver of a run has borrowed it."""
        return replace(self, use=Use.LENT, run=run, grace=grace)

    def given_back(self, ended: Ended) -> Place:
        """Returns the place once its driver has ended."""
        match ended:
            case Ended.UNUSED:
                return Place(runs=self.runs)
            case Ended.WELL if self.runs + 1 < RUNS:
                return Place(runs=self.runs + 1)
            case _:
                return Place(use=Use.SPENT)

    def abandoned(self, now: float) -> Place:
        """Returns the place once its driver was killed."""
        return replace(self, use=Use.KEPT, until=now + self.grace)

    def at(self, now: float) -> Place:
        """Returns the place as it is at a time."""
        is_over = self.use is Use.KEPT and now >= self.until
        return Place(use=Use.SPENT) if is_over else self


def choice(places: Sequence[Place], run: str) -> int | None:
    """Returns the number of the place that a run gets; None if there is none.

    That is the one which has its actors, also if a driver that has lost its lease still uses it, or else one that is free.
    """
    own = (number for number, place in enumerate(places) if place.is_of_a_run and place.run == run)
    free = (number for number, place in enumerate(places) if place.use is Use.FREE)
    return next(own, next(free, None))
