"""Promotions that waited for approval: carries them out once they are approved.

Consumes approvals of kind `promotion`. Produces moves of aliases, each with the approval's number in its reason, so that an
approval is carried out once, whoever gets to it first: the command or page that approved it, the run's driver, or the keeper.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from db.core.approval_rules import APPROVED, Approval
from db.core.errors import AliasRefused
from db.ledger import Ledger
from db.write.aliases import CHAMPION, AliasMove, CheckpointKey
from db.write.outbox import OutboxEntry
from flows.delivery.registry import moved_entries
from flows.run.creation import current_spec, first_entries
from yatt_core.gates.due import PROMOTION

log = logging.getLogger("yatt_core.flow")
NEWEST = 200
"""Number of newest approvals among which approved promotions are searched."""


def settle_all(ledger: Ledger) -> None:
    """Carries out the approved promotions of all runs that are not carried out yet."""
    found = ledger.approvals.list(NEWEST)
    for run in sorted({row.run for row in found if row.run and row.kind == PROMOTION and row.decision == APPROVED}):
        settle(ledger, run)


def settle(ledger: Ledger, run: str) -> list[AliasMove]:
    """Carries out a run's approved promotions, oldest first; returns the new moves. Raises `RunNotFound`.

    One whose checkpoint is no longer kept is passed over.
    """
    ledger.approvals.take_defaults(run)
    approved = [row for row in ledger.approvals.of(run) if row.kind == PROMOTION and row.decision == APPROVED]
    if not approved:
        return []
    done = {move.why.partition(": ")[0] for move in ledger.aliases.history(run)}
    moves: list[AliasMove] = []
    for approval in approved:
        if _name(approval) not in done:
            moves += _promote(ledger, run, approval)
    return moves


def _promote(ledger: Ledger, run: str, approval: Approval) -> list[AliasMove]:
    spec = current_spec(ledger, run)
    target = CheckpointKey(*(int(approval.evidence[name]) for name in CheckpointKey._fields))

    def tell(moves: Sequence[AliasMove]) -> list[OutboxEntry]:
        entries = moved_entries(spec, moves)
        return [*first_entries(run, spec), *entries] if entries else []

    why = f"{_name(approval)}: {approval.reason}"
    try:
        return ledger.aliases.promote(run, CHAMPION, target, approval.decided_by or "", why, tell)
    except AliasRefused as error:
        log.info("%s of run %s cannot be carried out: %s", _name(approval), run, error)
        return []


def _name(approval: Approval) -> str:
    return f"approval {approval.id}"
