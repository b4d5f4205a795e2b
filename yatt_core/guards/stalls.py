"""A phase that takes much longer than it did before: noticed while it is still under way. Pure; time is given."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec.sections.guards import StalledPhaseGuard

STALLED_PHASE = "stalled_phase"


@dataclass(frozen=True, slots=True)
class PhaseUnderWay:
    """An attempt at a phase. started: by a clock that never goes back, seconds. deadline: seconds that it may take in all."""

    iteration: int
    phase: str
    attempt: int
    started: float
    deadline: float

    def alarm(self, guard: StalledPhaseGuard, now: float) -> Alarm | None:
        """The alarm if the phase has stalled by now."""
        taken, threshold = now - self.started, guard.share * self.deadline
        if taken <= threshold:
            return None
        text = f"{self.phase} has been under way for {taken:.0f} s, and fails at {self.deadline:.0f} s"
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
