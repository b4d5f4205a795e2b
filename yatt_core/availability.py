"""Whether a dependency is away, or only some of its requests fail: state machines without I/O.

Consumes when requests were answered and when they failed. Produces what a failed request means: as long as others are
answered, it has failed for good; if none is, the dependency is away, and nothing can be said about the request. A request that is
still open counts neither way, and a dependency that is not asked is not away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


Step = Literal["wait", "see", "again", "failed", "away"]
"""What follows a failed attempt. `wait`: another one after a pause. `see`: something else is asked, to see whether anything is
answered at all. `again`: a last attempt, at once. `failed`: none, since others are answered. `away`: none, since nothing is."""


@dataclass(slots=True)
class Attempts:
    """The attempts at one request, or at several that are sent together.

    retries: number of attempts after the first before it matters whether others are answered.
    since: when the attempt before the newest had failed, or the first one was made.
    pauses: number of pauses so far, which is that of retries as long as it is not larger.
    """

    retries: int
    since: float
    pauses: int = 0
    _is_last: bool = False

    def after_failure(self, known: Availability, now: float, can_see: bool) -> Step:
        """Returns what follows an attempt that failed.

        can_see: whether something else can be asked; False once it was.
        """
        if self._is_last:
            return "failed"
        if self.pauses >= self.retries:
            if known.answers_what_was_sent_after(self.since):
                # The dependency may have come back a moment ago, just after this attempt.
                self._is_last = True
                return "again"
            if can_see:
                return "see"
            if known.is_away(now):
                return "away"
        self.since = now
        self.pauses += 1
        return "wait"
