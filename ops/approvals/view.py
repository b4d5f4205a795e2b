"""Approvals as pages, API and commands show them, and how a person's decision is carried out.

Consumes the ledger. Produces approvals with what they mean now; a decision also makes the promotion that it approves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from db.core.approval_rules import APPROVED, PENDING, REJECTED, Approval, standing
from db.ledger import Ledger
from db.write.approvals import ApprovalDecision
from flows.gates.promotions import settle
from ops.presentation.columns import BadgeCell, Cell, Column, Columns, LinkCell, MomentCell, RunCell, SeveralCells

Choice = Literal["approve", "reject"]
DECISION_OF: Mapping[str, str] = {"approve": APPROVED, "reject": REJECTED}


@dataclass(frozen=True, slots=True)
class ListedApproval:
    """An approval. Times are milliseconds since 1970.

    subject: what waits: a run's id, or the name of something else.
    run: the run that it is about; None if it is about none.
    state: pending, approved, rejected or withdrawn.
    deciders: who may decide, in words.
    names, roles: who may decide; both empty: everyone with the role approver.
    default: what the deadline decides.
    via: through what the decision came: cli, dashboard, api, link, deadline or driver.
    """

    id: int
    subject: str
    run: str | None
    kind: str
    question: str
    state: str
    deciders: str
    names: tuple[str, ...]
    roles: tuple[str, ...]
    evidence: Mapping[str, Any]
    asked_at: int
    deadline: int | None
    default: str
    decided_by: str | None
    via: str | None
    reason: str | None
    decided_at: int | None

    @property
    def is_pending(self) -> bool:
        """True if it can still be decided."""
        return self.state == PENDING


def listed(approval: Approval, now: int) -> ListedApproval:
    """Returns an approval with what it means at a time."""
    return ListedApproval(
        id=approval.id,
        subject=approval.subject,
        run=approval.run,
        kind=approval.kind,
        question=approval.question,
        state=standing(approval, now),
        deciders=str(approval.deciders),
        names=approval.deciders.names,
        roles=approval.deciders.roles,
        evidence=approval.evidence,
        asked_at=approval.asked_at,
        deadline=approval.deadline,
        default=approval.default_decision,
        decided_by=approval.decided_by,
        via=approval.via,
        reason=approval.reason,
        decided_at=approval.decided_at,
    )


def approvals(ledger: Ledger, limit: int, only_open: bool = False, run: str | None = None) -> list[ListedApproval]:
    """Returns the newest approvals, newest first.

    run: only those of a run.
    """
    found = ledger.approvals.list(limit, only_open) if run is None else ledger.approvals.of(run)[::-1]
    now = ledger.approvals.now()
    shown = [listed(row, now) for row in found if run is None or not only_open or row.decision is None]
    return [row for row in shown if row.is_pending or not only_open][:limit]


def approval(ledger: Ledger, number: int) -> ListedApproval:
    """Returns an approval. Raises `ApprovalNotFound`."""
    return listed(ledger.approvals.find(number), ledger.approvals.now())


def decide(ledger: Ledger, number: int, verdict: ApprovalDecision) -> ListedApproval:
    """Decides an approval and carries out the promotion that it may be about; returns the approval.

    Raises `ApprovalNotFound`, `ApprovalForbidden`, `ApprovalRefused`.
    """
    done = ledger.approvals.decide(number, verdict)
    if done.run is not None and done.decision == APPROVED:
        settle(ledger, done.run)
    return listed(done, ledger.approvals.now())


def _number(row: ListedApproval) -> Cell:
    return LinkCell(str(row.id), f"/approvals/{row.id}")


def _subject(row: ListedApproval) -> Cell:
    return row.subject if row.run is None else RunCell(row.run)


def _deadline(row: ListedApproval) -> Cell:
    return "none" if row.deadline is None else SeveralCells((MomentCell(row.deadline), f", then {row.default}"))


def _decision(row: ListedApproval) -> Cell:
    match row.state:
        case "approved":
            return BadgeCell(row.state, "good")
        case "rejected":
            return BadgeCell(row.state, "bad")
        case _:
            return BadgeCell(row.state)


_ANY: Columns[ListedApproval] = (
    Column("id", _number, number=True, heads=True),
    Column("subject", _subject),
    Column("question", lambda row: row.question, style="text"),
)
WAITING: Columns[ListedApproval] = (
    *_ANY,
    Column("asked", lambda row: MomentCell(row.asked_at), style="nowrap"),
    Column("who may decide", lambda row: row.deciders),
    Column("deadline", _deadline),
)
DECIDED: Columns[ListedApproval] = (
    *_ANY,
    Column("decision", _decision),
    Column("by", lambda row: row.decided_by or "deadline"),
    Column("when", lambda row: MomentCell(row.decided_at), style="nowrap"),
    Column("reason", lambda row: row.reason or "", style="text"),
)
