"""The traces of a session: one for each iteration, with a span for each attempt at a phase.

Consumes attempts as the phases make them, and those of earlier drivers from the ledger. The identities follow from run,
branch, iteration, phase and attempt, so a driver continues the traces of the one before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.lease import DRIVER_LOST
from db.write.phases import DONE, AttemptRow
from flows.run.clock import Clock
from flows.run.owner import owner_of
from yatt_core.tracing.calls import BRANCH, RUN
from yatt_core.tracing.identity import SpanPlace, attempt_place, iteration_place
from yatt_core.tracing.log_export import export_logs, keep_logs
from yatt_core.tracing.settings import tracing_settings
from yatt_core.tracing.spans import begin_tracing, end_tracing, record_span, span

END_SECONDS = 5.0
SENT_MILLISECONDS = 30_000
"""After this time a span has been sent or dropped."""
COMMITS = ("commit", "commit_start")
START = "start"
RECOVER = "recover"


class SessionTracing:
    """The traces of one session; without effect unless the environment asks for traces."""

    def __init__(self, ledger: Ledger, fence: Fence, branch: int, clock: Clock) -> None:
        self._ledger = ledger
        self._fence = fence
        self._clock = clock
        settings = tracing_settings(os.environ)
        self._on = settings is not None
        self._owner = owner_of(ledger, fence.run) if self._on else ""
        if settings is not None:
            output = begin_tracing(settings, {RUN: fence.run, BRANCH: branch, "yatt.actor": "driver"})
            export_logs(output, "driver")

    @contextmanager
    def phase(self, branch: int, iteration: int, name: str, number: int) -> Iterator[None]:
        """Traces an attempt at a phase."""
        root = iteration_place(self._owner, branch, iteration)
        attributes = self._attributes(branch, iteration, self._fence.term) | {"yatt.attempt": number}
        if self._on and name in (START, RECOVER):
            self._record_earlier(branch, iteration)
        with span(name, root, place=attempt_place(root, name, number), attributes=attributes) as opened:
            outcome = "failed"
            try:
                yield
                outcome = "done"
            finally:
                if opened is not None:
                    opened.attributes["yatt.outcome"] = "failed" if opened.failure else outcome
        if self._on and name in (*COMMITS, RECOVER):
            self._record_iteration(root, branch, iteration)

    def end(self) -> int:
        """Sends what is queued, for a few seconds at most; returns how much was never sent."""
        keep_logs()
        return end_tracing(END_SECONDS) if self._on else 0

    def _record_iteration(self, root: SpanPlace, branch: int, iteration: int) -> None:
        """Sends the span of a committed iteration; one that is sent again has the same identity and contents."""
        attempts = self._ledger.phases.attempts(self._fence.run, branch, iteration)
        # The attempt at the commit that is ending now has no end in the ledger yet.
        ends = [row.ended_at or self._clock.time_ms() for row in attempts if row.phase in COMMITS]
        if ends:
            start = min(row.planned_at for row in attempts)
            attributes = self._attributes(branch, iteration, attempts[-1].term)
            record_span(
                name=f"iteration {iteration}",
                place=root,
                parent=None,
                start_ms=start,
                end_ms=max(ends),
                failure="",
                attributes=attributes,
            )

    def _record_earlier(self, branch: int, iteration: int) -> None:
        """Sends the attempts of earlier drivers at an iteration and the next one, as the ledger has them.

        A killed driver has not sent what it was working on, nor what it still had queued, which may reach back several
        short iterations. What it did send has the same identity.
        """
        sent_before = 0
        for number in range(iteration + 1, -1, -1):
            rows = self._ledger.phases.attempts(self._fence.run, branch, number)
            earlier = [row for row in rows if row.term < self._fence.term and row.ended_at is not None]
            if number < iteration and all((row.ended_at or 0) <= sent_before for row in earlier):
                return
            sent_before = max([sent_before, *(row.planned_at - SENT_MILLISECONDS for row in earlier)])
            root = iteration_place(self._owner, branch, number)
            for row in earlier:
                self._record_attempt(root, row, row.ended_at or row.planned_at)
            if number < iteration:
                self._record_iteration(root, branch, number)

    def _record_attempt(self, root: SpanPlace, row: AttemptRow, ended_at: int) -> None:
        lost = row.reason == DRIVER_LOST
        outcome = DRIVER_LOST if lost else "done" if row.state == DONE else "failed"
        attributes = self._attributes(row.branch, row.iteration, row.term)
        attributes |= {"yatt.attempt": row.number, "yatt.outcome": outcome}
        failure = "" if outcome == "done" else DRIVER_LOST if lost else row.failure_class or outcome
        place = attempt_place(root, row.phase, row.number)
        record_span(
            name=row.phase,
            place=place,
            parent=root,
            start_ms=row.planned_at,
            end_ms=ended_at,
            failure=failure,
            attributes=attributes,
        )

    def _attributes(self, branch: int, iteration: int, term: int) -> dict[str, str | int]:
        return {RUN: self._fence.run, BRANCH: branch, "yatt.iteration": iteration, "yatt.term": term}
