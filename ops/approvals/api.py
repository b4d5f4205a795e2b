"""API routes for approvals: what waits for a decision, and the decision, which needs a named token.

Consumes requests authorized by `ops.web.access.approving`, and calls the same functions as the command line.
"""

from __future__ import annotations

import logging
import threading
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict

from db.write.approvals import ApprovalDecision
from flows.gates.waiting import may_go_on
from ops.approvals.view import DECISION_OF, Choice, ListedApproval, approval, approvals, decide
from ops.people.roles import Person, held_roles
from ops.web.access import Approver
from ops.web.bodies import Body, Flag
from ops.web.context import LARGEST, Context, Limit, Served
from ops.web.driving import start_driver
from ops.web.texts import GivenReason, Text
from yatt_core.logs import redact

log = logging.getLogger("yatt_core.dashboard")
router = APIRouter(prefix="/api/v1/approvals", tags=["approvals"])
ApprovalId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the approval.")]


class DecisionRequest(Body):
    """A decision about an approval.

    why: the reason, recorded in the audit chain.
    resume: start a driver if a run waited for this approval and may now go on.
    """

    decision: Choice
    why: GivenReason
    resume: Flag = False


class ApprovalList(BaseModel):
    """Approvals, newest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approvals: tuple[ListedApproval, ...]


class Decided(BaseModel):
    """A decided approval.

    driver: the process that drives the run now; None if none was started.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    approval: ListedApproval
    driver: int | None


@router.get("")
def list_approvals(served: Served, limit: Limit = 100, pending: bool = True, run: Text | None = None) -> ApprovalList:
    """Lists approvals: those that wait for a decision, or all."""
    return ApprovalList(approvals=tuple(approvals(served.ledger, limit, pending, run)))


@router.get("/{number}")
def show_approval(served: Served, number: ApprovalId) -> ListedApproval:
    """Shows an approval."""
    return approval(served.ledger, number)


@router.post("/{number}")
def decide_approval(served: Served, by: Approver, number: ApprovalId, asked: DecisionRequest) -> Decided:
    """Approves or rejects; the decision is final and recorded with the person's name."""
    return carry_out(served, number, verdict_of(asked, by, "api"), asked.resume)


def verdict_of(asked: DecisionRequest, by: Person, via: str) -> ApprovalDecision:
    """Returns a person's decision, in all roles that theirs includes."""
    return ApprovalDecision(
        decision=DECISION_OF[asked.decision], by=by.name, why=asked.why, via=via, roles=held_roles(by.role)
    )


def carry_out(served: Context, number: int, verdict: ApprovalDecision, resume: bool) -> Decided:
    """Decides an approval, and starts a driver if asked to and the run waited for it."""
    done = decide(served.ledger, number, verdict)
    pid = None
    if done.run is not None:
        if done.kind == "promotion":
            tell_registry(served, done.run)
        elif resume and may_go_on(served.ledger, done.run):
            pid = start_driver(
                drivers=served.drivers,
                ledger=served.ledger,
                home=served.home,
                run=done.run,
                by=verdict.by,
                reason=f"approval {number}",
            )
    return Decided(approval=done, driver=pid)


def tell_registry(served: Context, run: str) -> None:
    """Sends a run's promotions to MLflow.

    In a thread of its own, since MLflow may be slow to respond and the threads of the routes are few.
    """
    threading.Thread(target=_deliver, args=(served, run), daemon=True, name=f"promote-{run}").start()


def _deliver(served: Context, run: str) -> None:
    from ops.integrations.promotion import deliver

    waits = deliver(served.home, run)
    if waits is not None:
        log.warning("run %s: the promotion will be sent to MLflow later: %s", run, redact(waits))
