"""Handles forms: the API's actions for a signed-in person.

Consumes forms of the dashboard's pages; produces redirects to the page that shows the result. All checks are done by the API's
own functions (`ops.dashboard.access`, `ops.dashboard.actions`).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException
from pydantic import field_validator
from starlette.responses import RedirectResponse, Response

from db.core.errors import LedgerError
from ops.dashboard import actions, annotating, starting
from ops.dashboard.access import Acting, Administering, Approver
from ops.dashboard.annotating import NoteRequest
from ops.dashboard.context import Number, RunId, Served
from ops.dashboard.pages.frame import Visit, Visited
from ops.dashboard.pages.templating import run_url
from ops.dashboard.problems import status_of
from ops.dashboard.texts import Text
from ops.queries.spec import spec_for_new_run
from yatt_core.errors import YattError
from yatt_core.logs import redact

router = APIRouter(include_in_schema=False)


@router.get("/new")
def show_new_run(visit: Visited, run: Text = "") -> Response:
    """Shows the form for a new run, filled with the spec of a run if one is named."""
    text = spec_for_new_run(visit.served.ledger, run) if run else ""
    return visit.render("new_run.html", text=text, reason="", mistakes=(), longest=starting.SPEC_CHARACTERS)


@router.post("/new")
def start_run(visit: Visited, by: Acting, asked: Annotated[starting.NewRun, Form()]) -> Response:
    """Starts a run; if it cannot be created, shows the form again with the spec and why."""
    try:
        run, _ = starting.create(visit.served, by, asked)
    except (YattError, LedgerError) as error:
        return _form_again(visit, asked, status_of(error, changing=True), str(error))
    except HTTPException as error:
        return _form_again(visit, asked, error.status_code, error.detail)
    starting.drive(visit.served, by, run, asked.reason)
    return redirect_after(run, "start")


def _form_again(visit: Visit, asked: starting.NewRun, status: int, said: str) -> Response:
    return visit.render(
        "new_run.html",
        status,
        text=asked.spec,
        reason=asked.reason,
        mistakes=redact(said).splitlines(),
        longest=starting.SPEC_CHARACTERS,
    )


class StopForm(actions.Stop):
    """The form's stop request, in which a browser sends empty fields as empty strings."""

    @field_validator("within_seconds", mode="before")
    @classmethod
    def _left_empty(cls, value: object) -> object:
        return None if value == "" else value


# -- actions ----------------------------------------------------------------------------------------------------------


@router.post("/runs/{run_id}/stop")
def stop(served: Served, by: Acting, run_id: RunId, asked: Annotated[StopForm, Form()]) -> Response:
    """Asks the run's driver to stop."""
    actions.stop(served, by, run_id, asked)
    return redirect_after(run_id, "stop")


@router.post("/runs/{run_id}/try-now")
def try_now(served: Served, by: Acting, run_id: RunId) -> Response:
    """Has the driver of a run that waits try at once."""
    actions.try_now(served, by, run_id)
    return redirect_after(run_id, "try-now")


@router.post("/runs/{run_id}/checkpoint")
def checkpoint(served: Served, by: Acting, run_id: RunId, asked: Annotated[actions.Asked, Form()]) -> Response:
    """Asks the run's driver for a checkpoint."""
    actions.checkpoint(served, by, run_id, asked)
    return redirect_after(run_id, "checkpoint")


@router.post("/runs/{run_id}/resume")
def resume(served: Served, by: Acting, run_id: RunId, asked: Annotated[actions.Resume, Form()]) -> Response:
    """Starts a driver."""
    actions.resume(served, by, run_id, asked)
    return redirect_after(run_id, "resume")


@router.post("/runs/{run_id}/retry")
def retry(served: Served, by: Acting, run_id: RunId, asked: Annotated[actions.Retry, Form()]) -> Response:
    """Restores a phase's retry budget, and starts a driver."""
    actions.retry(served, by, run_id, asked)
    return redirect_after(run_id, "retry")


@router.post("/runs/{run_id}/rollback")
def rollback(served: Served, by: Acting, run_id: RunId, asked: Annotated[actions.Rollback, Form()]) -> Response:
    """Rolls the run back to an iteration, on a new branch."""
    actions.rollback(served, by, run_id, asked)
    return redirect_after(run_id, "rollback", "lineage")


@router.post("/runs/{run_id}/verify")
def verify(
    served: Served,
    by: Acting,
    run_id: RunId,
    iteration: Annotated[Number, Form()],
    branch: Annotated[Number | None, Form()] = None,
    term: Annotated[Number | None, Form()] = None,
) -> Response:
    """Reads every byte of a checkpoint."""
    actions.verify(served, by, run_id, iteration, branch, term)
    return redirect_after(run_id, "verify", "checkpoints")


@router.post("/runs/{run_id}/promote")
def promote(served: Served, by: Approver, run_id: RunId, asked: Annotated[actions.Promote, Form()]) -> Response:
    """Points an alias at a checkpoint."""
    actions.promote(served, by, run_id, asked)
    return redirect_after(run_id, "promote", "checkpoints")


@router.post("/runs/{run_id}/delete")
def delete(served: Served, by: Administering, run_id: RunId, asked: Annotated[actions.Asked, Form()]) -> Response:
    """Deletes a run that never began."""
    deleted = actions.delete(served, by, run_id, asked)
    done = "delete-left" if deleted.left else "delete-elsewhere" if deleted.elsewhere else "delete"
    return RedirectResponse(f"/?done={done}", HTTPStatus.SEE_OTHER)


@router.post("/runs/{run_id}/note")
def write_note(served: Served, by: Acting, run_id: RunId, asked: Annotated[NoteRequest, Form()]) -> Response:
    """Replaces the run's note."""
    annotating.write_note(served, by, run_id, asked)
    return redirect_after(run_id, "note")


@router.post("/runs/{run_id}/tags")
def change_tags(
    served: Served,
    by: Acting,
    run_id: RunId,
    add: Annotated[Text, Form()] = "",
    remove: Annotated[Text, Form()] = "",
) -> Response:
    """Adds tags, separated by spaces or commas, and removes one."""
    added, removed = (tuple(text.replace(",", " ").split()) for text in (add, remove))
    served.ledger.annotations.change_tags(run_id, added, removed, by)
    return redirect_after(run_id, "tags")


def redirect_after(run: str, action: str, page: str = "") -> Response:
    """Returns a redirect to the page that shows the result of an action."""
    return RedirectResponse(run_url(run, page, done=action), HTTPStatus.SEE_OTHER)
