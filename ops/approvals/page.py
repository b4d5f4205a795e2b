"""The pages about approvals: the list, one approval with its form, and the page of a notification's link.

Nothing is decided by opening a page: a link leads to a page that asks for confirmation, and only its form decides.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import RedirectResponse, Response

from db.write.approvals import LINK, ApprovalDecision
from flows.gates.links import is_valid, link_key
from ops.approvals import api as approving
from ops.approvals.api import ApprovalId
from ops.approvals.view import DECIDED, DECISION_OF, WAITING, Choice, approval, approvals
from ops.web.access import Approver
from ops.web.bodies import FormTexts
from ops.web.context import LARGEST, Context, Served
from ops.web.frame import Visited
from ops.web.texts import CONTROL, GivenReason, Like

router = APIRouter(prefix="/approvals", include_in_schema=False)
links = APIRouter(prefix="/approvals", include_in_schema=False)
"""Routes of notifications' links, which are themselves the right to read and decide, also where reading needs sign-in."""
SHOWN = 200
"""Number of newest approvals among which decisions are shown; whatever waits for one is shown in full."""
LinkToken = Annotated[str, Query(max_length=200)]
PersonName = Annotated[
    str, Like(rf"^[^{CONTROL}]{{1,60}}$", "a name of up to 60 characters, none of them a control character")
]


class DecisionForm(FormTexts, approving.DecisionRequest):
    """The form of `DecisionRequest`."""


class LinkForm(BaseModel):
    """The form of a link's page.

    name: who decides, by their own word.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: Annotated[str, Like(r"^[0-9a-f.]{1,200}$", "the token of a link")]
    name: PersonName
    decision: Choice
    why: GivenReason


@router.get("")
def show_approvals(visit: Visited) -> Response:
    """Shows what waits for a decision, then the newest decisions."""
    ledger = visit.served.ledger
    waiting = approvals(ledger, LARGEST, only_open=True)
    decided = [row for row in approvals(ledger, SHOWN) if not row.is_pending]
    return visit.render(
        "approvals.html", waiting=waiting, decided=decided, waiting_columns=WAITING, decided_columns=DECIDED
    )


@router.get("/{number}")
def show_approval(visit: Visited, number: ApprovalId) -> Response:
    """Shows an approval, with a form for signed-in users."""
    found = approval(visit.served.ledger, number)
    return visit.render("approval.html", approval=found, token="")


@router.post("/{number}")
def decide_approval(
    served: Served, by: Approver, number: ApprovalId, asked: Annotated[DecisionForm, Form()]
) -> Response:
    """Decides an approval in the name of the signed-in user."""
    approving.carry_out(served, number, approving.verdict_of(asked, by, "dashboard"), asked.resume)
    return RedirectResponse(f"/approvals/{number}", HTTPStatus.SEE_OTHER)


@links.get("/{number}/link")
def show_link(visit: Visited, number: ApprovalId, token: LinkToken = "") -> Response:
    """Shows the page of a notification's link; it changes nothing."""
    _require_valid(visit.served, number, token)
    return visit.render("approval.html", approval=approval(visit.served.ledger, number), token=token)


@links.post("/{number}/link")
def decide_by_link(served: Served, number: ApprovalId, asked: Annotated[LinkForm, Form()]) -> Response:
    """Decides an approval by a link; the link is the right to do so, whoever the gate names."""
    _require_valid(served, number, asked.token)
    verdict = ApprovalDecision(DECISION_OF[asked.decision], f"{asked.name} (by link)", asked.why, LINK)
    approving.carry_out(served, number, verdict, resume=False)
    return RedirectResponse(f"/approvals/{number}", HTTPStatus.SEE_OTHER)


def _require_valid(served: Context, number: int, token: str) -> None:
    """Raises `HTTPException` 403 for a link that is not valid any more, or never was."""
    ledger = served.ledger
    if not is_valid(link_key(served.home), ledger.approvals.find(number), token, ledger.approvals.now()):
        raise HTTPException(
            HTTPStatus.FORBIDDEN,
            f"this link is not valid, or has expired; sign in and decide at /approvals/{number}",
        )
