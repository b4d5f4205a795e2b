"""Whether a dependency is away, or only some of its requests fail: a state machine without I/O.

Consumes when requests were answered and when they failed. Produces what a failed request means: as long as others are
answered, it has failed for good; if none is, the dependency is away, and nothing can be said about the request. A request that is
still open counts neither way, and a dependency that is not asked is not away.
"""

from __future__ import annotations

from dataclasses import dataclass

AWAY_SECONDS = 15.0
"""Time without an answered request after which a dependency whose requests fail is away."""
LEAST_FAILURES = 2
"""Failed requests that it takes besides."""


@dataclass(slots=True)
class Availability:
    """What is known of a dependency. All times are of one monotonic clock, in seconds."""

    _answered: float | None = None
    _newest: float | None = None
    _failures: int = 0

    def answered(self, now: float, sent: float) -> None:
        """Notes a request that was answered now. sent: when it was sent."""
        self._answered = now
        self._newest = sent if self._newest is None else max(self._newest, sent)
        self._failures = 0

    def failed(self) -> None:
        """Notes a request that failed."""
        self._failures += 1

    def answers_what_was_sent_after(self, moment: float) -> bool:
        """Returns whether a request that was sent after a moment has been answered; earlier ones say nothing of later."""
        return self._newest is not None and self._newest > moment

    def is_away(self, now: float) -> bool:
        """Returns whether requests fail and none has been answered for a while."""
        silent = self._answered is None or now - self._answered >= AWAY_SECONDS
        return silent and self._failures >= LEAST_FAILURES
