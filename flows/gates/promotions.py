"""Promotions that wait for approval: asks for them, and carries them out once they are approved.

Consumes approvals of kind `promotion`. Produces moves of aliases, each in one transaction with a link of the audit chain that
names the approval, so that an approval is carried out once, whether or not an alias moves, whoever gets to it first: the command
or page that approved it, the run's driver, or the keeper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from db.core.approval_rules import APPROVED, Approval, may_decide
from db.ledger import Ledger
from db.write.aliases import CARRIED_OUT, CHAMPION, AliasMove, CheckpointKey
from db.write.approvals import ApprovalDecision
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from flows.delivery.registry import moved_entries
from flows.gates.asking import ask
from flows.run.creation import current_spec, first_entries
from yatt_core.gates.due import PROMOTION, DueGate
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")


def champion_by_gate(
    ledger: Ledger, spec: RunSpec, run: str, row: CheckpointRow, verdict: ApprovalDecision
) -> tuple[list[AliasMove], int | None]:
    """Makes a checkpoint champion in the name of somebody who may decide it, and asks those who may otherwise.

    Returns the moves, and the number of the approval that is still open.
    """
    gate = spec.gates.promotion
    target = CheckpointKey(row.branch, row.iteration, row.term)
    assert gate is not None, "the caller has a gate"
    if ledger.aliases.pointing(run).get(CHAMPION) == target:
        return [], None
    # One question at a time about a checkpoint: once it is decided, it can be asked again.
    name = f"champion-b{target.branch}-i{target.iteration}-t{target.term}-n"
    decided = sum(each.key.startswith(name) and each.decision is not None for each in ledger.approvals.of(run))
    due = DueGate(
        PROMOTION,
        f"{name}{decided}",
        f"make iteration {target.iteration} champion? Asked by {verdict.by}: {verdict.why}",
        gate,
    )
    evidence = {**target._asdict(), "weights_digest": row.weights_digest}
    approval = ask(ledger=ledger, run=run, spec=spec, due=due, evidence=evidence, at_ms=int(time.time() * 1000))
    if may_decide(approval.deciders, verdict.by, verdict.roles):
        ledger.approvals.decide(approval.id, verdict)
        return settle(ledger, run), None
    return [], approval.id


def runs_to_settle(ledger: Ledger) -> list[str]:
    """Returns the runs with approved promotions that are not carried out yet."""
    return ledger.approvals.runs_to_settle(PROMOTION, CARRIED_OUT)


def settle(ledger: Ledger, run: str) -> list[AliasMove]:
    """Carries out a run's approved promotions in the order of their decisions; returns the new moves. Raises `RunNotFound`.

    One whose checkpoint is no longer kept moves nothing.
    """
    ledger.approvals.take_defaults(run)
    approved = [row for row in ledger.approvals.of(run) if row.kind == PROMOTION and row.decision == APPROVED]
    if not approved:
        return []
    done = ledger.aliases.carried_out(run)
    moves: list[AliasMove] = []
    for approval in sorted(approved, key=lambda row: row.decided_at or 0):
        if approval.id not in done:
            moves += _promote(ledger, run, approval)
    return moves


def _promote(ledger: Ledger, run: str, approval: Approval) -> list[AliasMove]:
    spec = current_spec(ledger, run)
    target = CheckpointKey(*(int(approval.evidence[name]) for name in CheckpointKey._fields))

    def tell(moves: Sequence[AliasMove]) -> list[OutboxEntry]:
        entries = moved_entries(spec, moves)
        return [*first_entries(run, spec), *entries] if entries else []

    why = f"approval {approval.id}: {approval.reason}"
    moves = ledger.aliases.carry_out(
        run=run, approval=approval.id, target=target, by=approval.decided_by or "", why=why, tell=tell
    )
    if not moves:
        log.info("approval %d of run %s moves no alias", approval.id, run)
    return moves
