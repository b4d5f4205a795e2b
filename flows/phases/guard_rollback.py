"""The rollback that a guard asks for: back to before the window that it judged, and on along a branch with other prompts.

Consumes an alarm that is in the ledger. Where it leads to is a function of the alarm and the spec alone, so that a driver that
recovers, and an undisturbed one, open the same branch at the same iteration.
"""

from __future__ import annotations

import logging

from db.write.alarms import AlarmRow
from flows.branching.branches import open_branch
from flows.branching.restore_points import PastSpecs, Reach
from flows.driver.session import DriverSession
from flows.phases.failure_policy import CURSOR, Paused
from flows.run.control_state import ControlState
from yatt_core.errors import ConfigurationError
from yatt_core.guards.findings import Alarm, Finding

log = logging.getLogger("yatt_core.flow")
BY_GUARD = "guard "
"""Begins the reason of a branch that a guard had opened."""


def roll_back(session: DriverSession, state: ControlState) -> bool:
    """Opens the branch that an alarm asks for; True if the session is now on another one, False where none asks.

    The new branch draws none of the prompts drawn so far. Where it cannot be opened an alarm says why, and asks for a pause.
    """
    asked = session.guards.to_roll_back()
    if asked is None:
        return False
    current = session.context.ledger.runs.find(session.context.run).current_branch
    if current != session.context.branch:  # opened by a transaction whose answer never came
        session.enter_branch(current)
        session.guards.look_up()
        return True
    try:
        at = _target(session, asked)
    except Paused as refused:
        finding = Finding(f"no rollback for: {asked.text}; {refused}", asked.first, asked.evidence)
        alarm = Alarm(asked.rule, f"{asked.rule}.refused", "pause", finding)
        session.guards.report(alarm, asked.branch, asked.iteration)
        session.guards.look_up()
        return False
    reason = f"{BY_GUARD}{asked.rule} at iteration {asked.iteration} of branch {asked.branch}"
    choices = {CURSOR: {"cursor": state.cursor.to_json()}}
    log.warning("%s: rolling back to iteration %d", reason, at)
    session.context.observer.warned(f"{reason}: rolling back to iteration {at}")
    session.enter_branch(
        open_branch(session.context.ledger, session.context.fence, session.context.spec, at, reason, choices)
    )
    session.guards.look_up()
    return True


def _target(session: DriverSession, asked: AlarmRow) -> int:
    """The newest iteration before the window at which a checkpoint is due. Raises `Paused` where it cannot be gone back to."""
    context = session.context
    every = context.spec.checkpoints.every
    at = max(0, (asked.first - 1) // every * every)
    before = [
        row
        for row in context.ledger.overview.branches(context.run)
        if row.parent_iteration == at and row.reason.startswith(BY_GUARD)
    ]
    if len(before) >= context.spec.guards.rollback_limit:
        raise Paused(f"{len(before)} rollbacks to iteration {at} did not help")
    session.checkpoints.wait()
    reach = Reach(context.ledger, context.folder, context.run, context.branch)
    try:
        reach.base(at, context.spec, PastSpecs(context.ledger))
    except ConfigurationError as error:
        raise Paused(str(error)) from error
    return at
