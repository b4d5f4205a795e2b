"""What a failed phase leads to: its budget, and behind that the answer that the spec gives to its kind of failure.

Consumes an error that a phase raised and what was charged in the ledger. An answer that changes what the run computes (a
skipped update, a rollback) is a choice: it is written before it takes effect, and obeyed by whoever recovers.
"""

from __future__ import annotations

import logging
from typing import Any

from db.write.records import ChoiceRow
from flows.branching.branches import open_branch
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.experience import cursor_behind, has_damage
from flows.run.control_state import ControlState
from yatt_core.errors import DataError, FailureClass, NumericError, ReplayError, StorageFullError, YattError
from yatt_core.guards.rules import non_finite_alarm
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.flow")
NON_FINITE, CURSOR = "non_finite", "cursor"
SKIP, ROLLBACK = "skip", "rollback"
READS_SHARDS = frozenset({"prepare", "learn"})


class PhaseRetry(Exception):
    """A phase failed and the answer is to recover to the last commit and go on."""


class Paused(Exception):
    """The run cannot go on until somebody has looked; its text says why."""


def answer(session: DriverSession, iteration: int, name: str, error: YattError) -> None:
    """Raises `PhaseRetry` or `Paused` where that is the answer to the error; returns where the error has to end the session."""
    reason = redact(str(error))
    if isinstance(error, StorageFullError):
        raise Paused(f"{reason}; make room, then `yatt resume {session.context.run}`") from error
    if isinstance(error, ReplayError):
        return
    if within_budget(session, iteration, name, error):
        session.context.observer.warned(f"{name} of iteration {iteration} failed and is tried again: {reason}")
        raise PhaseRetry(reason) from error
    if isinstance(error, NumericError) and name == "learn":
        _answer_non_finite(session, iteration, reason)


def within_budget(session: DriverSession, iteration: int, name: str, error: YattError) -> bool:
    """True if the phase may be tried again after one more failure of the error's class."""
    context = session.context
    budgets = context.spec.recovery.budgets
    allowed = {
        FailureClass.INFRASTRUCTURE: budgets.infrastructure,
        FailureClass.DATA: budgets.data,
        FailureClass.NUMERIC: budgets.numeric,
    }.get(error.failure_class, 1)
    if isinstance(error, DataError) and name in READS_SHARDS and has_damage(context, context.branch, iteration):
        allowed = budgets.infrastructure  # the disk's failure, not the data's: the shard is made again
    charged = context.ledger.phases.charged(context.run, context.branch, iteration, name)
    return charged.get(error.failure_class.value, 0) < allowed


# -- updates that are not finite --------------------------------------------------------------------------------------


def _answer_non_finite(session: DriverSession, iteration: int, reason: str) -> None:
    """Raises what `recovery.on_non_finite` asks for; returns for `stop`."""
    context = session.context
    wanted = context.spec.recovery.on_non_finite
    if wanted != SKIP and context.spec.guards.non_finite is not None:  # a skip is judged with its iteration
        session.guards.report(non_finite_alarm(iteration, wanted, reason), context.branch, iteration)
    if wanted == "stop":
        return
    if wanted == "pause":
        raise Paused(f"update {iteration} is not finite: {reason}")
    body: dict[str, Any] = {"answer": wanted, "reason": reason}
    if wanted == ROLLBACK:
        body["to"] = _newest_checkpoint_before(session, iteration)
    if _answers_in_a_row(session, iteration, body) >= context.spec.recovery.non_finite_limit:
        raise Paused(f"update {iteration} is not finite, after {wanted} was the answer again and again: {reason}")
    chosen = context.ledger.records.choice(context.fence, ChoiceRow(context.branch, iteration, NON_FINITE, body))
    log.error("update %d is not finite; the answer is %s", iteration, chosen.body)
    context.observer.warned(f"update {iteration} is not finite; the answer is {wanted}: {reason}")
    raise PhaseRetry(reason)


def _newest_checkpoint_before(session: DriverSession, iteration: int) -> int:
    session.checkpoints.wait()
    at = next((row.iteration for row in session.checkpoints.kept() if row.iteration < iteration), None)
    if at is None:
        raise Paused(f"update {iteration} is not finite, and there is no checkpoint to roll back to")
    return at


def _answers_in_a_row(session: DriverSession, iteration: int, body: dict[str, Any]) -> int:
    """Skips right before the iteration, or rollbacks to the same checkpoint."""
    context = session.context
    if body["answer"] == ROLLBACK:
        branches = context.ledger.overview.branches(context.run)
        return sum(row.parent_iteration == body["to"] and row.reason.startswith(NON_FINITE) for row in branches)
    count = 0
    while is_skipped(context, context.run, context.branch, iteration - 1 - count):
        count += 1
    return count


def is_skipped(context: RunContext, run: str, branch: int, iteration: int) -> bool:
    """True if an iteration's update is not applied, by a choice that is in force."""
    choice = context.ledger.records.choices(run, branch, iteration).get(NON_FINITE)
    return choice is not None and choice.body["answer"] == SKIP


def obey_rollback(session: DriverSession, state: ControlState) -> bool:
    """Opens the branch that a recorded choice asks for, unless it is open; True if the session is now on another branch.

    The new branch draws none of the prompts that led to the failure.
    """
    context, iteration = session.context, state.iteration + 1
    choice = context.ledger.records.choices(context.run, context.branch, iteration).get(NON_FINITE)
    if choice is None or choice.body["answer"] != ROLLBACK:
        return False
    cursor = cursor_behind(context, iteration, state.cursor)
    at, reason = int(choice.body["to"]), f"{NON_FINITE}: update {iteration} of branch {context.branch}"
    choices = {CURSOR: {"cursor": cursor.to_json()}}
    session.enter_branch(open_branch(context.ledger, context.fence, context.spec, at, reason, choices))
    return True
