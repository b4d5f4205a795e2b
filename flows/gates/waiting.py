"""What a paused run waits for at its gates, and whether it may go on.

Consumes the ledger: the reason for which a run is paused names the approval. Records the defaults of deadlines that have
passed, so that whoever looks first (a resume, a window, the service group's keeper) decides by them.
"""

from __future__ import annotations

import re

from db.core.approval_rules import APPROVED, Approval
from db.core.errors import ApprovalNotFound
from db.ledger import Ledger

_REASON = re.compile(r"waits for approval (\d+): ")


def waiting_reason(approval: Approval) -> str:
    """Returns the reason that is recorded for a run that is paused at a gate."""
    return (
        f"waits for approval {approval.id}: {approval.question} "
        f"`yatt approve {approval.id} --why ...` or `yatt reject {approval.id} --why ...`"
    )


def awaited(ledger: Ledger, run: str) -> Approval | None:
    """Returns the approval at which a run is paused, as it stands now; None if it is not paused at a gate.

    Raises `RunNotFound`.
    """
    row = ledger.runs.find(run)
    found = _REASON.match(row.state_reason) if row.state == "paused" else None
    if found is None:
        return None
    try:
        return ledger.approvals.take_default(int(found.group(1)))
    except ApprovalNotFound:  # the reason is of a ledger from which this run was copied
        return None


def is_decided(ledger: Ledger, run: str) -> bool:
    """Returns True if a run is paused at a gate that has been decided since, so that a driver has something to do.

    Raises `RunNotFound`.
    """
    approval = awaited(ledger, run)
    return approval is not None and approval.decision is not None


def is_waiting(ledger: Ledger, run: str) -> bool:
    """Returns True if a run is paused at a gate that nobody has decided yet. Raises `RunNotFound`."""
    approval = awaited(ledger, run)
    return approval is not None and approval.decision is None


def may_go_on(ledger: Ledger, run: str) -> bool:
    """Returns True if a run is paused at a gate that has been approved since. Raises `RunNotFound`."""
    approval = awaited(ledger, run)
    return approval is not None and approval.decision == APPROVED
