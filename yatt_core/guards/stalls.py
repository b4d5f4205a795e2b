"""Detects phases that use up too much of their deadline, while they are still running. Pure: the time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec.sections.guards import StalledPhaseGuard

STALLED_PHASE = "stalled_phase"


@dataclass(frozen=True, slots=True)
class PhaseUnderWay:
    """An attempt at a phase.

    started: start time in seconds, by a monotonic clock.
    deadline: seconds after which the attempt fails.
    """

    iteration: int
    phase: str
    attempt: int
    started: float
    deadline: float

    def alarm(self, guard: StalledPhaseGuard, now: float) -> Alarm | None:
        """Returns the alarm if the phase has stalled by now, else None."""
        taken = now - self.started
        threshold = guard.fraction * self.deadline
        if taken <= threshold:
            return None
        text = f"{self.phase} has been running for {taken:.0f} s and will fail at {self.deadline:.0f} s"
        evidence = {
            "phase": self.phase,
            "attempt": self.attempt,
            "bound": "share",
            "observed": taken,
            "threshold": threshold,
            "deadline": self.deadline,
        }
        name = f"{STALLED_PHASE}.{self.phase}.{self.attempt}"
        return Alarm(STALLED_PHASE, name, guard.action, Finding(text, self.iteration, evidence))
