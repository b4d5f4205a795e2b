"""Decides what follows a failed phase: a retry within its budget, then the spec's policy for that kind of failure.

Consumes the phase's error and the failures charged in the ledger. A decision that changes what the run computes (a
skipped update, a rollback) is a choice: it is recorded before it takes effect, and every recovering driver obeys it.
"""

from __future__ import annotations

import logging
from typing import Any

from db.write.records import ChoiceRow
from flows.branching.branches import open_branch
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.experience import cursor_after, has_damage, has_damaged_copy
from flows.run.control_state import ControlState
from yatt_core.errors import (
    AlignmentError,
    AwayError,
    DataError,
    NumericError,
    ReplayError,
    StorageFullError,
    YattError,
)
from yatt_core.guards.rules import non_finite_alarm
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.flow")
NON_FINITE = "non_finite"
CURSOR = "cursor"
SKIP = "skip"
ROLLBACK = "rollback"
READS_SHARDS = frozenset({"prepare", "learn"})
READS_SLICES = READS_SHARDS | {"collect", "begin_ahead", "collect_ahead"}
"""Phases that read sealed shards: of the iteration, and with slices of those before it."""


class PhaseRetry(Exception):
    """A phase failed; the session recovers the last commit and continues.

    failures: how often the phase has failed in a row for reasons of this kind, which the next attempt waits for; 0 if there is
        nothing to wait for.
    """

    def __init__(self, reason: str, failures: int = 0) -> None:
        super().__init__(reason)
        self.failures = failures


class Paused(Exception):
    """The run cannot continue without an operator; the text gives the reason."""


def handle_failure(session: DriverSession, iteration: int, name: str, error: YattError) -> None:
    """Raises `PhaseRetry` or `Paused` if the policy calls for it; returns if the error must end the session."""
    reason = redact(str(error))
    if isinstance(error, StorageFullError):
        raise Paused(f"{reason}; free some space, then `yatt resume {session.context.run}`") from error
    if isinstance(error, AwayError):
        session.outages.found(error, name)
        raise PhaseRetry(reason) from error
    if isinstance(error, ReplayError | AlignmentError):
        return
    failures = charged_failures(session.context, iteration, name, error)
    if failures < allowed_failures(session.context, iteration, name, error):
        session.context.observer.warned(f"{name} of iteration {iteration} failed, retrying: {reason}")
        raise PhaseRetry(reason, failures) from error
    if isinstance(error, NumericError) and name == "learn":
        _handle_non_finite(session, iteration, reason)


def charged_failures(context: RunContext, iteration: int, name: str, error: YattError) -> int:
    """Returns how many failures of the error's class are charged to a phase, this one included."""
    charged = context.ledger.phases.charged(context.run, context.branch, iteration, name)
    return charged.get(error.failure_class.value, 0)


def allowed_failures(context: RunContext, iteration: int, name: str, error: YattError) -> int:
    """Returns the number of failures of the error's class after which a phase is not attempted again."""
    budgets = context.spec.recovery.budgets
    span = context.spec.carry_span
    if (
        isinstance(error, DataError)
        and name in (READS_SLICES if span else READS_SHARDS)
        and any(
            has_damaged_copy(context, context.branch, number) or has_damage(context, context.branch, number)
            for number in range(max(1, iteration - span), iteration + 1)
        )
    ):
        return budgets.infrastructure  # a failure of the disk, not of the data: the shard is rebuilt
    return budgets.attempts(error.failure_class)


# -- updates that are not finite --------------------------------------------------------------------------------------


def _handle_non_finite(session: DriverSession, iteration: int, reason: str) -> None:
    """Raises according to `recovery.on_non_finite`; returns for `stop`."""
    context = session.context
    wanted = context.spec.recovery.on_non_finite
    if wanted != SKIP and context.spec.guards.non_finite is not None:  # the guard judges a skip with its iteration
        session.guards.report(non_finite_alarm(iteration, wanted, reason), context.branch, iteration)
    if wanted == "stop":
        return
    if wanted == "pause":
        raise Paused(f"update {iteration} is not finite: {reason}")
    body: dict[str, Any] = {"answer": wanted, "reason": reason}
    if wanted == ROLLBACK:
        body["to"] = _newest_checkpoint_before(session, iteration)
    if _answers_in_a_row(session, iteration, body) >= context.spec.recovery.non_finite_limit:
        raise Paused(f"update {iteration} is not finite, and {wanted} has repeatedly not helped: {reason}")
    chosen = context.ledger.records.choice(context.fence, ChoiceRow(context.branch, iteration, NON_FINITE, body))
    log.error("update %d is not finite; recorded choice: %s", iteration, chosen.body)
    context.observer.warned(f"update {iteration} is not finite; {wanted} applies: {reason}")
    raise PhaseRetry(reason)


def _newest_checkpoint_before(session: DriverSession, iteration: int) -> int:
    session.checkpoints.wait()
    at = next((row.iteration for row in session.checkpoints.kept() if row.iteration < iteration), None)
    if at is None:
        raise Paused(f"update {iteration} is not finite, and there is no checkpoint to roll back to")
    return at


def _answers_in_a_row(session: DriverSession, iteration: int, body: dict[str, Any]) -> int:
    """Returns the number of consecutive skips right before the iteration, or of earlier rollbacks to the same place."""
    context = session.context
    if body["answer"] == ROLLBACK:
        branches = context.ledger.overview.branches(context.run)
        return sum(row.parent_iteration == body["to"] and row.reason.startswith(NON_FINITE) for row in branches)
    count = 0
    while is_skipped(context, context.run, context.branch, iteration - 1 - count):
        count += 1
    return count


def is_skipped(context: RunContext, run: str, branch: int, iteration: int) -> bool:
    """Returns True if a recorded choice skips the iteration's update."""
    choice = context.ledger.records.choices(run, branch, iteration).get(NON_FINITE)
    return choice is not None and choice.body["answer"] == SKIP


def obey_rollback(session: DriverSession, state: ControlState) -> bool:
    """Opens the branch that a recorded choice calls for; returns True if the session is now on another branch.

    The new branch draws none of the prompts that led to the failure.
    """
    context = session.context
    iteration = state.iteration + 1
    choice = context.ledger.records.choices(context.run, context.branch, iteration).get(NON_FINITE)
    if choice is None or choice.body["answer"] != ROLLBACK:
        return False
    cursor = cursor_after(context, iteration, state.cursor)
    at = int(choice.body["to"])
    reason = f"{NON_FINITE}: update {iteration} of branch {context.branch}"
    choices = {CURSOR: {"cursor": cursor.to_json()}}
    session.enter_branch(
        open_branch(
            ledger=context.ledger, fence=context.fence, spec=context.spec, at=at, reason=reason, choices=choices
        )
    )
    return True
