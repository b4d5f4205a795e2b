"""Decides whether a phase has to finish with what is there, by the clock; whoever acts on it records a choice first."""

from __future__ import annotations

from dataclasses import dataclass

from flows.run.clock import Clock
from yatt_core.spec.sections.finishing import FinishSpec


@dataclass(frozen=True, slots=True)
class AttemptDeadline:
    """The deadline of one attempt at a phase.

    spec: None if the phase waits for everything.
    total: how much there is to do.
    began: the clock's monotonic seconds.
    """

    spec: FinishSpec | None
    total: int
    clock: Clock
    began: float

    @classmethod
    def start(cls, spec: FinishSpec | None, total: int, clock: Clock) -> AttemptDeadline:
        """Returns a deadline that counts from now."""
        return cls(spec, total, clock, clock.monotonic())

    @property
    def is_over(self) -> bool:
        """True once the time has passed."""
        return self.spec is not None and self.clock.monotonic() - self.began >= self.spec.seconds

    def allows(self, done: int) -> bool:
        """Returns True if the rest may be left out now: the time has passed, and enough is done."""
        return self.spec is not None and self.is_over and done >= self.spec.least(self.total)
