"""What the flow needs from the outside, as small protocols that `ops` fills in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """A committed iteration, as a person watches it."""

    iteration: int
    target: int
    metrics: Mapping[str, float]
    seconds: float


class Observer(Protocol):
    """Watches a session; called in the driver's process, must return at once."""

    def stage(self, text: str) -> None:
        """What is being done before the first phase, or between phases."""
        ...

    def phase_started(self, iteration: int, phase: str) -> None:
        """A phase is about to be dispatched."""
        ...

    def committed(self, summary: IterationSummary) -> None:
        """An iteration is durable."""
        ...

    def warned(self, text: str) -> None:
        """Something went wrong that the run survives."""
        ...


class SilentObserver:
    """Watches nothing."""

    def stage(self, text: str) -> None:
        """Ignored."""

    def phase_started(self, iteration: int, phase: str) -> None:
        """Ignored."""

    def committed(self, summary: IterationSummary) -> None:
        """Ignored."""

    def warned(self, text: str) -> None:
        """Ignored."""


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A row of the outbox, ready to be delivered to the tracker.

    key: its deterministic id. kind: `run` (create the tracking run), `params`, `tags`, `metrics` (branch, iteration and
    metrics by key), `artifact`, `status`, `checkpoint` and `alias` (`flows.delivery.registry`). body: what to send; for kind `run` with
    the `owner` (`flows.run.owner`). at_ms: the row's own time, so that a point sent twice is one point. tracking_run: where it
    goes; for kind `run` the one that it is nested in, none for a run's first.
    """

    key: str
    run: str
    kind: str
    body: Mapping[str, Any]
    at_ms: int
    tracking_run: str | None


class Tracker(Protocol):
    """Delivers outbox rows to a tracking system; a row may be given again after a crash."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        """Sends rows of one run in their order; returns identifiers made by it, by row key (the tracking run's for `run`).

        Raises `InfrastructureError` when the tracking system cannot be reached; none of the rows then counts as sent.
        """
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people are to be told. key: the same when it is given again."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """taken: keys of the notices that everybody has taken by now. failures: why somebody took nothing, without saying where they
    are.
    """

    taken: frozenset[str]
    failures: tuple[str, ...]


class Notifier(Protocol):
    """Sends messages to people; the same notice may be given again."""

    def notify(self, run: str, notices: Sequence[Notice]) -> Told:
        """Sends everybody one message of those notices of a run that they have not taken yet; forgets those not given again."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class TrackedPoint:
    """A point as the tracking system has it. at_ms: milliseconds since 1970, as it was sent."""

    step: int
    at_ms: int
    value: float


class MetricsReader(Protocol):
    """Reads back what a tracker delivered, for audits."""

    def points(self, tracking_run: str, key: str) -> Sequence[TrackedPoint]:
        """All points of a metric; empty where it is unknown. Raises `InfrastructureError` when it cannot be reached."""
        ...
