"""Rollbacks requested by guards: to an iteration before the window that was judged, on a new branch with other prompts.

Consumes an alarm from the ledger. The target is a function of the alarm and the spec alone, so a recovering driver
and an undisturbed one open the same branch at the same iteration.
"""

from __future__ import annotations

import logging

from db.write.alarms import AlarmRow
from flows.branching.branches import open_branch
from flows.branching.restore_points import RestorePoints
from flows.branching.spec_changes import PastSpecs
from flows.driver.guards import BY_GUARD
from flows.driver.session import DriverSession
from flows.phases.failure_policy import CURSOR, Paused
from flows.run.control_state import ControlState
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError
from yatt_core.guards.findings import Alarm, Finding

log = logging.getLogger("yatt_core.flow")


def roll_back(session: DriverSession, state: ControlState) -> bool:
    """Opens the branch that an alarm requests, if any; returns True if the session is now on another branch.

    The new branch draws none of the prompts drawn so far. If it cannot be opened, an alarm reports why and requests a
    pause.
    """
    asked = session.guards.to_roll_back()
    if asked is None:
        return False
    current = session.context.ledger.runs.find(session.context.run).current_branch
    if current != session.context.branch:  # opened by a transaction whose confirmation was lost
        session.enter_branch(current)
        session.guards.look_up()
        return True
    try:
        at = _target(session, asked)
    except Paused as refused:
        finding = Finding(f"cannot roll back for: {asked.text}; {refused}", asked.first, asked.evidence)
        alarm = Alarm(asked.rule, f"{asked.rule}.refused", "pause", finding)
        session.guards.report(alarm, asked.branch, asked.iteration)
        session.guards.look_up()
        return False
    reason = f"{BY_GUARD}{asked.rule} at iteration {asked.iteration} of branch {asked.branch}"
    choices = {CURSOR: {"cursor": state.cursor.to_json()}}
    log.warning("%s: rolling back to iteration %d", reason, at)
    session.context.observer.warned(f"{reason}: rolling back to iteration {at}")
    session.enter_branch(
        open_branch(
            ledger=session.context.ledger,
            fence=session.context.fence,
            spec=session.context.spec,
            at=at,
            reason=reason,
            choices=choices,
        )
    )
    session.guards.look_up()
    return True


def _target(session: DriverSession, asked: AlarmRow) -> int:
    """Returns the newest iteration before the alarm's window for which a checkpoint is due.

    Raises `Paused` if this iteration cannot be restored.
    """
    context = session.context
    every = context.spec.checkpoints.every
    at = max(0, (asked.first - 1) // every * every)
    before = [
        row
        for row in context.ledger.overview.branches(context.run)
        if row.parent_iteration == at and row.reason.startswith(BY_GUARD)
    ]
    if len(before) >= context.spec.guards.rollback_limit:
        raise Paused(f"{many(len(before), 'rollback')} to iteration {at} did not help")
    session.checkpoints.wait()
    restorable = RestorePoints(context.ledger, context.folder, context.run, context.branch)
    try:
        restorable.base(at, context.spec, PastSpecs(context.ledger))
    except ConfigurationError as error:
        raise Paused(str(error)) from error
    return at
