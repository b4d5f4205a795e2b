"""Publishes a run's state (running, completed, stopped, paused or failed) to the ledger, the tracker and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from db.write.outbox import OutboxEntry
from flows.delivery.notifications import news_entry, state_entry
from flows.delivery.outbox import row_ids
from flows.driver.context import RunContext
from flows.driver.guards import Ending
from flows.run.results import run_results
from flows.run.trackers import for_trackers
from yatt_core.logs import redact

DIGESTS = ("weights_digest", "experience_digest", "metrics_digest")
NEWS = ("paused", "failed")
"""States that people are notified of."""
TRACKED_STATES = {
    "running": "RUNNING",
    "waiting": "RUNNING",
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "paused": "SCHEDULED",
    "failed": "FAILED",
}
"""The tracker's status by state. A requested stop is no failure; a paused run waits for somebody to resume it."""


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """How a driver session ended.

    state: the state in which the run was left.
    reason: why, without secrets.
    exit_code: the exit code of the command that drove the session.
    """

    run: str
    state: str
    iteration: int
    reason: str
    exit_code: int


def set_state(context: RunContext, state: str, reason: str, occasion: str = "") -> None:
    """Records the run's state in the ledger and, through the outbox, in the tracker.

    Notifies people if the run is paused or has failed.

    occasion: distinguishes states that a session is in more than once, since the tracker is told only once of each.
    """
    is_news = state in NEWS and context.spec.guards.notify is not None
    now = context.clock.time_ms()
    news = (
        [state_entry(run=context.run, term=context.fence.term, state=state, reason=reason, at_ms=now)]
        if is_news
        else []
    )
    context.ledger.runs.set_state(context.fence, state, reason, news)
    _tell_tracker(context, f"{state}{occasion}/tags", "tags", {"yatt.state": state, "yatt.state_reason": reason})
    _tell_tracker(context, state + occasion, "status", {"status": TRACKED_STATES[state]})


def tell_people(context: RunContext, occasion: str, text: str) -> None:
    """Notifies people, once per session and occasion, if the spec asks for notifications."""
    if context.spec.guards.notify is None:
        return
    entry = news_entry(
        run=context.run, term=context.fence.term, occasion=occasion, text=redact(text), at_ms=context.clock.time_ms()
    )
    context.ledger.outbox.enqueue(context.fence, [entry])


def conclude(context: RunContext, ending: Ending) -> SessionOutcome:
    """Records how the session ends and returns its outcome."""
    reason = redact(ending.reason)
    context.ledger.waits.over(context.fence)
    set_state(context, ending.state, reason)
    _tell_digests(context)
    return SessionOutcome(
        run=context.run,
        state=ending.state,
        iteration=context.committed_iteration,
        reason=reason,
        exit_code=ending.exit_code,
    )


def _tell_digests(context: RunContext) -> None:
    """Sends the digests and the audit chain's head as tags of the tracking run."""
    results = asdict(run_results(context.ledger, context.run))
    tags = {f"yatt.{key}": str(results[key]) for key in DIGESTS} | {"yatt.iteration": str(results["iteration"])}
    head = context.ledger.events.head(context.run).hash
    _tell_tracker(context, "digests", "tags", tags | {"yatt.audit_head": head})


def _tell_tracker(context: RunContext, name: str, kind: str, body: Mapping[str, str]) -> None:
    """Adds a row for each tracking run (the run's, and a later branch's own), at most once per session and name."""
    keys = row_ids(context.run, context.branch, f"t{context.fence.term}/{name}")
    now = context.clock.time_ms()
    entries = for_trackers(context.spec, [OutboxEntry(key, kind, body, now) for key in keys])
    context.ledger.outbox.enqueue(context.fence, entries)
