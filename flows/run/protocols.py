"""Small protocols for what the flow needs from external services; `ops` implements them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """A committed iteration, for display.

    target: the iteration after which the session ends: the run's last one, or an earlier one that was asked for.
    """

    iteration: int
    target: int
    metrics: Mapping[str, float]
    seconds: float


class Observer(Protocol):
    """Observes a session; called in the driver's process, so its methods must return at once."""

    def stage(self, text: str) -> None:
        """Reports a step before the first phase, or between phases."""
        ...

    def phase_started(self, iteration: int, phase: str) -> None:
        """Reports that a phase is about to be dispatched."""
        ...

    def committed(self, summary: IterationSummary) -> None:
        """Reports a committed iteration."""
        ...

    def warned(self, text: str) -> None:
        """Reports a problem that does not end the run."""
        ...

    def settled(self, text: str) -> None:
        """Reports that the problem of a warning, given with the same text, is over."""
        ...


class SilentObserver:
    """Ignores everything."""

    def stage(self, text: str) -> None:
        """Does nothing."""

    def phase_started(self, iteration: int, phase: str) -> None:
        """Does nothing."""

    def committed(self, summary: IterationSummary) -> None:
        """Does nothing."""

    def warned(self, text: str) -> None:
        """Does nothing."""

    def settled(self, text: str) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A row of the outbox, ready to be delivered to the tracker.

    key: its deterministic id.
    kind: `run` (create the tracking run), `params`, `tags`, `metrics` (branch, iteration and metrics by key),
        `artifact`, `note`, `datasets` (`flows.delivery.datasets`), `file` (of the run's folder), `status`, `checkpoint` or
        `alias` (`flows.delivery.registry`), or `deleted` (mark the tracking runs of an `owner` in some `experiments` as
        deleted; `flows.run.deletion`).
    body: the payload; for kind `run` it includes the `owner` (`flows.run.owner`).
    at_ms: the time at which the row was written, so that a point that is sent twice counts only once.
    tracking_run: the tracker's id of the tracking run to which the row is sent; for kind `run`, the parent of the new
        tracking run, or None for a run's first one.
    """

    key: str
    run: str
    kind: str
    body: Mapping[str, Any]
    at_ms: int
    tracking_run: str | None


class Tracker(Protocol):
    """Delivers outbox rows to a tracking system; a row may be delivered again after a crash.

    Rows that `deliver` has returned from are durable in the tracking system, even if this process is killed.
    """

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        """Sends rows of one run in order; returns the tracking system's ids of new objects, by the key of the row.

        For a row of kind `run`, the object is the tracking run.

        Raises `InfrastructureError` if the tracking system cannot be reached; then none of the rows counts as sent.
        """
        ...

    def cut(self) -> None:
        """Ends every delivery at once, from any thread, because whoever drives the run next sends the rows again.

        A point that would then count twice must not arrive any more.
        """
        ...

    def close(self) -> None:
        """Ends what is open in the tracking system, when no more rows follow from this process."""
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for people.

    key: unchanged if the notice is sent again.
    address: where to act on it; it may contain a credential for exactly that, so it is only ever sent.
    """

    key: str
    text: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class NotificationResult:
    """The result of a notification.

    taken: keys of the notices that all recipients have accepted by now.
    failures: for each recipient that did not accept the message, the reason, without the recipient's address.
    """

    taken: frozenset[str]
    failures: tuple[str, ...]


class Notifier(Protocol):
    """Sends messages to people; the same notice may be passed again."""

    def notify(self, run: str, notices: Sequence[Notice]) -> NotificationResult:
        """Sends each recipient one message with the notices of a run that it has not accepted yet.

        Forgets notices that are not passed again.
        """
        ...


@dataclass(frozen=True, slots=True, order=True)
class TrackedPoint:
    """A point of a metric in the tracking system.

    at_ms: milliseconds since 1970, as sent.
    """

    step: int
    at_ms: int
    value: float


class MetricsReader(Protocol):
    """Reads back what a tracker delivered, for audits."""

    def points(self, tracking_run: str, key: str) -> Sequence[TrackedPoint]:
        """Returns all points of a metric; empty if it is unknown.

        Raises `InfrastructureError` if the tracking system cannot be reached.
        """
        ...
