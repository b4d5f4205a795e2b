"""Deadlines of phases: derived from a phase's own history, within the limits of the spec."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from db.ledger import Ledger
from yatt_core.spec.sections.recovery import RecoverySpec

REMEMBERED = 20
ENOUGH = 3
"""Minimum number of finished attempts before a phase's history is used."""
UNLIKE = frozenset({"start", "recover", "sft", "commit_start", "begin_ahead", "collect_ahead"})
"""Phases whose past attempts do not predict the next one, since the amount of work differs each time."""


def deadline(history: Iterable[float], spec: RecoverySpec) -> float:
    """Returns the seconds that the next attempt may take.

    history: durations of the latest finished attempts, in seconds.
    """
    seconds = list(history)
    if len(seconds) < ENOUGH:
        return spec.phase_deadline_seconds
    by_history = max(spec.deadline_floor_seconds, spec.deadline_factor * max(seconds))
    return min(spec.phase_deadline_seconds, by_history)


class PhaseDeadlines:
    """The histories of a run's phases: read from the ledger once, then updated in memory."""

    def __init__(self, ledger: Ledger, run: str, spec: RecoverySpec) -> None:
        self._ledger = ledger
        self._run = run
        self._spec = spec
        self._histories: dict[str, deque[float]] = {}

    def of(self, phase: str) -> float:
        """Returns the seconds that an attempt at the phase may take."""
        if phase in UNLIKE:
            return self._spec.phase_deadline_seconds
        return deadline(self._history(phase), self._spec)

    def took(self, phase: str, seconds: float) -> None:
        """Adds a finished attempt to the phase's history."""
        self._history(phase).append(seconds)

    def _history(self, phase: str) -> deque[float]:
        if phase not in self._histories:
            known = self._ledger.phases.history(self._run, phase, REMEMBERED)
            self._histories[phase] = deque(reversed(known), maxlen=REMEMBERED)
        return self._histories[phase]
