"""What is known of an endpoint: its circuit, how long it asks to be left alone, and what its limits leave: a state machine.

Consumes requests, answers, failures and limits. Produces waits, in seconds. It reads no clock and no file: times are given as
seconds since 1970, so that processes and hosts can share a state.

The limits are token buckets, kept as the time at which each would be full again (the generic cell rate algorithm). A request
takes what it needs at once and waits until it is covered, so that those which wait follow each other, and nobody polls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from yatt_core.outage import pause_before

FAILURES_THAT_OPEN = 5
"""Failed requests in a row after which an endpoint's circuit is open."""
BURST_SECONDS = 6.0
"""What a bucket holds: the requests or tokens of so many seconds, or a single request that is larger than that."""
LONGEST_HOLD_SECONDS = 3600.0
"""An endpoint that asks to be left alone for longer is asked again after this time."""
CLOCK_SECONDS = 60.0
"""A clock that has been set back by more than this is noticed."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits of a part; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def any(self) -> bool:
        """True if there is a limit."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


@dataclass(slots=True)
class EndpointState:
    """The state of one endpoint.

    failures: requests that failed since the last answer.
    openings: how often the circuit has opened since then.
    probe_at: when a request may go to it although its circuit is open.
    held_until: until when the endpoint asks to be left alone.
    requests_full_at, tokens_full_at: when the buckets would be full again.
    changed_at: when the state changed.
    """

    failures: int = 0
    openings: int = 0
    probe_at: float = 0.0
    held_until: float = 0.0
    requests_full_at: float = 0.0
    tokens_full_at: float = 0.0
    changed_at: float = 0.0

    @property
    def is_open(self) -> bool:
        """True if requests should go elsewhere."""
        return self.failures >= FAILURES_THAT_OPEN

    def may_probe(self, now: float) -> bool:
        """Returns whether one request should see whether the endpoint is back."""
        return self.is_open and now >= self.probe_at

    def take_probe(self, now: float, seconds: float) -> bool:
        """Returns whether the caller's request is the one that sees whether the endpoint is back; keeps others from it.

        seconds: how long the request may take.
        """
        is_due = self.may_probe(now)
        if is_due:
            self.probe_at = now + seconds
        return is_due

    def note_answer(self) -> None:
        """Closes the circuit."""
        self.failures = 0
        self.openings = 0
        self.probe_at = 0.0

    def note_failure(self, now: float, was_probe: bool, chance: float) -> None:
        """Counts a failure; opens the circuit, or opens it again for longer after a probe.

        chance: a number in [0, 1) for the jitter.
        """
        self.failures += 1
        if self.failures == FAILURES_THAT_OPEN or (was_probe and self.is_open):
            self.probe_at = now + pause_before(self.openings, chance)
            self.openings += 1

    def hold(self, until: float, now: float) -> None:
        """Notes that the endpoint asks to be left alone until a time."""
        self.held_until = max(self.held_until, min(until, now + LONGEST_HOLD_SECONDS))

    def held_seconds(self, now: float) -> float:
        """Returns how much longer the endpoint asks to be left alone."""
        return max(0.0, self.held_until - now)

    def wait(self, rates: RateLimits, tokens: int, now: float) -> float:
        """Returns how long a request would wait that takes its place now. tokens: its estimated number of tokens."""
        start = max(now, self.held_until)
        for rate, amount, full_at in self._buckets(rates, tokens):
            needs = _seconds(amount, rate)
            start = max(start, full_at + needs - max(BURST_SECONDS, needs))
        return start - now

    def take(self, rates: RateLimits, tokens: int, now: float) -> float:
        """Takes the place of a request with an estimated number of tokens, and returns how long it has to wait."""
        wait = self.wait(rates, tokens, now)
        sent = now + wait
        if rates.requests_per_minute is not None:
            self.requests_full_at = max(self.requests_full_at, sent) + _seconds(1, rates.requests_per_minute)
        if rates.tokens_per_minute is not None:
            self.tokens_full_at = max(self.tokens_full_at, sent) + _seconds(tokens, rates.tokens_per_minute)
        return wait

    def give_back(self, rates: RateLimits, tokens: int) -> None:
        """Gives back the place of a request that was not sent."""
        if rates.requests_per_minute is not None:
            self.requests_full_at -= _seconds(1, rates.requests_per_minute)
        self.settle(rates, tokens, 0)

    def settle(self, rates: RateLimits, estimated: int, tokens: int) -> None:
        """Replaces the estimated number of a request's tokens by what the endpoint counted."""
        if rates.tokens_per_minute is not None:
            self.tokens_full_at += _seconds(tokens - estimated, rates.tokens_per_minute)

    def _buckets(self, rates: RateLimits, tokens: int) -> Iterator[tuple[int, int, float]]:
        """Yields limit, amount and state of each bucket that a request takes from."""
        if rates.requests_per_minute is not None:
            yield rates.requests_per_minute, 1, self.requests_full_at
        if rates.tokens_per_minute is not None:
            yield rates.tokens_per_minute, tokens, self.tokens_full_at

    def seen_at(self, now: float) -> None:
        """Moves all times if the clock was set back, so that nobody waits for what it had reached before."""
        back = self.changed_at - now
        if back > CLOCK_SECONDS:
            self.probe_at -= back
            self.held_until -= back
            self.requests_full_at -= back
            self.tokens_full_at -= back
        self.changed_at = now

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the state in plain values. Raises `LookupError`, `ValueError` or `TypeError` for others."""
        if not all(math.isfinite(value) for value in values.values()):
            raise ValueError("expected finite numbers")
        return cls(
            failures=int(values["failures"]),
            openings=int(values["openings"]),
            probe_at=float(values["probe_at"]),
            held_until=float(values["held_until"]),
            requests_full_at=float(values["requests_full_at"]),
            tokens_full_at=float(values["tokens_full_at"]),
            changed_at=float(values["changed_at"]),
        )


def _seconds(amount: int, per_minute: int) -> float:
    return amount * 60.0 / per_minute
