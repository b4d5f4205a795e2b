"""What an approval means: who may decide it, and what it means now. Pure: the clock is an argument.

An approval is open until somebody decides it, its deadline passes, or what it asked about is gone:

    pending     open, and before its deadline if it has one
    approved    decided so, or by default once the deadline has passed
    rejected    decided so, or by default once the deadline has passed
    withdrawn   the question no longer matters: its branch was left, or its subject has ended
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

PENDING = "pending"
APPROVED = "approved"
REJECTED = "rejected"
WITHDRAWN = "withdrawn"
DECISIONS = (APPROVED, REJECTED)
"""What people, and deadlines, decide."""


@dataclass(frozen=True, slots=True)
class Deciders:
    """Who of those with the role approver may decide: the named, and holders of one of the roles; without both, everyone."""

    names: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the deciders in words."""
        said = [*self.names, *(f"role {role}" for role in self.roles)]
        return ", ".join(said) or "everyone with the role approver"


@dataclass(frozen=True, slots=True)
class Approval:
    """A question and, once there is one, its decision. Times are milliseconds since 1970.

    subject: what waits: a run's id, or the name of something else.
    key: the question's name within its subject; the same question is asked only once.
    run: the run whose audit chain has the question; None if there is none.
    kind: what asked, such as `iterations` or `promotion`.
    evidence: figures that help to decide, and what the asker needs to go on.
    deadline: when the default takes effect; None for never.
    default_decision: what the deadline decides.
    via: through what the decision came: cli, dashboard, api, link, deadline or driver.
    """

    id: int
    subject: str
    key: str
    run: str | None
    kind: str
    question: str
    evidence: Mapping[str, Any]
    deciders: Deciders
    asked_at: int
    deadline: int | None
    default_decision: str
    decision: str | None = None
    decided_by: str | None = None
    via: str | None = None
    reason: str | None = None
    decided_at: int | None = None


def standing(approval: Approval, now: int) -> str:
    """Returns what an approval means at a time: pending, approved, rejected or withdrawn."""
    if approval.decision is not None:
        return approval.decision
    return approval.default_decision if is_overdue(approval, now) else PENDING


def is_overdue(approval: Approval, now: int) -> bool:
    """Returns True if nobody decided before the deadline, and the default is not recorded yet."""
    return approval.decision is None and approval.deadline is not None and now >= approval.deadline


def may_decide(gate: Deciders, name: str, roles: Collection[str]) -> bool:
    """Returns True if somebody of this name, with these roles, may decide; commands and routes require the role approver."""
    if not gate.names and not gate.roles:
        return True
    return name in gate.names or not set(gate.roles).isdisjoint(roles)
