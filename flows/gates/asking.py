"""Turns a gate of the spec into a question in the ledger, and the notification that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.core.approval_rules import APPROVED, REJECTED, Approval, Deciders
from db.core.engine import Fence
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from flows.delivery.notifications import approval_entry
from yatt_core.gates.due import DueGate
from yatt_core.spec import RunSpec

SECONDS_PER_HOUR = 3600.0
DEFAULTS = {"approve": APPROVED, "reject": REJECTED}


def question_of(due: DueGate, subject: str, run: str, evidence: Mapping[str, Any]) -> ApprovalRequest:
    """Returns the question of a gate. Fields as in `ApprovalRequest`."""
    gate = due.gate
    return ApprovalRequest(
        subject=subject,
        key=due.key,
        kind=due.kind,
        text=due.text,
        run=run,
        deciders=Deciders(gate.names, gate.roles),
        seconds=None if gate.deadline_hours is None else gate.deadline_hours * SECONDS_PER_HOUR,
        default_decision=DEFAULTS[gate.default],
        evidence=evidence,
    )


def ask(
    ledger: Ledger,
    run: str,
    spec: RunSpec,
    due: DueGate,
    evidence: Mapping[str, Any],
    at_ms: int,
    fence: Fence | None = None,
) -> Approval:
    """Asks a gate's question, once; returns it with the decision that there is, its deadline's included.

    at_ms: the time of the notification.
    fence: the run's driver's; None for people's commands.
    """
    question = question_of(due, run, run, evidence)
    entries = [] if spec.guards.notify is None else [approval_entry(run, due.key, due.text, at_ms)]
    return ledger.approvals.take_default(ledger.approvals.ask(question, fence, entries).id)
