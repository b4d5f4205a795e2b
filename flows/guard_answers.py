"""The rollback that a guard asks for: back to before the window that it judged, and on along a branch with other prompts.

Consumes an alarm that is in the ledger. Where it leads to is a function of the alarm and the spec alone, so that a driver that
recovers, and an undisturbed one, open the same branch at the same iteration.
"""

from __future__ import annotations

import logging

from db.alarms import AlarmRow
from flows.answers import CURSOR, Paused
from flows.branches import open_branch
from flows.reach import PastSpecs, Reach
from flows.segment import Segment
from flows.state import ControlState
from yatt_core.errors import ConfigurationError
from yatt_core.guards.findings import Alarm, Finding

log = logging.getLogger("yatt_core.flow")
BY_GUARD = "guard "
"""Begins the reason of a branch that a guard had opened."""


def roll_back(segment: Segment, state: ControlState) -> bool:
    """Opens the branch that an alarm asks for; True if the segment is now on another one, False where none asks.

    The new branch draws none of the prompts drawn so far. Where it cannot be opened an alarm says why, and asks for a pause.
    """
    asked = segment.guards.to_roll_back()
    if asked is None:
        return False
    current = segment.ledger.runs.find(segment.run).current_branch
    if current != segment.branch:  # opened by a transaction whose answer never came
        segment.enter_branch(current)
        segment.guards.look_up()
        return True
    try:
        at = _target(segment, asked)
    except Paused as refused:
        finding = Finding(f"no rollback for: {asked.text}; {refused}", asked.first, asked.evidence)
        alarm = Alarm(asked.rule, f"{asked.rule}.refused", "pause", finding)
        segment.guards.report(alarm, asked.branch, asked.iteration)
        segment.guards.look_up()
        return False
    reason = f"{BY_GUARD}{asked.rule} at iteration {asked.iteration} of branch {asked.branch}"
    choices = {CURSOR: {"cursor": state.cursor.to_json()}}
    log.warning("%s: rolling back to iteration %d", reason, at)
    segment.observer.warned(f"{reason}: rolling back to iteration {at}")
    segment.enter_branch(open_branch(segment.ledger, segment.fence, segment.spec, at, reason, choices))
    segment.guards.look_up()
    return True


def _target(segment: Segment, asked: AlarmRow) -> int:
    """The newest iteration before the window at which a snapshot is due. Raises `Paused` where it cannot be gone back to."""
    every = segment.spec.snapshots.every
    at = max(0, (asked.first - 1) // every * every)
    before = [
        row
        for row in segment.ledger.overview.branches(segment.run)
        if row.parent_iteration == at and row.reason.startswith(BY_GUARD)
    ]
    if len(before) >= segment.spec.guards.rollback_limit:
        raise Paused(f"{len(before)} rollbacks to iteration {at} did not help")
    segment.snapshots.wait()
    reach = Reach(segment.ledger, segment.folder, segment.run, segment.branch)
    try:
        reach.base(at, segment.spec, PastSpecs(segment.ledger))
    except ConfigurationError as error:
        raise Paused(str(error)) from error
    return at
